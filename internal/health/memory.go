package health

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// ecc adds the counters of a type up: those of the whole device where it has them, else
// those of its blocks.
func ecc(kind string) func(*device.Sample) device.Value {
	return func(s *device.Sample) device.Value {
		var whole, parts device.Value
		for _, e := range s.ECC {
			if e.Type != kind || e.Lifetime != "volatile" {
				continue
			}
			v, ok := e.Count.Get()
			switch {
			case !ok:
			case e.Location == "":
				whole = e.Count
			default:
				sum, _ := parts.Get()
				parts = device.Of(sum + v)
			}
		}
		return whole.Or(parts)
	}
}

// where names the blocks that have errors of a type.
func where(s *device.Sample, kind string) []string {
	var out []string
	for _, e := range s.ECC {
		if v, ok := e.Count.Get(); ok && v > 0 && e.Type == kind && e.Location != "" {
			out = append(out, fmt.Sprintf("%s %s: %.0f", e.Lifetime, e.Location, v))
		}
	}
	return out
}

// uncorrected: data was lost. Those before our time are a warning only: the job that they
// hit is gone, and counters fall at the next reset.
func uncorrected(t trail) []Finding {
	var out []Finding
	for _, kind := range []string{"uncorrected", "deferred"} {
		all, ok := ecc(kind)(&t.last.Sample).Get()
		if !ok || all == 0 {
			continue
		}
		f := Finding{
			Rule: "gpu.ecc." + kind, Severity: Warning, Evidence: where(&t.last.Sample, kind),
			Reason: count(all, kind+" memory error") + " since the driver was loaded",
			Action: "Reset the device when it is idle, and watch whether the count rises again.",
		}
		if by, over, ok := t.increase(ecc(kind)); ok && by > 0 {
			f.Severity = Critical
			f.Reason = fmt.Sprintf("%s in the last %s, %.0f since the driver was loaded", count(by, kind+" memory error"), span(over), all)
			f.Action = "Results on it cannot be trusted: take work off the device, reset it, and run the vendor's diagnosis if it happens again."
		}
		out = append(out, f)
	}
	return out
}

// tooManyCorrected is of 10 minutes. Single ones are what ECC is for, and cost nothing.
const tooManyCorrected = 100

func corrected(t trail) []Finding {
	by, over, ok := t.increase(ecc("corrected"))
	if !ok || by < tooManyCorrected {
		return nil
	}
	return []Finding{{
		Rule: "gpu.ecc.corrected", Severity: Warning, Evidence: where(&t.last.Sample, "corrected"),
		Reason: fmt.Sprintf("%.0f corrected memory errors in the last %s", by, span(over)),
		Action: "Nothing is lost yet. Plan a reset, which lets the device replace the bad rows, and run the vendor's diagnosis if it goes on.",
	}}
}

func rowRemap(t trail) []Finding {
	var out []Finding
	r := t.last.RowRemap
	if set(r.Failure) {
		out = append(out, Finding{
			Rule: "gpu.row_remap.failed", Severity: Critical,
			Reason: "a bad row of memory could not be replaced: its bank has no spare rows left",
			Action: "Take the device out of service and have it replaced.",
		})
	}
	if set(r.Pending) {
		out = append(out, Finding{
			Rule: "gpu.row_remap.pending", Severity: Warning,
			Reason: "a bad row of memory waits to be replaced",
			Action: "Reset the device at the next moment without work.",
		})
	}
	for _, b := range r.Banks {
		if v, ok := b.Banks.Get(); ok && v > 0 && b.Spare == "none" && !set(r.Failure) {
			out = append(out, Finding{
				Rule: "gpu.row_remap.exhausted", Severity: Warning,
				Reason: fmt.Sprintf("%.0f banks of memory have no spare rows left", v),
				Action: "The next error in such a bank cannot be mended: plan the replacement of the device.",
			})
		}
	}
	return out
}

func pageRetirement(t trail) []Finding {
	p := t.last.PageRetirement
	if set(p.Failure) {
		return []Finding{{
			Rule: "gpu.page_retirement.failed", Severity: Critical,
			Reason: "a bad page of memory could not be taken out of use",
			Action: "Take the device out of service and have it replaced.",
		}}
	}
	return one(Finding{
		Rule: "gpu.page_retirement.pending", Severity: Warning,
		Reason: "a bad page of memory waits to be taken out of use",
		Action: "Reset the device at the next moment without work.",
	}, set(p.Pending))
}

func sram(t trail) []Finding {
	return one(Finding{
		Rule: "gpu.ecc.sram", Severity: Critical,
		Reason: "uncorrectable errors of on-chip memory are more than the vendor allows",
		Action: "Take the device out of service and have it replaced.",
	}, set(t.last.SRAMThreshold))
}

// eccOff is for knowing: boards for workstations ship so.
func eccOff(t trail) []Finding {
	v, ok := t.last.Modes.ECC.Get()
	return one(Finding{
		Rule: "gpu.ecc.off", Severity: Info,
		Reason: "the device has error correction, and it is off",
		Action: "Turn it on if results matter more than some percent of memory, and reset the device.",
	}, ok && v == 0)
}

func set(v device.Value) bool {
	x, ok := v.Get()
	return ok && x != 0
}

// span is a duration for people.
func span(d time.Duration) string {
	d = d.Round(time.Second)
	if d >= 2*time.Minute {
		d = d.Round(time.Minute)
	}
	s := d.String()
	s = strings.TrimSuffix(s, "0s")
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	if s == "" || !strings.ContainsAny(s[len(s)-1:], "hms") {
		s += "0s"
	}
	return s
}

// count returns a number of things.
func count(n float64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%.0f %ss", n, noun)
}
