package probe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/programtest"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// bpffs returns a folder of a bpf file system of its own.
func bpffs(t *testing.T) string {
	t.Helper()
	opened(t, Options{}) // or skip
	dir := t.TempDir()
	check(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) }) // a child that another test forks just now has our files open
	return filepath.Join(dir, "kept")
}

// What is probed in the test of restarts: few functions, because in mode perf each takes a tenth of a second to detach.
var restartProbes = []string{"cuLaunchKernel", "cuLibraryGetKernel", "cuMemAlloc_v2", "cuMemFree_v2", "cuDevicePrimaryCtx", "cuCtxSet", "ncclCommInitRank", "ncclAllReduce"}

// TestAgentHelper is the agent of TestRestart that is killed.
func TestAgentHelper(t *testing.T) {
	dir, mode, ok := strings.Cut(os.Getenv("GPUMETER_AGENT_HELPER"), "|")
	if !ok {
		t.Skip("runs as a child of TestRestart")
	}
	m := &machine{t: t, p: opened(t, Options{Mode: mode, Keep: os.Getenv("GPUMETER_AGENT_KEEP")}), dir: dir, ops: map[string]bool{}}
	m.attach(580, restartProbes...)
	fmt.Println("attached")
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
}

// An agent is restarted, or killed, while a program runs: the next one knows the names of its kernels, its communicators and
// its memory, and has counted what it did while there was none.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{ModeSession, ModeMulti, ModePerf} {
		for _, how := range []string{"restarted", "killed"} {
			t.Run(mode+" "+how, func(t *testing.T) {
				t.Parallel()
				opened(t, Options{Mode: mode}) // or skip
				root := bpffs(t)
				o := Options{Mode: mode, Keep: root}
				m := &machine{t: t, dir: t.TempDir(), ops: map[string]bool{}}
				for _, name := range []string{"libcuda.so.1", "libnccl.so.2", "work"} {
					programtest.Write(t, filepath.Join(m.dir, name), compiled(t, name, 580))
				}
				end := m.firstAgent(o, how == "killed")
				r := m.start("restart")
				r.reaches("seen")
				end()
				r.goOn()
				r.reaches("unseen")

				m.attachments = nil
				m.p = opened(t, o)
				m.attach(580, restartProbes...)
				for _, a := range m.attachments {
					if !a.Inherited {
						t.Error("a library is probed anew")
					}
				}
				check(t, m.p.Sweep())
				p := m.read(r.pid)
				if p.Older {
					t.Error("the program is older than tracing")
				}
				compareRestarted(t, p, 2, 1, 2<<20)
				r.goOn()
				r.reaches("seen again")
				p = m.read(r.pid)
				compareRestarted(t, p, 3, 2, 6<<20)
				m.lossless()
				since := p.Since

				for _, a := range m.attachments {
					check(t, a.Close())
				}
				check(t, m.p.Close())
				if _, err := os.Lstat(root); !os.IsNotExist(err) {
					t.Errorf("something is left after the end of tracing: %v", err)
				}
				m.attachments = nil
				m.p = opened(t, o)
				m.attach(580, restartProbes...)
				r.goOn()
				r.ends()
				if p := m.read(r.pid); !p.Older || !p.Since.After(since) || calls(p)["cuLaunchKernel @-1"] != 1 {
					t.Errorf("after the end of tracing, the program is %+v", p)
				}
			})
		}
	}
}

// firstAgent traces until the returned function ends it.
func (m *machine) firstAgent(o Options, killed bool) (end func()) {
	m.t.Helper()
	if !killed {
		m.p = opened(m.t, o)
		m.attach(580, restartProbes...)
		return func() {
			m.p.Leave()
			for _, a := range m.attachments {
				check(m.t, a.Close())
			}
			check(m.t, m.p.Close())
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestAgentHelper$", "-test.v")
	cmd.Env = append(os.Environ(), "GPUMETER_AGENT_HELPER="+m.dir+"|"+o.Mode, "GPUMETER_AGENT_KEEP="+o.Keep)
	in, err := cmd.StdinPipe()
	check(m.t, err)
	m.t.Cleanup(func() { _ = in.Close() })
	out, err := cmd.StdoutPipe()
	check(m.t, err)
	check(m.t, cmd.Start())
	var said strings.Builder
	for b := make([]byte, 1); !strings.Contains(said.String(), "attached\n"); said.Write(b) {
		if _, err := out.Read(b); err != nil {
			m.t.Fatalf("the agent says %q: %v", said.String(), err)
		}
	}
	return func() {
		check(m.t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
}

func compareRestarted(t *testing.T, p tracer.Process, before, between uint64, memory uint64) {
	t.Helper()
	type seen struct {
		Kernels  map[string]uint64
		Memory   uint64
		Comm     string
		Rank     int
		Sequence uint64
	}
	want := seen{map[string]uint64{"before": before, "between": between}, memory, "known", 3, before}
	got := seen{Kernels: map[string]uint64{}}
	for _, k := range p.Kernels {
		if k.Symbol != "" { // NCCL's own
			got.Kernels[k.Symbol] = k.Count
		}
	}
	for _, d := range p.Devices {
		got.Memory += d.Memory.Reserved
	}
	for _, c := range p.Comms {
		got.Rank, got.Sequence = c.Rank, c.Sequence
		if c.ID != "" {
			got.Comm = "known"
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Two agents cannot keep their probes in one place, and the second one says so.
func TestKeepTwice(t *testing.T) {
	t.Parallel()
	root := bpffs(t)
	first := opened(t, Options{Keep: root})
	second := opened(t, Options{Keep: root})
	kept := func(p *Probe) Feature {
		i := slices.IndexFunc(p.Features(), func(f Feature) bool { return f.Name == "restart" })
		return p.Features()[i]
	}
	if f := kept(first); !f.OK {
		t.Errorf("the first one: %s", f.Reason)
	}
	if f := kept(second); f.OK || !strings.Contains(f.Reason, root+" is in use by another agent") {
		t.Errorf("the second one: %+v", f)
	}
	if _, err := Remove(root); err == nil {
		t.Error("what is in use was removed")
	}
	if second.Leave(); second.leaving.Load() {
		t.Error("the second one leaves something")
	}
	other := opened(t, Options{Keep: t.TempDir() + "/kept"})
	if f := kept(other); f.OK || !strings.Contains(f.Reason, "is not on a bpf file system") {
		t.Errorf("on another file system: %+v", f)
	}
}

// Catches an agent that removes what others keep in the same file system, or follows a link to it; and one that takes what
// another user has put there.
func TestKeepAmongOthers(t *testing.T) {
	t.Parallel()
	root := bpffs(t)
	top := filepath.Dir(root)
	other := opened(t, Options{})
	check(t, os.Mkdir(filepath.Join(top, "other"), 0o700))
	check(t, other.maps.Procs.Pin(filepath.Join(top, "other", "map_of_another")))
	p := opened(t, Options{Keep: top}) // its mount point, by mistake
	check(t, p.Close())
	check(t, os.Symlink(filepath.Join(top, "other"), root))
	refused := func(why string) {
		t.Helper()
		if _, err := Remove(root); err == nil {
			t.Errorf("%s: it was removed", why)
		}
		if k, err := openKeeper(root); err == nil {
			t.Errorf("%s: it is used", why)
			check(t, k.close(true))
		}
	}
	refused("a link")
	check(t, os.Remove(root))
	check(t, os.Mkdir(root, 0o700))
	check(t, os.Chown(root, 12345, 12345))
	refused("of another user")
	check(t, os.Chown(root, os.Geteuid(), os.Getegid()))
	check(t, os.Chmod(root, 0o777))
	refused("that others can write to")
	if _, err := os.Lstat(filepath.Join(top, "other", "map_of_another")); err != nil {
		t.Error(err)
	}
	check(t, os.RemoveAll(root))
	check(t, os.RemoveAll(filepath.Join(top, "other")))
}

// Probes whose agent does not come back stop working, and the next one does not believe them. Another version, a library that is
// gone and half of a library's links are removed.
func TestForsaken(t *testing.T) {
	t.Parallel()
	root := bpffs(t)
	o := Options{Keep: root, Mode: ModeMulti}
	leave := func(m *machine) {
		m.p.Leave()
		for _, a := range m.attachments {
			check(t, a.Close())
		}
		check(t, m.p.Close())
		m.attachments = nil
	}
	m := newMachine(t, o, 580, restartProbes...)
	r := m.start("restart")
	r.reaches("seen")

	check(t, m.p.variables[kernelVarUntil].Set(uint64(1)))
	r.goOn()
	r.reaches("unseen")
	all, _, err := m.p.Read(time.Now())
	if !errors.Is(err, tracer.ErrAsleep) || len(all) != 1 || calls(all[0])["cuLaunchKernel @0"] != 1 {
		t.Errorf("asleep, it reads %+v: %v", all, err)
	}
	leave(m)
	m.p = opened(t, o)
	if m.p.inherited {
		t.Error("probes that slept are inherited")
	}
	m.attach(580, restartProbes...)
	r.goOn()
	r.reaches("seen again")
	if p := m.read(r.pid); calls(p)["cuLaunchKernel @-1"] != 2 {
		t.Errorf("after that, calls are %v", calls(p))
	}
	leave(m)

	pins, err := filepath.Glob(root + "/*/library_*")
	check(t, err)
	if len(pins) != 4 {
		t.Fatalf("kept links: %v", pins)
	}
	half := pins[slices.IndexFunc(pins, func(path string) bool {
		k, ok := parseKept(path)
		return ok && k.content == digest(m.identity("libcuda.so.1"), m.pointsOf("libcuda.so.1"))
	})]
	check(t, os.Remove(half))
	m.p = opened(t, o)
	a, err := m.p.Attach(filepath.Join(m.dir, "libcuda.so.1"), m.identity("libcuda.so.1"), m.pointsOf("libcuda.so.1"))
	check(t, err)
	if a.Inherited {
		t.Error("half of the links of a library are inherited")
	}
	check(t, m.p.Sweep()) // libnccl is gone
	pins, err = filepath.Glob(root + "/*/library_*")
	check(t, err)
	if len(pins) != 2 {
		t.Errorf("after the sweep there are %v", pins)
	}
	r.goOn()
	r.ends()
	if p := m.read(r.pid); calls(p)["cuLaunchKernel @-1"] != 3 {
		t.Errorf("at the end, calls are %v", calls(p))
	}
	m.attachments = []Attachment{a}
	leave(m)

	o.MaxOps = 512 // another version
	m.p = opened(t, o)
	if dirs, err := os.ReadDir(root); err != nil || len(dirs) != 1 || m.p.inherited {
		t.Errorf("beside another version there are %v: %v", dirs, err)
	}
	m.p.Leave()
	check(t, m.p.Close())
	found, err := Remove(root)
	check(t, err)
	if _, err := os.Lstat(root); !found || !os.IsNotExist(err) {
		t.Errorf("something was left: %v", err)
	}
}

// pointsOf returns what is probed of a library in the test of restarts.
func (m *machine) pointsOf(name string) []Point {
	return slices.DeleteFunc(points(m.t, filepath.Join(m.dir, name), 0), func(at Point) bool {
		return !slices.ContainsFunc(restartProbes, func(p string) bool { return strings.HasPrefix(at.Symbol, p) })
	})
}

func FuzzParseKept(f *testing.F) {
	f.Add(kept{content: "ab12", device: 0xfd00, overlay: true, since: 12, entry: true, number: 1, of: 2}.name())
	f.Fuzz(func(t *testing.T, name string) {
		if k, ok := parseKept("/x/" + name); ok && k.name() != name {
			t.Errorf("%q is read as %q", name, k.name())
		}
	})
}
