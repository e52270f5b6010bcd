package health

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// ecc sums the error counters of a type: the device-wide counter if there is one, otherwise
// the counters of the blocks.
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

// where lists the blocks with errors of a type.
func where(s *device.Sample, kind string) []string {
	var out []string
	for _, e := range s.ECC {
		if v, ok := e.Count.Get(); ok && v > 0 && e.Type == kind && e.Location != "" {
			out = append(out, fmt.Sprintf("%s %s: %.0f", e.Lifetime, e.Location, v))
		}
	}
	return out
}

// uncorrected reports lost data. Errors from before the first sample are only a warning: the
// affected job is gone, and the counters are cleared by the next reset.
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
			Action: "Reset the device when it is idle, and watch for new errors.",
		}
		if by, over, ok := t.increase(ecc(kind)); ok && by > 0 {
			f.Severity = Critical
			f.Reason = fmt.Sprintf("%s in the last %s, %.0f since the driver was loaded", count(by, kind+" memory error"), span(over), all)
			f.Action = "Results computed on the device cannot be trusted: drain and reset it, and run the vendor's diagnostics if the errors recur."
		}
		out = append(out, f)
	}
	return out
}

// tooManyCorrected is the threshold per 10 minutes. Single corrected errors are what ECC is
// for and cost nothing.
const tooManyCorrected = 100

func corrected(t trail) []Finding {
	by, over, ok := t.increase(ecc("corrected"))
	if !ok || by < tooManyCorrected {
		return nil
	}
	return []Finding{{
		Rule: "gpu.ecc.corrected", Severity: Warning, Evidence: where(&t.last.Sample, "corrected"),
		Reason: fmt.Sprintf("%.0f corrected memory errors in the last %s", by, span(over)),
		Action: "No data is lost yet. Schedule a reset, which remaps bad rows, and run the vendor's diagnostics if the errors continue.",
	}}
}

func rowRemap(t trail) []Finding {
	var out []Finding
	r := t.last.RowRemap
	if set(r.Failure) {
		out = append(out, Finding{
			Rule: "gpu.row_remap.failed", Severity: Critical,
			Reason: "row remapping failed: the memory bank has no spare rows left",
			Action: "Take the device out of service and replace it.",
		})
	}
	if set(r.Pending) {
		out = append(out, Finding{
			Rule: "gpu.row_remap.pending", Severity: Warning,
			Reason: "row remapping is pending",
			Action: "Reset the device when it is next idle.",
		})
	}
	for _, b := range r.Banks {
		if v, ok := b.Banks.Get(); ok && v > 0 && b.Spare == "none" && !set(r.Failure) {
			out = append(out, Finding{
				Rule: "gpu.row_remap.exhausted", Severity: Warning,
				Reason: fmt.Sprintf("%.0f memory banks have no spare rows left", v),
				Action: "The next error in such a bank cannot be repaired: schedule a replacement of the device.",
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
			Reason: "page retirement failed",
			Action: "Take the device out of service and replace it.",
		}}
	}
	return one(Finding{
		Rule: "gpu.page_retirement.pending", Severity: Warning,
		Reason: "page retirement is pending",
		Action: "Reset the device when it is next idle.",
	}, set(p.Pending))
}

func sram(t trail) []Finding {
	return one(Finding{
		Rule: "gpu.ecc.sram", Severity: Critical,
		Reason: "uncorrectable SRAM errors exceed the vendor's threshold",
		Action: "Take the device out of service and replace it.",
	}, set(t.last.SRAMThreshold))
}

// eccOff is informational: workstation boards ship with ECC disabled.
func eccOff(t trail) []Finding {
	v, ok := t.last.Modes.ECC.Get()
	return one(Finding{
		Rule: "gpu.ecc.off", Severity: Info,
		Reason: "ECC is available but disabled",
		Action: "Enable ECC if correct results matter more than a few percent of memory, and reset the device.",
	}, ok && v == 0)
}

func set(v device.Value) bool {
	x, ok := v.Get()
	return ok && x != 0
}

// span formats a duration for people.
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

// count formats a number with its noun.
func count(n float64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%.0f %ss", n, noun)
}
