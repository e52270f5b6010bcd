package health

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// A PCI Express link is judged under load only: when idle, drivers slow the link down to
// save power, and that reading may persist for a few slow intervals.
const downtrainedFor = 3 * time.Minute

// slotKnown are the vendors whose drivers report what the link can reach in its slot. Other
// drivers report the device's maximum, which the slot may never provide.
var slotKnown = map[string]bool{"nvidia": true, "intel": true}

func pcie(t trail) []Finding {
	if !slotKnown[t.last.ID.Vendor] {
		return nil
	}
	slow := func(d *Device) bool {
		if util, ok := d.Utilization.Compute.Get(); !ok || util < 0.5 {
			return false
		}
		return below(d.PCIe.Generation, d.PCIe.GenerationMax) || below(d.PCIe.Width, d.PCIe.WidthMax)
	}
	since, ok := t.throughout(downtrainedFor, slow)
	if !ok {
		return nil
	}
	p := t.last.PCIe
	return []Finding{{
		Rule: "gpu.pcie.downtrained", Severity: Warning, Since: since,
		Reason: fmt.Sprintf("PCI Express link runs at %s under load, capable of %s", linkText(p.Generation, p.Width), linkText(p.GenerationMax, p.WidthMax)),
		Action: "Reseat the device or its riser. Transfers between host and device are slower until then.",
	}}
}

func below(v, most device.Value) bool {
	r, ok := v.Ratio(most).Get()
	return ok && r < 1
}

func linkText(generation, width device.Value) string {
	g, _ := generation.Get()
	w, _ := width.Get()
	return fmt.Sprintf("generation %.0f x%.0f", g, w)
}

// tooManyReplays is the threshold per 10 minutes. A few replays happen on every link.
const tooManyReplays = 600

func replays(t trail) []Finding {
	by, over, ok := t.increase(func(s *device.Sample) device.Value { return s.PCIe.Replays })
	if !ok || by < tooManyReplays {
		return nil
	}
	return []Finding{{
		Rule: "gpu.pcie.replays", Severity: Warning,
		Reason: fmt.Sprintf("%.0f PCI Express replays in the last %s", by, span(over)),
		Action: "Reseat the device or its riser, and check the kernel log for bus errors (AER).",
	}}
}

// linkErrors are the error types of links that failed or had to retrain. Corrected errors,
// which every long link has, are not included.
var linkErrors = map[string]bool{"recovery": true, "recovery_failed": true, "uncorrected": true, "fatal": true, "effective": true, "link_down": true}

const linkDownFor = 30 * time.Second // a shorter outage is link training

func links(t trail) []Finding {
	var out []Finding
	for _, c := range t.last.Interconnects {
		for _, l := range c.Links {
			if up, ok := l.Up.Get(); !ok || up != 0 || !t.wanted(c.Type, l.Index) {
				continue
			}
			since, long := t.throughout(linkDownFor, func(d *Device) bool {
				v, has := linkOf(&d.Sample, c.Type, l.Index).Up.Get()
				return has && v == 0
			})
			if !long {
				continue
			}
			out = append(out, Finding{
				Rule: "gpu.interconnect.link_down", Key: fmt.Sprintf("%s %d", c.Type, l.Index), Severity: Critical, Since: since,
				Reason: fmt.Sprintf("%[2]s link %[1]d is down, %[3]d are up", l.Index, c.Type, upLinks(c)),
				Action: "Multi-device work fails or slows down: drain the node, reset all its devices together, and check the cable or the baseboard if the link stays down.",
			})
		}
		kind := c.Type
		by, over, ok := t.increase(func(s *device.Sample) device.Value { return badErrors(s, kind) })
		if ok && by > 0 {
			out = append(out, Finding{
				Rule: "gpu.interconnect.errors", Key: kind, Severity: Warning,
				Reason: fmt.Sprintf("%s not corrected on %s links in the last %s", count(by, "error"), kind, span(over)),
				Action: "If the errors continue, reset all devices of the machine together and check cables and the baseboard.",
			})
		}
	}
	return out
}

// linkName is the key under which a link of a device is remembered.
func linkName(uuid, kind string, index int) string { return fmt.Sprintf("%s %s %d", uuid, kind, index) }

// wanted reports whether a link should be up: it was up since boot, or the same link of
// another device of the model is up. A board may use only some of its links or none, and a
// port may have no cable.
func (t trail) wanted(kind string, index int) bool {
	if t.machine.LinksUp[linkName(t.last.ID.UUID, kind, index)] {
		return true
	}
	for i := range t.machine.Moments {
		for _, d := range t.machine.Moments[i].physical() {
			same := d.ID.UUID == t.last.ID.UUID || kind != "ethernet" && d.ID.Model == t.last.ID.Model
			if same && set(linkOf(&d.Sample, kind, index).Up) {
				return true
			}
		}
	}
	return false
}

func upLinks(c device.Interconnect) (n int) {
	for _, l := range c.Links {
		if set(l.Up) {
			n++
		}
	}
	return n
}

func linkOf(s *device.Sample, kind string, index int) device.Link {
	for _, c := range s.Interconnects {
		if c.Type != kind {
			continue
		}
		for _, l := range c.Links {
			if l.Index == index {
				return l
			}
		}
	}
	return device.Link{}
}

func badErrors(s *device.Sample, kind string) device.Value {
	var sum device.Value
	for _, c := range s.Interconnects {
		if c.Type != kind {
			continue
		}
		for _, e := range c.Errors {
			if v, ok := e.Count.Get(); ok && linkErrors[e.Type] {
				all, _ := sum.Get()
				sum = device.Of(all + v)
			}
		}
	}
	return sum
}

// A device joins its fabric within a minute of the fabric manager's start.
const joiningFor = 5 * time.Minute

func fabric(t trail) []Finding {
	health, _ := t.last.Fabric.Health.Get()
	switch health {
	case 2:
		return []Finding{{
			Rule: "gpu.fabric.unhealthy", Severity: Critical, Reason: "the NVLink fabric reports the device as unhealthy",
			Action: "Check the fabric manager log. Reset all devices of the fabric together.",
		}}
	case 3:
		return []Finding{{
			Rule: "gpu.fabric.limited", Severity: Warning, Reason: "reduced NVLink fabric bandwidth",
			Action: "Check the fabric manager log for links that are down.",
		}}
	}
	since, ok := t.throughout(joiningFor, func(d *Device) bool {
		v, ok := d.Fabric.State.Get()
		return ok && (v == 1 || v == 2)
	})
	return one(Finding{
		Rule: "gpu.fabric.not_joined", Severity: Critical, Since: since,
		Reason: "not joined to the NVLink fabric for " + span(t.now.Sub(since)) + ": CUDA cannot start on it",
		Action: "Check that the fabric manager runs and matches the driver version.",
	}, ok)
}
