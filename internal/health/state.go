package health

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// A device that misses a tick or two may have been busy; one that is lost is so at once.
const lateFor = 30 * time.Second

func lost(t trail) []Finding {
	if t.last.Up {
		return nil
	}
	if t.last.Reset {
		return []Finding{{
			Rule: "gpu.needs_reset", Severity: Critical, Reason: "the driver refuses it until it is reset",
			Action: "Take work off the device and reset it; if that fails, reboot the machine.",
		}}
	}
	since, ok := throughout(t.all, t.now, lateFor, func(d *Device) bool { return !d.Up })
	return one(Finding{
		Rule: "gpu.lost", Severity: Critical, Since: since, Evidence: nonEmpty(t.last.Problem),
		Reason: "it has not answered for " + span(t.now.Sub(since)),
		Action: "Drain the node and reboot it. If the device does not come back, look at its power and seat, and have it replaced.",
	}, ok || t.last.Lost)
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// recovery is what the driver itself asks for, by the codes of NVML field 230.
func recovery(t trail) []Finding {
	code, ok := t.last.RecoveryAction.Get()
	if !ok || code == 0 {
		return nil
	}
	f := Finding{Rule: "gpu.recovery", Key: fmt.Sprintf("%.0f", code), Severity: Critical}
	switch code {
	case 1:
		f.Reason, f.Action = "the driver asks for a reset of the device", "Take work off the device and reset it."
	case 2:
		f.Reason, f.Action = "the driver asks for a reboot of the machine", "Drain the node and reboot it."
	case 3:
		f.Reason, f.Action = "the driver asks to end work that spans several devices", "End jobs that use this device together with others; jobs on this device alone may go on."
	case 4:
		f.Reason, f.Action = "the driver asks for a reset once the device is drained", "Put nothing new on the device, let its work end, and reset it."
	case 5:
		f.Reason, f.Action = "the driver asks for the recovery of its IMEX domain", "End the jobs that use memory of other nodes over NVLink, and restart the IMEX service on all of them."
	case 6:
		f.Reason, f.Action = "the driver asks for a reset of the bus", "Drain the node, and reset the GPUs of the machine together or reboot it."
	case 7:
		f.Reason, f.Action = "the driver asks for a reboot of the machine", "Drain the node and reboot it."
	default:
		f.Reason, f.Action = fmt.Sprintf("the driver asks for a recovery action that is not known here, code %.0f", code), "Look it up in the vendor's documentation of recovery actions."
	}
	return []Finding{f}
}

// Memory that nobody has: what a driver keeps for itself is below orphanedBytes, and a
// process that has just ended is cleaned up after within seconds. Only NVIDIA's driver
// lists every process; where it may not, in a container that does not see the host's, a
// device that was given to somebody is his.
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
		Reason: fmt.Sprintf("%.1f GiB of its memory are in use and no process has them, for %s", used/(1<<30), span(t.now.Sub(since))),
		Action: "Look for processes that cannot end (state D) with the device open. If there are none, reset the device.",
	}, ok)
}

// A heartbeat that stands still is a firmware that hangs. One moment later it may just
// not have beaten yet.
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
		Reason: fmt.Sprintf("its firmware has not shown a sign of life for %s", span(t.now.Sub(since))),
		Action: "Take work off the device and reset it.",
	}, ok)
}

// status is the vendor's own word; a reset in progress is over in a minute.
const statusFor = time.Minute

func status(t trail) []Finding {
	since, ok := t.throughout(statusFor, func(d *Device) bool { return set(d.Status) })
	code, _ := t.last.Status.Get()
	return one(Finding{
		Rule: "gpu.status", Severity: Critical, Since: since,
		Reason: fmt.Sprintf("its driver reports status %.0f, which is not operational, for %s", code, span(t.now.Sub(since))),
		Action: "Look at the kernel's log for what its driver says, and reset the device.",
	}, ok)
}

// resets compares counts over the reset itself, at which all other counters begin anew.
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
			Reason: fmt.Sprintf("it was reset %s in the last %s", count(now-before, "time"), span(t.now.Sub(s.at))),
			Action: "Work that was on it is lost. Look at the kernel's log for why.",
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

// resetCounts says how often there was which reset: one for heat is another trouble than
// one that somebody asked for.
func resetCounts(s *device.Sample) []string {
	var out []string
	for _, r := range s.Resets {
		if v, ok := r.Count.Get(); ok && v > 0 {
			out = append(out, fmt.Sprintf("%s: %.0f in all", r.Type, v))
		}
	}
	return out
}

// incidents judges what the kernel's log said in the last minutes of a device whose
// driver counts no resets. Errors of memory are counted by the device.
func incidents(t trail) []Finding {
	var out []Finding
	for _, i := range t.last.Incidents {
		if t.now.Sub(i.Last) >= Span {
			continue
		}
		f := Finding{
			Rule: i.Name, Key: "log", Since: i.Last, Evidence: nonEmpty(i.Message), Workloads: i.Workloads, Severity: Warning,
			Reason: fmt.Sprintf("the driver reset it %s ago", span(t.now.Sub(i.Last))),
			Action: "Work that was on it is lost. Look at the kernel's log for why; if it was not the program that ran, run the vendor's diagnosis.",
		}
		if i.Name == device.EventHang {
			f.Severity = Info
			f.Reason = fmt.Sprintf("a program hung on it, or touched memory that it may not, %s ago", span(t.now.Sub(i.Last)))
			f.Action = "Start the program again; look at it if it happens again. The device is fine unless different programs fail on it."
		}
		if i.Count > 1 {
			f.Reason += fmt.Sprintf(", %s in all", count(float64(i.Count), "line"))
		}
		out = append(out, f)
	}
	return out
}
