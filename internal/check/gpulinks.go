//go:build linux

package check

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// leastOf returns the smaller value, or b if it is the first (nth is 0).
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

// counted reports whether links of a kind are expected to be up. Cable ports may be unused.
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

// pcie always judges the link width. The speed counts only under load, because drivers lower
// it to save power; the link's maximum speed is compared with the manifest.
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
	const action = "Reseat the device or its riser. Transfers between host and device are slower until then."
	known := 0
	for i := range list {
		p := &list[i].PCIe
		width, ok := p.Width.Get()
		if !ok {
			continue
		}
		known++
		if most, has := p.WidthMax.Get(); want.Width > 0 && int(width) < want.Width {
			bad = append(bad, Problem{Critical, name(list[i].ID), fmt.Sprintf("PCI Express link has %.0f lanes, the manifest says %d", width, want.Width), action})
		} else if want.Width == 0 && has && width < most {
			bad = append(bad, Problem{Warning, name(list[i].ID), fmt.Sprintf("PCI Express link has %.0f of %.0f lanes", width, most), action})
		}
		if most, has := p.GenerationMax.Get(); has && want.Generation > 0 && int(most) < want.Generation {
			bad = append(bad, Problem{Critical, name(list[i].ID), fmt.Sprintf("PCI Express link supports at most generation %.0f, the manifest says %d", most, want.Generation), action})
			continue
		}
		util, _ := list[i].Utilization.Compute.Get()
		gen, has := p.Generation.Get()
		if most, ok := p.GenerationMax.Get(); ok && has && gen < most && util >= loaded {
			bad = append(bad, Problem{Warning, name(list[i].ID), fmt.Sprintf("PCI Express link runs at generation %.0f at a load of %.0f %%, capable of %.0f", gen, 100*util, most), action})
		}
	}
	if known == 0 && len(bad) == 0 {
		return skip("no device reports its link")
	}
	return found(bad, "%d links at full width", known)
}

// loaded is the utilization above which a link must run at full speed.
const loaded = 0.5

// training is how long after boot links may train and devices may join a fabric.
const training = 5 * time.Minute

// links requires all links of a device to be up if one is. A device without any active link
// may have no bridge.
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
		const action = "Drain the node, reset all its devices together, and check the baseboard or bridge if the links stay down."
		switch {
		case h.Manifest != nil && h.Manifest.GPUs.Links > 0 && list[i].Up:
			if n < h.Manifest.GPUs.Links {
				bad = append(bad, Problem{severe, name(s.ID), fmt.Sprintf("%d links to other devices are up, the manifest says %d", n, h.Manifest.GPUs.Links), action})
			}
		case n > 0 && len(down) > 0:
			bad = append(bad, Problem{severe, name(s.ID), fmt.Sprintf("%d links to other devices are down (%s), %d are up", len(down), numbers(down), n), action})
		}
		if v, ok := s.Fabric.State.Get(); ok && (v == 1 || v == 2) {
			bad = append(bad, Problem{severe, name(s.ID), "not joined to the NVLink fabric: CUDA cannot start", "Check that the fabric manager runs and matches the driver version."})
		}
	}
	if total == 0 && len(bad) == 0 {
		return skip("no links between devices")
	}
	return found(capped(bad), "%d links are up", total)
}
