//go:build linux

package neuron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/openfiles"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// users are the processes that have devices open. It is immutable.
type users struct {
	files  map[int][]openfiles.File // by device; one file per process, by PID
	names  map[uint32]string
	denied int
	err    error
}

// lookAge is how old a process scan may be for a slow read. Devices and cores are read at
// about the same time, and one scan serves them all.
const lookAge = 5 * time.Second

// look returns which processes use the devices, scanned again for a slow read.
func (r *Reader) look(ctx context.Context, tier device.Tier) users {
	maxAge := 365 * 24 * time.Hour
	if tier >= device.Slow {
		maxAge = lookAge
	}
	return r.users.get(ctx, r.opts.Now, maxAge, func() users { return findUsers(r.opts.Root) })
}

func findUsers(root string) users {
	u := users{files: map[int][]openfiles.File{}, names: map[uint32]string{}}
	proc := filepath.Join(root, "proc")
	files, denied, err := openfiles.Below(proc, Facts.DeviceFiles...)
	if err != nil {
		u.err = fmt.Errorf("cannot find the processes on the devices: %w", err)
	}
	u.denied = denied
	for _, f := range files {
		n, ok := numbered(strings.TrimPrefix(f.Path, "/dev/"), "neuron")
		if !ok || slices.ContainsFunc(u.files[n], func(o openfiles.File) bool { return o.PID == f.PID }) {
			continue
		}
		u.files[n] = append(u.files[n], f)
		if _, ok := u.names[f.PID]; !ok {
			u.names[f.PID] = command(root, f.PID)
		}
	}
	for _, files := range u.files {
		slices.SortFunc(files, func(a, b openfiles.File) int { return cmp.Compare(a.PID, b.PID) })
	}
	return u
}

func command(root string, pid uint32) string {
	name, _ := sysfs.Dir(root).Join("proc", strconv.FormatUint(uint64(pid), 10)).Text("comm") // the process may have exited
	return name
}

// corePlace is one core of a device with of cores.
type corePlace struct{ place, of int }

// processes returns the processes on a device, or on one of its cores. Only neuron-monitor
// reports which core a process uses; without it a process may use every core of its device.
func (u users) processes(root string, index int, rep *report, core *corePlace) []device.Process {
	list := map[uint32]device.Process{}
	for _, f := range u.files[index] {
		to, err := os.Readlink(filepath.Join(root, "proc", strconv.FormatUint(uint64(f.PID), 10), "fd", strconv.Itoa(f.FD)))
		if err != nil || to != f.Path { // the file was closed since
			continue
		}
		list[f.PID] = device.Process{PID: f.PID, Name: u.names[f.PID], Type: "compute"}
	}
	if rep != nil {
		known := list
		if core != nil && rep.complete {
			list = map[uint32]device.Process{}
		}
		for _, rt := range rep.runtimes {
			memory, on := rt.on(index, core, rep.perDevice)
			p, seen := known[rt.pid]
			if !on || !seen && !hidden(root, rt.pid) {
				continue
			}
			if !seen {
				p = device.Process{PID: rt.pid, Name: command(root, rt.pid), Type: "compute"}
			}
			p.MemoryUsed = memory
			list[rt.pid] = p
		}
	}
	var sorted []device.Process
	for _, p := range list {
		sorted = append(sorted, p)
	}
	slices.SortFunc(sorted, func(a, b device.Process) int { return cmp.Compare(a.PID, b.PID) })
	return sorted
}

// hidden reports whether a process exists whose files may not be read. If neuron-monitor
// reports a PID that is visible but does not have a device open, the PID is from another
// PID namespace and belongs to an unrelated process here.
func hidden(root string, pid uint32) bool {
	dir, err := os.Open(filepath.Join(root, "proc", strconv.FormatUint(uint64(pid), 10), "fd"))
	if err == nil {
		dir.Close()
	}
	return errors.Is(err, fs.ErrPermission)
}
