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

// users are the processes that have devices open. It is never changed.
type users struct {
	files  map[int][]openfiles.File // by device, one of each process, by pid
	names  map[uint32]string
	denied int
	err    error
}

// lookAge is how old a look at all processes may be for a slow reading. Devices and cores
// are read at about the same time, and one look serves them all.
const lookAge = 5 * time.Second

// look returns who uses the devices, found anew for a slow reading.
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
		u.err = fmt.Errorf("cannot see who uses the devices: %w", err)
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
	name, _ := sysfs.Dir(root).Join("proc", strconv.FormatUint(uint64(pid), 10)).Text("comm") // it may have ended
	return name
}

// corePlace is one core of a device that has Of.
type corePlace struct{ place, of int }

// processes returns who is on a device, or on a core of it. Which core a process uses only
// neuron-monitor says; without it a process may use every core of its device.
func (u users) processes(root string, index int, rep *report, core *corePlace) []device.Process {
	list := map[uint32]device.Process{}
	for _, f := range u.files[index] {
		to, err := os.Readlink(filepath.Join(root, "proc", strconv.FormatUint(uint64(f.PID), 10), "fd", strconv.Itoa(f.FD)))
		if err != nil || to != f.Path { // it has ended since
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

// hidden reports whether a process is there whose files we may not see. A pid that
// neuron-monitor names and that is not seen to have a device open is of another pid
// namespace: here it is somebody else's.
func hidden(root string, pid uint32) bool {
	dir, err := os.Open(filepath.Join(root, "proc", strconv.FormatUint(uint64(pid), 10), "fd"))
	if err == nil {
		dir.Close()
	}
	return errors.Is(err, fs.ErrPermission)
}
