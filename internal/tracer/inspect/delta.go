//go:build linux

package inspect

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// processSince returns the activity of a process since before, which may be nil. Gauges keep their
// current value.
func processSince(now, before *tracer.Process) tracer.Process {
	d := *now
	if before == nil || before.Since.Sub(now.Since).Abs() >= time.Second { // the PID was reused
		return d
	}
	d.Devices = make([]tracer.Device, len(now.Devices))
	for i, x := range now.Devices {
		for _, b := range before.Devices {
			if b.Ordinal == x.Ordinal {
				x.Busy, x.Wait, x.Bubble = timeSince(x.Busy, b.Busy), timeSince(x.Wait, b.Wait), timeSince(x.Bubble, b.Bubble)
			}
		}
		d.Devices[i] = x
	}
	d.Ops = make([]tracer.OpStat, len(now.Ops))
	for i, x := range now.Ops {
		for _, b := range before.Ops {
			if b.Op == x.Op && b.Device == x.Device && b.Kind == x.Kind {
				x.Time, x.Wait = x.Time.Sub(b.Time), timeSince(x.Wait, b.Wait)
				x.Bytes, x.Errors = countSince(x.Bytes, b.Bytes), errorsSince(x.Errors, b.Errors)
			}
		}
		d.Ops[i] = x
	}
	d.Kernels = make([]tracer.Kernel, len(now.Kernels))
	for i, x := range now.Kernels {
		for _, b := range before.Kernels {
			if b.Name == x.Name && b.Symbol == x.Symbol && b.Device == x.Device {
				x.Count, x.Time = countSince(x.Count, b.Count), timeSince(x.Time, b.Time)
			}
		}
		d.Kernels[i] = x
	}
	d.Comms = make([]tracer.Comm, len(now.Comms))
	for i, x := range now.Comms {
		for _, b := range before.Comms {
			if sameComm(&b, &now.Comms[i]) {
				x = commSince(now.Comms[i], b)
			}
		}
		d.Comms[i] = x
	}
	d.Host.RunQueue, d.Host.Blocked = timeSince(now.Host.RunQueue, before.Host.RunQueue), timeSince(now.Host.Blocked, before.Host.Blocked)
	d.Host.RunQueueInCall = timeSince(now.Host.RunQueueInCall, before.Host.RunQueueInCall)
	d.Host.BlockedInCall = timeSince(now.Host.BlockedInCall, before.Host.BlockedInCall)
	d.Host.Switches = countSince(now.Host.Switches, before.Host.Switches)
	return d
}

// sameComm reports whether a and b are the same communicator of a process. Communicators older than
// the tracer have no ID; only Key distinguishes them.
func sameComm(a, b *tracer.Comm) bool {
	if a.Key != "" || b.Key != "" {
		return a.Key == b.Key
	}
	return a.ID != "" && a.ID == b.ID && a.Rank == b.Rank && a.Device == b.Device
}

func commSince(now, before tracer.Comm) tracer.Comm {
	d := now
	d.BarrierWait = now.BarrierWait.Sub(before.BarrierWait)
	d.Ops = make([]tracer.CollOp, len(now.Ops))
	for i, x := range now.Ops {
		for _, b := range before.Ops {
			if b.Op == x.Op && b.Type == x.Type && b.Reduce == x.Reduce && b.Peer == x.Peer {
				x.Time, x.Size, x.Errors = x.Time.Sub(b.Time), x.Size.Sub(b.Size), countSince(x.Errors, b.Errors)
			}
		}
		d.Ops[i] = x
	}
	return d
}

func timeSince(now, before time.Duration) time.Duration { return max(0, now-before) }

func countSince(now, before uint64) uint64 { return now - min(now, before) }

func errorsSince(now, before []tracer.CodeCount) []tracer.CodeCount {
	var list []tracer.CodeCount
	for _, x := range now {
		for _, b := range before {
			if b.Code == x.Code {
				x.Count = countSince(x.Count, b.Count)
			}
		}
		if x.Count > 0 {
			list = append(list, x)
		}
	}
	return list
}
