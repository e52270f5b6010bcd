//go:build linux

package live

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// Reasons why a process is not traced.
const (
	noLibrary        = "no_library"
	permissionDenied = "permission_denied"
	attachFailed     = "attach_failed"
)

// view returns the libraries and the processes on a device that are not traced. The latter
// are looked at once more first, because they may have just started.
func (d *discovery) view(now time.Time, gpuPIDs []uint32) (libraries []tracer.Library, untraced []tracer.Untraced) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.files {
		if (l.link != nil || l.named) && !slices.Contains(libraries, l.Library) {
			libraries = append(libraries, l.Library)
		}
	}
	slices.SortFunc(libraries, func(a, b tracer.Library) int {
		return strings.Compare(a.Kind+a.Path+a.BuildID, b.Kind+b.Path+b.BuildID)
	})
	for _, pid := range gpuPIDs {
		p := d.processes[pid]
		if p == nil || p.untraced() != nil {
			if p = d.meet(pid); p != nil && !d.closed {
				uptime, _ := target.ReadUptime(d.o.Proc)
				d.look(p, now, uptime)
			}
		}
		if p == nil {
			untraced = append(untraced, tracer.Untraced{PID: pid, Reason: noLibrary, Detail: "no such process in our pid namespace"})
		} else if u := p.untraced(); u != nil {
			untraced = append(untraced, *u)
		}
	}
	return libraries, untraced
}

// beyond returns the number of files rejected because of maxFiles.
func (d *discovery) beyond() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused
}

// untraced says why a process is not traced; nil if it is.
func (p *process) untraced() *tracer.Untraced {
	u := &tracer.Untraced{PID: p.PID, Reason: noLibrary, Detail: "no libcuda mapped"}
	if p.problem != nil {
		u.Detail = p.problem.Error()
		if errors.Is(p.problem, fs.ErrPermission) {
			u.Reason = permissionDenied
		} else if errors.Is(p.problem, fs.ErrNotExist) || errors.Is(p.problem, syscall.ESRCH) {
			u.Detail = "the process has exited"
		}
		return u
	}
	for _, l := range p.libraries {
		switch {
		case l.Kind != tracer.LibraryCUDA:
		case l.link != nil:
			return nil
		case l.denied:
			u.Reason, u.Detail = permissionDenied, l.Problem
		default:
			u.Reason, u.Detail = attachFailed, l.Problem
		}
	}
	return u
}

// inspected returns the processes that have loaded NCCL's Inspector plugin.
func (d *discovery) inspected() []uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	var pids []uint32
	for pid, p := range d.processes {
		if p.inspected {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// process returns the name of a process and whether it is older than the tracer.
func (d *discovery) process(pid uint32) (name string, older, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.processes[pid]
	if p == nil {
		return "", false, false
	}
	return p.Name, p.older, true
}
