//go:build linux

package live

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/gpumeter/gpumeter/internal/tracer/probe"
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// hostProcesses reports whether proc is that of the host's pid namespace, whose pids the
// kernel programs use. Only there is pid 2 kthreadd.
func hostProcesses(proc string) probe.Feature {
	f := probe.Feature{Name: "host_processes"}
	p, err := target.ReadProcess(proc, 2)
	if f.OK = err == nil && p.Name == "kthreadd"; !f.OK {
		f.Reason = proc + " is not the host's pid namespace: callers and processes of other containers are unknown (hostPID: true, --pid=host)"
	}
	return f
}

// has reports whether a feature is available.
func has(features []probe.Feature, name string) bool {
	return slices.ContainsFunc(features, func(f probe.Feature) bool { return f.Name == name && f.OK })
}

// alive is used if the kernel does not report exits. Outside the host's pid namespace the
// kernel's pids are not those of proc: a process that is missing there may be alive, and would
// not be counted any more once it is forgotten.
func (t *Tracer) alive(pid uint32) bool {
	_, err := os.Stat(filepath.Join(t.o.Proc, strconv.FormatUint(uint64(pid), 10)))
	return err == nil || !errors.Is(err, os.ErrNotExist)
}
