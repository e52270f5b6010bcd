//go:build linux

package check

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/openfiles"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// task is a process in uninterruptible sleep.
type task struct {
	pid      int
	name     string
	started  uint64 // clock ticks since boot, because pids are reused
	switches uint64 // voluntary and involuntary context switches
}

// stat is the part of /proc/<pid>/stat that is needed.
type stat struct {
	name    string
	state   byte
	flags   uint64
	started uint64
}

const kernelThread = 0x00200000 // PF_KTHREAD of linux/sched.h

// parseStat parses "pid (name) state ...". The name may contain blanks and parentheses.
func parseStat(text string) (stat, bool) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return stat{}, false
	}
	f := strings.Fields(text[end+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, false
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	if err != nil {
		return stat{}, false
	}
	started, err := strconv.ParseUint(f[19], 10, 64)
	return stat{text[open+1 : end], f[0][0], flags, started}, err == nil
}

// parseSwitches sums the two context switch counters in /proc/<pid>/status.
func parseSwitches(text []byte) (sum uint64, ok bool) {
	for line := range bytes.Lines(text) {
		if key, value, has := strings.Cut(string(line), ":"); has && strings.HasSuffix(key, "voluntary_ctxt_switches") {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return 0, false
			}
			sum, ok = sum+n, true
		}
	}
	return sum, ok
}

// processes returns the /proc directories of all processes.
func (h *host) processes() []sysfs.Dir {
	return slices.DeleteFunc(h.proc("").Glob("[0-9]*"), func(d sysfs.Dir) bool {
		_, err := strconv.Atoi(d.Base())
		return err != nil
	})
}

// asleep returns the processes in uninterruptible sleep. Kernel threads are left out: some
// sleep that way by design, and the kernel reports those that should not. Frozen processes
// are left out too.
func (h *host) asleep(among func(pid int) bool) map[int]task {
	out := map[int]task{}
	for _, d := range h.processes() {
		pid, _ := strconv.Atoi(d.Base()) // the glob matches digits only
		if !among(pid) {
			continue
		}
		text, err := d.Text("stat")
		if err != nil {
			continue // the process has exited
		}
		s, ok := parseStat(text)
		if !ok || s.state != 'D' || s.flags&kernelThread != 0 {
			continue
		}
		if w, _ := d.Text("wchan"); strings.Contains(w, "refrigerator") {
			continue
		}
		status, err := d.Bytes("status", 16<<10)
		if err != nil {
			continue
		}
		if n, ok := parseSwitches(status); ok {
			out[pid] = task{pid, s.name, s.started, n}
		}
	}
	return out
}

var hungTask = regexp.MustCompile(`INFO: task .{1,16}:(\d{1,10}) blocked for more than (\d{1,9}) seconds`)

// stuckProcesses looks twice: a process that waits for a disk is in the same state but makes
// progress in between. A problem is critical only if the kernel itself reports the process
// as hung (for two minutes by default) and the process has a device open.
func stuckProcesses(ctx context.Context, h *host) outcome {
	first := h.asleep(func(int) bool { return true })
	if len(first) == 0 {
		return fine("no process in uninterruptible sleep")
	}
	select {
	case <-ctx.Done():
		return unknown(ctx.Err(), "")
	case <-time.After(h.StuckFor):
	}
	second := h.asleep(func(pid int) bool { _, was := first[pid]; return was })
	users := map[int]string{}
	files, _, _ := openfiles.Below(string(h.proc("")), h.Vendors.DeviceFiles()...) // processes that may not be inspected count as using no device
	for _, f := range files {
		users[int(f.PID)] = f.Path
	}
	hung := map[int]string{}
	log, _ := h.log() // without the log nothing is critical
	for _, l := range log {
		if m := hungTask.FindStringSubmatch(l.text); m != nil {
			pid, _ := strconv.Atoi(m[1])
			hung[pid] = m[2]
		}
	}
	type stuck struct {
		Problem

		rank int
	}
	var list []stuck
	for pid, t := range second {
		if first[pid] != t {
			continue // the process made progress, or the pid was reused
		}
		p := stuck{Problem{
			Warning, fmt.Sprintf("process %d (%s)", pid, shorten(t.name)),
			fmt.Sprintf("in uninterruptible sleep for at least %s", h.StuckFor), "The process waits for a disk or a file server: see disk.mounts and the kernel log.",
		}, 2}
		if file, ok := users[pid]; ok {
			p.rank = 1
			p.Reason += ", with " + shorten(file) + " open"
			p.Action = "The process holds its device until it exits or the machine is rebooted: drain the node."
		}
		if seconds, ok := hung[pid]; ok {
			p.Reason += ", and the kernel reports the process as blocked for more than " + seconds + " s"
			if p.rank == 1 {
				p.rank, p.Status = 0, Critical
			}
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b stuck) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Subject, b.Subject)) })
	var bad []Problem
	for _, s := range list {
		bad = append(bad, s.Problem)
	}
	return found(capped(bad), "%d processes waited and made progress", len(first))
}
