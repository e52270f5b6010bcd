//go:build linux

package nvidia

import (
	"cmp"
	"slices"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
)

// processLists are the driver's process lists, by kind. A process that both computes and
// renders is on two lists and is reported once, under the first.
var processLists = []struct{ sym, kind string }{
	{"nvmlDeviceGetComputeRunningProcesses_v3", "compute"},
	{"nvmlDeviceGetMPSComputeRunningProcesses_v3", "mps"},
	{"nvmlDeviceGetGraphicsRunningProcesses_v3", "graphics"},
}

// maxProcesses bounds the buffers that the driver may request.
const maxProcesses = 4096

// sampleEvery is the shortest time between two readings of per-process utilization. The
// driver samples at least twice in that time, every 200 ms on an H200, so a process without
// a new sample was idle.
const sampleEvery = time.Second / 2

// clockSlack is how far ahead of the clock a sample may be before the clock must have been
// set back: the driver stamps samples with the time of day.
const clockSlack = 5 * time.Second

// readProcesses lists the processes. How much each one ran is read at slow ticks and, if
// several processes divide the GPU, as often as its utilization: an older division of a
// newer utilization charges the wrong process.
func (g *gpu) readProcesses(tier device.Tier) {
	g.sample.Processes = nil
	if g.mig {
		return // each instance reports its own processes
	}
	seen := map[uint32]bool{}
	var list []device.Process
	for _, l := range processLists {
		for _, row := range g.processList(l.sym) {
			if seen[row.pid] {
				continue
			}
			seen[row.pid] = true
			p := device.Process{PID: row.pid, Type: l.kind}
			if row.usedGPUMemory != naMemory {
				p.MemoryUsed = device.Of(float64(row.usedGPUMemory))
			}
			list = append(list, p)
		}
	}
	now := g.r.opts.Now()
	if g.parent == 0 && (tier >= device.Slow || len(list) > 1 && now.Sub(g.smRead) >= sampleEvery) {
		g.readProcessUtilization(now)
		for pid := range seen {
			// The driver omits idle processes, but a process that has just started has no
			// sample yet.
			if _, sampled := g.smUtil[pid]; !sampled && g.smUtil != nil && (g.listed == nil || g.listed[pid]) {
				g.smUtil[pid] = device.Of(0)
			}
		}
	}
	for i := range list {
		list[i].Utilization = g.smUtil[list[i].PID]
	}
	g.listed = seen
	slices.SortFunc(list, func(a, b device.Process) int { return cmp.Compare(a.PID, b.PID) })
	g.sample.Processes = list
}

// processList requests a few more entries than the driver counted, because processes start
// and exit between the two calls.
func (g *gpu) processList(sym string) []processInfo {
	var count uint32
	r := g.try(sym, g.Handle, uintptr(unsafe.Pointer(&count)), 0)
	if r != errInsufficientSize || count == 0 {
		return nil // success with no buffer means an empty list
	}
	count = min(count+8, maxProcesses)
	rows := make([]processInfo, count)
	if !g.Do(sym, 0, g.Handle, uintptr(unsafe.Pointer(&count)), uintptr(unsafe.Pointer(&rows[0]))) {
		return nil
	}
	return rows[:min(int(count), len(rows))]
}

// readProcessUtilization reads the ratio of time each process had kernels running, as of
// its newest sample.
func (g *gpu) readProcessUtilization(now time.Time) {
	const sym = "nvmlDeviceGetProcessUtilization"
	since := max(now.Sub(g.smRead), sampleEvery) // monotonic
	g.smUtil, g.smRead = nil, now
	latest := uint64(now.Add(clockSlack).UnixMicro())
	if g.smSeen > latest { // the clock was set back: every new sample is older than the newest one seen
		g.smSeen = uint64(now.Add(-since).UnixMicro())
	}
	var count uint32
	switch g.try(sym, g.Handle, 0, uintptr(unsafe.Pointer(&count)), uintptr(g.smSeen)) {
	case errInsufficientSize:
	case success, errNotFound:
		g.smUtil = map[uint32]device.Value{} // nothing ran
		return
	default:
		return
	}
	count = min(count, maxProcesses)
	if count == 0 {
		return
	}
	rows := make([]processUtil, count)
	switch g.try(sym, g.Handle, uintptr(unsafe.Pointer(&rows[0])), uintptr(unsafe.Pointer(&count)), uintptr(g.smSeen)) {
	case success:
		rows = rows[:min(int(count), len(rows))]
	case errNotFound:
		rows = nil // the driver left zeroed rows in the buffer
	default:
		return
	}
	g.smUtil = map[uint32]device.Value{}
	newest := map[uint32]uint64{}
	for _, row := range rows {
		if row.timestamp == 0 || row.timestamp < newest[row.pid] || row.timestamp > latest {
			continue // a sample from before the clock was set back is not the newest
		}
		newest[row.pid] = row.timestamp
		g.smUtil[row.pid] = device.Of(float64(row.sm) / percent)
		g.smSeen = max(g.smSeen, row.timestamp)
	}
}
