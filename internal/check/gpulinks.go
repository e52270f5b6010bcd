//go:build linux

package check

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// leastOf returns the smaller of two, or the second if it is the first of all.
func leastOf(nth, a, b int) int {
	if nth == 1 {
		return b
	}
	return min(a, b)
}

func least(nth, a int, v device.Value) int {
	b, _ := v.Get()
	return leastOf(nth, a, int(b))
}

// counted reports whether links of a kind are to be up: ports for cables may have none.
func counted(kind string) bool { return kind == "nvlink" || kind == "xgmi" }

func linksUp(s *device.Sample) (n int) {
	for _, c := range s.Interconnects {
		for _, l := range c.Links {
			if up, ok := l.Up.Get(); ok && up != 0 && counted(c.Type) {
				n++
			}
		}
	}
	return n
}

// pcie: the width counts always, with or without load. The speed counts under load only,
// because drivers lower it to save power; what a link can do at most is compared with the
// manifest.
func pcie(ctx context.Context, h *host) outcome {
	m, list, o := h.physical(ctx)
	if o != nil {
		return *o
	}
	bad := h.findings(m, "gpu.pcie")
	var want GPUs
	if h.Manifest != nil {
		want = h.Manifest.GPUs
	}
	const action = "Reseat the device or its riser. Transfers between host and device take that much longer."
	known := 0
	for i := range list {
		p := &list[i].PCIe
		width, ok := p.Width.Get()
		if !ok {
			continue
		}
		known++
		if most, has := p.WidthMax.Get(); want.Width > 0 && int(width) < want.Width {
			bad = append(bad, Problem{Critical, name(list[i].ID), fmt.Sprintf("its PCI Express link has %.0f lanes, the manifest says %d", width, want.Width), action})
		} else if want.Width == 0 && has && width < most {
			bad = append(bad, Problem{Warning, name(list[i].ID), fmt.Sprintf("its PCI Express link has %.0f lanes, it can have %.0f", width, most), action})
		}
		if most, has := p.GenerationMax.Get(); has && want.Generation > 0 && int(most) < want.Generation {
			bad = append(bad, Problem{Critical, name(list[i].ID), fmt.Sprintf("its PCI Express link can be generation %.0f at most, the manifest says %d", most, want.Generation), action})
			continue
		}
		util, _ := list[i].Utilization.Compute.Get()
		gen, has := p.Generation.Get()
		if most, ok := p.GenerationMax.Get(); ok && has && gen < most && util >= loaded {
			bad = append(bad, Problem{Warning, name(list[i].ID), fmt.Sprintf("its PCI Express link runs at generation %.0f at a load of %.0f %%, it can %.0f", gen, 100*util, most), action})
		}
	}
	if known == 0 && len(bad) == 0 {
		return skip("no device says it")
	}
	return found(bad, "%d links have their width", known)
}

// loaded is from which utilization on a link has to run at full speed.
const loaded = 0.5

// Links train, and devices join a fabric, within minutes after the machine has started.
const training = 5 * time.Minute

// links: of a device some of whose links are up, all have to be. A device of which none is
// up may have no bridge.
func links(ctx context.Context, h *host) outcome {
	m, list, o := h.physical(ctx)
	if o != nil {
		return *o
	}
	bad := h.findings(m, "gpu.links")
	up, err := h.uptime()
	young := err == nil && up < training
	severe := Critical
	if young {
		severe = Warning
	}
	total := 0
	for i := range list {
		s := &list[i].Sample
		n := linksUp(s)
		total += n
		var down []int
		for _, c := range s.Interconnects {
			for _, l := range c.Links {
				if v, ok := l.Up.Get(); ok && v == 0 && counted(c.Type) {
					down = append(down, l.Index)
				}
			}
		}
		const action = "Take work off the machine, reset its devices together, and look at the baseboard or bridge if it stays so."
		switch {
		case h.Manifest != nil && h.Manifest.GPUs.Links > 0 && list[i].Up:
			if n < h.Manifest.GPUs.Links {
				bad = append(bad, Problem{severe, name(s.ID), fmt.Sprintf("%d links to other devices are up, the manifest says %d", n, h.Manifest.GPUs.Links), action})
			}
		case n > 0 && len(down) > 0:
			bad = append(bad, Problem{severe, name(s.ID), fmt.Sprintf("%d links to other devices are down (%s), %d are up", len(down), numbers(down), n), action})
		}
		if v, ok := s.Fabric.State.Get(); ok && (v == 1 || v == 2) {
			bad = append(bad, Problem{severe, name(s.ID), "it has not joined the switch fabric: CUDA cannot start on it", "Look whether the fabric manager runs and fits the driver's version."})
		}
	}
	if total == 0 && len(bad) == 0 {
		return skip("no links between devices")
	}
	return found(capped(bad), "%d links are up", total)
}
