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

// hostProcesses says whether proc shows the numbers that the kernel counts by. There the
// second process is the one that makes the kernel's threads, in any other pid namespace it
// is not.
func hostProcesses(proc string) probe.Feature {
	f := probe.Feature{Name: "host_processes"}
	p, err := target.ReadProcess(proc, 2)
	if f.OK = err == nil && p.Name == "kthreadd"; !f.OK {
		f.Reason = proc + " does not show the processes of the host: whose a call was, and what other containers run, is not known (hostPID: true, --pid=host)"
	}
	return f
}

// has says whether a feature is there.
func has(features []probe.Feature, name string) bool {
	return slices.ContainsFunc(features, func(f probe.Feature) bool { return f.Name == name && f.OK })
}

// alive is asked where the kernel does not tell that a process ended. In another pid
// namespace than the host's, the numbers of the kernel are not those of proc: who is not
// there may live, and would not be counted any more once it is forgotten.
func (t *Tracer) alive(pid uint32) bool {
	_, err := os.Stat(filepath.Join(t.o.Proc, strconv.FormatUint(uint64(pid), 10)))
	return err == nil || !errors.Is(err, os.ErrNotExist)
}
