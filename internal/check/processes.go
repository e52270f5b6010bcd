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
	started  uint64 // in clock ticks after boot: pids are used again
	switches uint64 // how often it gave up, or lost, a processor
}

// stat is what is needed of /proc/<pid>/stat.
type stat struct {
	name    string
	state   byte
	flags   uint64
	started uint64
}

const kernelThread = 0x00200000 // PF_KTHREAD of linux/sched.h

// parseStat reads "pid (name) state ...". The name may have blanks and brackets.
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

// parseSwitches adds up the two counters in /proc/<pid>/status.
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

// processes returns the folders of all processes.
func (h *host) processes() []sysfs.Dir {
	return slices.DeleteFunc(h.proc("").Glob("[0-9]*"), func(d sysfs.Dir) bool {
		_, err := strconv.Atoi(d.Base())
		return err != nil
	})
}

// asleep returns the processes that cannot be interrupted now. Threads of the kernel are
// left out: some sleep so by design, and the kernel tells of those that should not. So are
// processes that somebody froze.
func (h *host) asleep(among func(pid int) bool) map[int]task {
	out := map[int]task{}
	for _, d := range h.processes() {
		pid, _ := strconv.Atoi(d.Base()) // it is a number
		if !among(pid) {
			continue
		}
		text, err := d.Text("stat")
		if err != nil {
			continue // it has ended
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

// stuckProcesses looks twice: a process that waits for a disk is in the same state, but has
// moved a moment later. Only what the kernel itself reports to have hung for its two
// minutes is critical, and only with a device open.
func stuckProcesses(ctx context.Context, h *host) outcome {
	first := h.asleep(func(int) bool { return true })
	if len(first) == 0 {
		return fine("no process waits without end")
	}
	select {
	case <-ctx.Done():
		return unknown(ctx.Err(), "")
	case <-time.After(h.StuckFor):
	}
	second := h.asleep(func(pid int) bool { _, was := first[pid]; return was })
	users := map[int]string{}
	files, _, _ := openfiles.Below(string(h.proc("")), h.Vendors.DeviceFiles()...) // those we may not see are of no device then
	for _, f := range files {
		users[int(f.PID)] = f.Path
	}
	hung := map[int]string{}
	log, _ := h.log() // without it nothing is critical
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
			continue // it moved, or is another one
		}
		p := stuck{Problem{
			Warning, fmt.Sprintf("process %d (%s)", pid, shorten(t.name)),
			fmt.Sprintf("it has waited for at least %s and cannot be interrupted", h.StuckFor), "It waits for a disk or a file server: look at disk.mounts and the kernel's log.",
		}, 2}
		if file, ok := users[pid]; ok {
			p.rank = 1
			p.Reason += ", with " + shorten(file) + " open"
			p.Action = "It keeps its device until the machine is rebooted, if it does not end by itself: drain the node."
		}
		if seconds, ok := hung[pid]; ok {
			p.Reason += ", and the kernel reports it blocked for more than " + seconds + " s"
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
	return found(capped(bad), "%d processes wait, and move", len(first))
}
