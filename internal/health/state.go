package health

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// A device that misses a tick or two may be busy. A device that the driver reports as lost
// is lost at once.
const lateFor = 30 * time.Second

func lost(t trail) []Finding {
	if t.last.Up {
		return nil
	}
	if t.last.Reset {
		return []Finding{{
			Rule: "gpu.needs_reset", Severity: Critical, Reason: "the driver refuses access until the device is reset",
			Action: "Drain and reset the device; if that fails, reboot the machine.",
		}}
	}
	since, ok := throughout(t.all, t.now, lateFor, func(d *Device) bool { return !d.Up })
	return one(Finding{
		Rule: "gpu.lost", Severity: Critical, Since: since, Evidence: nonEmpty(t.last.Problem),
		Reason: "no answer for " + span(t.now.Sub(since)),
		Action: "Drain the node and reboot it. If the device does not come back, check its power and seating, and replace it.",
	}, ok || t.last.Lost)
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// recovery reports the action that the driver itself requests, by the codes of NVML field
// 230.
func recovery(t trail) []Finding {
	code, ok := t.last.RecoveryAction.Get()
	if !ok || code == 0 {
		return nil
	}
	f := Finding{Rule: "gpu.recovery", Key: fmt.Sprintf("%.0f", code), Severity: Critical}
	f.Reason, f.Action = requested(code)
	return []Finding{f}
}

// requested explains a recovery action other than none.
func requested(code float64) (reason, action string) {
	switch code {
	case 1:
		return "the driver requests a reset of the device", "Drain and reset the device."
	case 2, 7:
		return "the driver requests a reboot of the machine", "Drain the node and reboot it."
	case 3:
		return "the driver requests that peer-to-peer work is drained", "Stop jobs that use this device together with others; jobs on this device alone may continue."
	case 4:
		return "the driver requests a reset once the device is drained", "Schedule nothing new on the device, let running work finish, and reset it."
	case 5:
		return "the driver requests a recovery of the IMEX domain", "Stop the jobs that use memory of other nodes over NVLink, and restart the IMEX service on all of these nodes."
	case 6:
		return "the driver requests a bus reset", "Drain the node, and reset all its GPUs together or reboot it."
	}
	return fmt.Sprintf("the driver requests an unknown recovery action, code %.0f", code), "Look it up in the vendor's documentation of recovery actions."
}

// orphaned reports memory that no process holds. A driver keeps less than orphanedBytes for
// itself, and the memory of an exited process is freed within seconds. Only NVIDIA's driver
// lists every process. Where it cannot, such as in a container that does not see the host's
// processes, an allocated device counts as in use by its owner.
const (
	orphanedBytes = 1 << 30
	orphanedFor   = 2 * time.Minute
)

func orphaned(t trail) []Finding {
	if t.last.ID.Vendor != "nvidia" {
		return nil
	}
	since, ok := t.throughout(orphanedFor, func(d *Device) bool {
		used, ok := d.Memory.Used.Get()
		util, has := d.Utilization.Compute.Get()
		return ok && used >= orphanedBytes && len(d.Processes) == 0 && len(d.Holders) == 0 && has && util == 0 && !set(d.Modes.MIG)
	})
	used, _ := t.last.Memory.Used.Get()
	return one(Finding{
		Rule: "gpu.memory.orphaned", Severity: Warning, Since: since,
		Reason: fmt.Sprintf("%.1f GiB of device memory in use without a process, for %s", used/(1<<30), span(t.now.Sub(since))),
		Action: "Look for unkillable processes (state D) that have the device open. If there are none, reset the device.",
	}, ok)
}

// A heartbeat that stands still means that the firmware hangs. Two consecutive readings may
// fall between two beats.
const stillFor = 10 * time.Second

func heartbeat(t trail) []Finding {
	now, ok := t.last.Heartbeat.Get()
	if !ok {
		return nil
	}
	since, ok := t.throughout(stillFor, func(d *Device) bool {
		v, has := d.Heartbeat.Get()
		return has && v == now
	})
	return one(Finding{
		Rule: "gpu.heartbeat", Severity: Critical, Since: since,
		Reason: fmt.Sprintf("no firmware heartbeat for %s", span(t.now.Sub(since))),
		Action: "Drain and reset the device.",
	}, ok)
}

// status is the vendor's own status. A reset in progress is over within a minute.
const statusFor = time.Minute

func status(t trail) []Finding {
	since, ok := t.throughout(statusFor, func(d *Device) bool { return set(d.Status) })
	code, _ := t.last.Status.Get()
	return one(Finding{
		Rule: "gpu.status", Severity: Critical, Since: since,
		Reason: fmt.Sprintf("the driver reports non-operational status %.0f for %s", code, span(t.now.Sub(since))),
		Action: "Check the kernel log for messages of the driver, and reset the device.",
	}, ok)
}

// resets compares reset counts across the reset itself, which clears all other counters.
func resets(t trail) []Finding {
	now, ok := resetCount(&t.last.Sample)
	if !ok {
		return nil
	}
	for _, s := range t.past {
		before, had := resetCount(&s.d.Sample)
		if !had {
			continue
		}
		return one(Finding{
			Rule: "gpu.reset", Severity: Warning, Evidence: resetCounts(&t.last.Sample),
			Reason: fmt.Sprintf("the device was reset %s in the last %s", count(now-before, "time"), span(t.now.Sub(s.at))),
			Action: "Running work was lost. Check the kernel log for the cause.",
		}, now > before)
	}
	return nil
}

func resetCount(s *device.Sample) (sum float64, ok bool) {
	for _, r := range s.Resets {
		if v, has := r.Count.Get(); has {
			sum, ok = sum+v, true
		}
	}
	return sum, ok
}

// resetCounts lists the counts by type of reset: a thermal reset is a different problem from
// a requested one.
func resetCounts(s *device.Sample) []string {
	var out []string
	for _, r := range s.Resets {
		if v, ok := r.Count.Get(); ok && v > 0 {
			out = append(out, fmt.Sprintf("%s: %.0f in total", r.Type, v))
		}
	}
	return out
}

// incidents judges recent kernel log entries about a device whose driver does not count
// resets. Memory errors are left out, because the device counts them.
func incidents(t trail) []Finding {
	var out []Finding
	for _, i := range t.last.Incidents {
		if t.now.Sub(i.Last) >= Span {
			continue
		}
		f := Finding{
			Rule: i.Name, Key: "log", Since: i.Last, Evidence: nonEmpty(i.Message), Workloads: i.Workloads, Severity: Warning,
			Reason: fmt.Sprintf("the driver reset the device %s ago", span(t.now.Sub(i.Last))),
			Action: "Running work was lost. Check the kernel log for the cause; unless it was the program, run the vendor's diagnostics.",
		}
		if i.Name == device.EventHang {
			f.Severity = Info
			f.Reason = fmt.Sprintf("a program hung or accessed invalid memory %s ago", span(t.now.Sub(i.Last)))
			f.Action = "Restart the program; debug it if this recurs. The device is fine unless different programs fail on it."
		}
		if i.Count > 1 {
			f.Reason += fmt.Sprintf(", %s in total", count(float64(i.Count), "line"))
		}
		out = append(out, f)
	}
	return out
}
