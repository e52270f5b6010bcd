package probe

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// A running process is seen from its next call on and known to be older; after closing nothing
// is counted.
func TestAttachLater(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuMemcpyHtoD_"}, func(t *testing.T, m *machine) {
		r := m.start("slow")
		r.reaches("watch")
		late := opened(t, Options{Mode: m.p.Mode()})
		file := filepath.Join(m.dir, "libcuda.so.1")
		all := m.attached(file)
		l, err := late.Attach(file, Identity{}, append(all, all...)) // twice the same counts once
		check(t, err)
		r.goOn()
		r.reaches("record")
		r.goOn()
		r.reaches("stop")
		// A child that another test forks just now would have the probe open until its exec, and a bit
		// longer: the kernel lets its parent go on before it closes the child's files.
		syscall.ForkLock.RLock()
		err = l.Close()
		children := childrenOf(t, os.Getpid())
		syscall.ForkLock.RUnlock()
		check(t, err)
		for _, child := range children {
			await.True(t, "a child without our probes", func() bool { return !hasProbes(child) })
		}
		r.goOn()
		r.ends()
		lm := &machine{t: t, p: late}
		if p := m.read(r.pid); p.Older || p.Name != "work" || calls(p)["cuLaunchKernel @0"] != 5 {
			t.Errorf("from the start it is %+v", p)
		}
		p := lm.read(r.pid)
		if !p.Older {
			t.Error("it is not known to be older")
		}
		want := map[string]uint64{"cuLaunchKernel @-1": 3, "cuMemcpyHtoD htod @-1": 1}
		if diff := cmp.Diff(want, calls(p)); diff != "" {
			t.Errorf("calls of the older one (-want +got):\n%s", diff)
		}
	})
}

// childrenOf returns the children of a process.
func childrenOf(t *testing.T, pid int) (children []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	check(t, err)
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may have ended
		if _, rest, ok := strings.Cut(string(text), ") "); ok && strings.Fields(rest)[1] == strconv.Itoa(pid) {
			children = append(children, filepath.Base(filepath.Dir(file)))
		}
	}
	return children
}

// hasProbes reports whether a process has a link or a perf event open.
func hasProbes(pid string) bool {
	files, _ := filepath.Glob("/proc/" + pid + "/fd/*") // the only error is a bad pattern
	return slices.ContainsFunc(files, func(file string) bool {
		to, _ := os.Readlink(file)
		return strings.HasPrefix(to, "anon_inode:bpf") || to == "anon_inode:[perf_event]"
	})
}

// attached returns the points of a file used by this test.
func (m *machine) attached(file string) []Point {
	prologue := 580
	switch m.p.Mode() {
	case ModeMulti:
		prologue = 535
		if !m.p.features[0].OK {
			prologue = 64
		}
	case ModePerf:
		prologue = 64
	}
	var out []Point
	for _, at := range points(m.t, file, behind(prologue)) {
		if at.Op.Class == tracer.Launch || at.Symbol == "cuMemcpyHtoD_v2" {
			out = append(out, at)
		}
	}
	return out
}

// withRights runs f on a thread that has only these capabilities and exits with f.
func withRights(t *testing.T, set uint64, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "bpf", os.ErrPermission)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		data := [2]unix.CapUserData{
			{Effective: uint32(set), Permitted: uint32(set)},
			{Effective: uint32(set >> 32), Permitted: uint32(set >> 32)},
		}
		if err := unix.Capset(&header, &data[0]); err != nil {
			t.Errorf("cannot drop capabilities: %v", err)
			return
		}
		f()
	}()
	<-done
}

// Two capabilities suffice, and if one is missing the error names it.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "libcuda.so.1")
	check(t, os.WriteFile(file, compiled(t, "libcuda.so.1", 580), 0o755))
	all := points(t, file, 0)
	opened(t, Options{}) // or skip
	withRights(t, 1<<unix.CAP_BPF|1<<unix.CAP_PERFMON, func() {
		p, err := Open(Options{})
		if err != nil {
			t.Errorf("with CAP_BPF and CAP_PERFMON: %v", err)
			return
		}
		defer p.Close()
		l, err := p.Attach(file, Identity{}, all)
		if p.mode == ModePerf && err != nil && strings.Contains(err.Error(), "CAP_SYS_ADMIN is missing") {
			return // the kernel is too old for less
		}
		if err != nil {
			t.Errorf("with CAP_BPF and CAP_PERFMON: %v", err)
			return
		}
		defer l.Close()
		var lack []string
		for _, f := range p.Features() {
			if !f.OK {
				lack = append(lack, f.Name)
			}
		}
		if diff := cmp.Diff([]string{"CAP_SYS_PTRACE", "CAP_CHECKPOINT_RESTORE"}, lack); diff != "" {
			t.Errorf("lacking (-want +got):\n%s\n%v", diff, p.Features())
		}
	})
	withRights(t, 1<<unix.CAP_BPF, func() {
		if _, err := Open(Options{}); err == nil || !strings.Contains(err.Error(), "CAP_PERFMON is missing") {
			t.Errorf("without CAP_PERFMON: %v", err)
		}
	})
}
