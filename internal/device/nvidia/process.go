//go:build linux

package nvidia

import (
	"cmp"
	"slices"
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

func (g *gpu) readProcesses() {
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
			if _, sampled := g.smUtil[row.pid]; g.smFresh && !sampled {
				g.smUtil[row.pid] = device.Of(0) // the driver omits idle processes
			}
			p.Utilization = g.smUtil[row.pid] // absent for a process that started since
			list = append(list, p)
		}
	}
	g.smFresh = false
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
func (g *gpu) readProcessUtilization() {
	const sym = "nvmlDeviceGetProcessUtilization"
	g.smUtil, g.smFresh = nil, false
	var count uint32
	switch g.try(sym, g.Handle, 0, uintptr(unsafe.Pointer(&count)), uintptr(g.smSeen)) {
	case errInsufficientSize:
	case success, errNotFound:
		g.smUtil, g.smFresh = map[uint32]device.Value{}, true // nothing ran
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
	g.smUtil, g.smFresh = map[uint32]device.Value{}, true
	newest := map[uint32]uint64{}
	for _, row := range rows {
		if row.timestamp == 0 || row.timestamp < newest[row.pid] {
			continue
		}
		newest[row.pid] = row.timestamp
		g.smUtil[row.pid] = device.Of(float64(row.sm) / percent)
		g.smSeen = max(g.smSeen, row.timestamp)
	}
}
