//go:build linux

package amd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// maxProcesses bounds the number of processes examined.
const maxProcesses = 4096

// processDirs returns KFD's process directories, with their PIDs.
func (g *gpu) processDirs() (dirs []sysfs.Dir, pids []uint32, err error) {
	dir := g.opts.sys().Join(kfdDir, "proc")
	g.at(dir, "")
	entries, err := os.ReadDir(string(dir))
	for _, e := range entries[:min(len(entries), maxProcesses)] {
		if pid, ok := parsePID(e.Name()); ok {
			dirs, pids = append(dirs, dir.Join(e.Name())), append(pids, pid)
		}
	}
	return dirs, pids, err
}

// readQueues finds the processes that have a queue on the GPU, and those with additional
// contexts below their directory. It runs at the slow tier: with many GPUs there are many
// directories, most for processes on other GPUs.
func (g *gpu) readQueues() {
	g.queued, g.contexts = map[sysfs.Dir]bool{}, map[sysfs.Dir][]sysfs.Dir{}
	if g.gpuID == 0 {
		return
	}
	dirs, _, err := g.processDirs()
	if err != nil {
		return // readProcesses reports the error
	}
	for _, dir := range dirs {
		g.contexts[dir] = dir.Glob("context_*")
		for _, d := range append([]sysfs.Dir{dir}, g.contexts[dir]...) {
			g.queued[d] = g.hasQueue(d)
		}
	}
}

// readProcesses reads which processes compute on the GPU or partition. KFD lists every
// process under every GPU that it opened, so only processes with memory or a queue count as
// users.
func (g *gpu) readProcesses() {
	g.sample.Processes = nil
	if g.gpuID == 0 {
		return // no KFD, or each partition has its own list
	}
	dirs, pids, err := g.processDirs()
	if err != nil {
		g.fail(err)
		return
	}
	users := map[uint32]*device.Process{}
	for i, dir := range dirs {
		g.readContexts(dir, pids[i], users)
	}
	var list []device.Process
	used := 0.0
	for _, p := range users {
		p.Name, _ = g.opts.proc().Text(fmt.Sprintf("%d/comm", p.PID)) // the process may have exited
		list = append(list, *p)
		v, _ := p.MemoryUsed.Get()
		used += v
	}
	slices.SortFunc(list, func(a, b device.Process) int { return cmp.Compare(a.PID, b.PID) })
	g.sample.Processes = list
	if g.part() {
		// The driver reports used memory only for the whole GPU.
		g.sample.Memory.Used = device.Of(used)
		g.sample.Memory.Free = left(g.sample.Memory.Total, g.sample.Memory.Used)
	}
}

// parsePID parses the name of a process directory: its PID, or "pid:7-id:1" if the same
// process uses KFD a second time.
func parsePID(name string) (uint32, bool) {
	if rest, ok := strings.CutPrefix(name, "pid:"); ok {
		name, _, _ = strings.Cut(rest, "-")
	}
	pid, err := strconv.ParseUint(name, 10, 32)
	return uint32(pid), err == nil && pid > 0
}

// readContexts reads the usage of the GPU by one process and by its additional contexts,
// which newer kernels place below it.
func (g *gpu) readContexts(dir sysfs.Dir, pid uint32, users map[uint32]*device.Process) {
	for _, d := range append([]sysfs.Dir{dir}, g.contexts[dir]...) {
		memory := g.ended(d, fmt.Sprintf("vram_%d", g.gpuID))
		if v, _ := memory.Get(); v == 0 && !g.queued[d] {
			continue
		}
		p := users[pid]
		if p == nil {
			p = &device.Process{PID: pid, Type: "compute"}
			users[pid] = p
		}
		p.MemoryUsed = add(p.MemoryUsed, memory)
		busy := g.ended(d, fmt.Sprintf("stats_%d/cu_occupancy", g.gpuID))
		p.Occupancy = add(p.Occupancy, busy.Ratio(device.Of(float64(g.cus))))
		if v, ok := p.Occupancy.Get(); ok && v > 1 {
			p.Occupancy = device.Of(1) // waves of two contexts share compute units
		}
	}
}

// hasQueue reports whether a process has a queue on the GPU.
func (g *gpu) hasQueue(d sysfs.Dir) bool {
	id := device.Of(float64(g.gpuID))
	for _, q := range d.Glob("queues/[0-9]*") {
		if g.ended(q, "gpuid") == id {
			return true
		}
	}
	return false
}

// ended reads a number from the files of a process, which may exit meanwhile.
func (g *gpu) ended(d sysfs.Dir, name string) device.Value {
	v, err := d.Float(g.at(d, name))
	if err != nil {
		if !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ESRCH) {
			g.fail(err)
		}
		return device.Value{}
	}
	return device.Of(v)
}
