//go:build linux

package live

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// In a container without the host's processes, the kernel's pids must not be taken for pids of
// this namespace.
func TestHostProcesses(t *testing.T) {
	m := newMachine(t, Options{})
	if f := hostProcesses(m.proc); f.OK || f.Reason == "" {
		t.Errorf("there is no second process: %+v", f)
	}
	m.start(2, time.Minute)
	if f := hostProcesses(m.proc); f.OK {
		t.Errorf("the second process is python: %+v", f)
	}
	m.write("2/stat", "2 (kthreadd) S 0 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0")
	if f := hostProcesses(m.proc); !f.OK || f.Reason != "" {
		t.Errorf("%+v", f)
	}
}

// A process that is not visible counts as alive until the kernel reports its exit: once
// forgotten, its calls would be lost.
func TestUnseenProcess(t *testing.T) {
	m := newMachine(t, Options{})
	m.tracer.exits = true
	m.kernel.processes[10] = tracer.Process{PID: 10}
	if got := m.snapshot(time.Second).Processes; len(got) != 1 || got[0].Ended || len(m.kernel.forgotten) != 0 {
		t.Errorf("%+v, %v forgotten", got, m.kernel.forgotten)
	}
	m.kernel.processes[10] = tracer.Process{PID: 10, Ended: true}
	if got := m.snapshot(time.Second).Processes; len(got) != 1 || !got[0].Ended || len(m.kernel.forgotten) != 1 {
		t.Errorf("%+v, %v forgotten", got, m.kernel.forgotten)
	}
}
