package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// missing: devices that the machine has had since it was booted, and fewer than it should
// have. One that is down is still there, and found by lost.
func missing(m *Machine) []Finding {
	now := m.Moments[len(m.Moments)-1].physical()
	var out []Finding
	for _, id := range m.Known {
		// A driver may find another name for a device; its place is the same.
		if slices.ContainsFunc(now, func(d *Device) bool { return d.ID.UUID == id.UUID || id.PCI != "" && d.ID.PCI == id.PCI }) {
			continue
		}
		out = append(out, Finding{
			Rule: "gpu.missing", Key: id.UUID, Severity: Critical, Device: id,
			Reason: "it was there since the machine was booted, and its driver does not find it any more",
			Action: "Drain the node and reboot it. If the device does not come back, look at its power and seat.",
		})
	}
	if m.Expected > 0 && len(now) < m.Expected {
		out = append(out, Finding{
			Rule: "gpu.missing", Severity: Critical,
			Reason: fmt.Sprintf("the machine has %d devices, %d were expected", len(now), m.Expected),
			Action: "Drain the node and reboot it. If the device does not come back, look at its power and seat.",
		})
	}
	return out
}

// mismatch: devices of one model with other firmware than most of them.
func mismatch(m *Machine) []Finding {
	var out []Finding
	for _, what := range []struct {
		name string
		of   func(device.Info) string
	}{
		{"firmware", func(i device.Info) string { return i.Firmware }},
		{"VBIOS", func(i device.Info) string { return i.VBIOS }},
	} {
		models := map[string]map[string]int{}
		for _, d := range m.Moments[len(m.Moments)-1].physical() {
			if v := what.of(d.Info); v != "" {
				if models[d.ID.Model] == nil {
					models[d.ID.Model] = map[string]int{}
				}
				models[d.ID.Model][v]++
			}
		}
		for _, d := range m.Moments[len(m.Moments)-1].physical() {
			v := what.of(d.Info)
			usual, n := "", 0
			for version, count := range models[d.ID.Model] {
				if count > n || count == n && version > usual {
					usual, n = version, count
				}
			}
			if v == "" || v == usual {
				continue
			}
			out = append(out, Finding{
				Rule: "gpu.firmware.mismatch", Key: what.name, Severity: Warning, Device: d.ID, Workloads: d.Holders,
				Reason: fmt.Sprintf("its %s is %s, %d others of the machine have %s", what.name, v, n, usual),
				Action: "Update it: devices of one job should behave alike.",
			})
		}
	}
	return out
}

// A straggler is one of several devices that one job has to itself, slower or hotter than
// the others for as long as stragglesFor. Fewer than three cannot say which is odd.
const (
	stragglesFor   = 3 * time.Minute
	stragglerClock = 0.9 // of the median
	stragglerHot   = 15  // degrees above the median
	stragglerPeers = 3
)

func stragglers(m *Machine) []Finding {
	now := &m.Moments[len(m.Moments)-1]
	peers := map[string][]*Device{}
	for _, d := range now.physical() {
		if len(d.Holders) == 1 && d.Up {
			key := d.Holders[0].ID + "\x00" + d.ID.Model
			peers[key] = append(peers[key], d)
		}
	}
	var out []Finding
	for _, group := range peers {
		if len(group) < stragglerPeers {
			continue
		}
		for _, d := range group {
			var since time.Time
			why := ""
			for i := range slices.Backward(m.Moments) {
				moment := &m.Moments[i]
				reason := odd(d.ID.UUID, moment, group)
				if reason == "" || now.Time.Sub(moment.Time) > Span {
					break
				}
				since = moment.Time
				if why == "" {
					why = reason
				}
			}
			if why == "" || now.Time.Sub(since) < stragglesFor {
				continue
			}
			out = append(out, Finding{
				Rule: "gpu.straggler", Severity: Warning, Device: d.ID, Workloads: d.Holders, Since: since, Reason: why,
				Action: "The whole job waits for it: move the job off this device, and look at its cooling and power.",
			})
		}
	}
	return out
}

// odd says how a device differs from the others of its job at a moment, empty if it does
// not. One with less to do has lower clocks, one with more is hotter, and neither is odd.
func odd(uuid string, then *Moment, group []*Device) string {
	var clocks, heat, work []float64
	var d *Device
	for i := range then.Devices {
		o := &then.Devices[i]
		if o.ID.UUID == uuid {
			d = o
		}
		if o.ID.UUID == uuid || !slices.ContainsFunc(group, func(g *Device) bool { return g.ID.UUID == o.ID.UUID }) {
			continue
		}
		if v, ok := o.Clock().Get(); ok {
			clocks = append(clocks, v)
		}
		if h, ok := hottest(&o.Sample); ok {
			v, _ := h.Value.Get()
			heat = append(heat, v)
		}
		if v, ok := o.Utilization.Compute.Get(); ok {
			work = append(work, v)
		}
	}
	if d == nil {
		return ""
	}
	util, ok := d.Utilization.Compute.Get()
	if !ok || util < busy*median(work) || util == 0 {
		return ""
	}
	var why []string
	if v, ok := d.Clock().Get(); ok && len(clocks) > 0 && v < stragglerClock*median(clocks) {
		why = append(why, fmt.Sprintf("runs at %.0f MHz, the others of the job at %.0f MHz", v/1e6, median(clocks)/1e6))
	}
	// Among idle ones the one that works is hot, as it should be.
	if h, ok := hottest(&d.Sample); ok && len(heat) > 0 && median(work) >= busy*util {
		if v, _ := h.Value.Get(); v >= median(heat)+stragglerHot {
			why = append(why, fmt.Sprintf("is at %.0f °C, the others of the job at %.0f °C", v, median(heat)))
		}
	}
	if len(why) == 0 {
		return ""
	}
	return "it " + strings.Join(why, ", and ")
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	list = slices.Sorted(slices.Values(list))
	half := len(list) / 2
	if len(list)%2 == 0 {
		return (list[half-1] + list[half]) / 2
	}
	return list[half]
}
