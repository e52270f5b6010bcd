package probe

import (
	"bufio"
	"debug/elf"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/programtest"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// requires reports whether GPUMETER_REQUIRE names something: what make e2e-kernels knows a kernel to have.
func requires(what string) bool {
	return slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), what)
}

// skip skips a test for lack of something, or fails it if that is required.
func skip(t testing.TB, what string, why error) {
	t.Helper()
	if requires(what) {
		t.Fatalf("GPUMETER_REQUIRE asks for %s: %v", what, why)
	}
	t.Skipf("needs %s: %v", what, why)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// opened returns a probe, or skips the test with the reason.
func opened(t testing.TB, o Options) *Probe {
	t.Helper()
	p, err := Open(o)
	if err != nil {
		if requires(o.Mode) || o.Mode == "" && requires(ModePerf) {
			t.Fatalf("GPUMETER_REQUIRE asks for a mode that works here: %v", err)
		}
		skip(t, "bpf", err)
	}
	t.Cleanup(func() { check(t, p.Close()) })
	return p
}

// Probe offset by prologue, on amd64.
var prologues = map[int]uint64{580: 0, 535: 10, 64: 4}

// behind is where in a function with a prologue probes go: on arm64 always at its beginning.
func behind(prologue int) uint64 {
	if runtime.GOARCH == "arm64" {
		return 0
	}
	return prologues[prologue]
}

var (
	buildLock sync.Mutex
	built     = map[string][]byte{} // by file and prologue
)

// machine is a directory with probed fake libraries and a program that uses them.
type machine struct {
	t   testing.TB
	p   *Probe
	dir string
	ops map[string]bool // that are probed, by name

	attachments []Attachment
}

// newMachine builds a machine. Its files are its own, so tests do not see each other's calls.
// If only is set, only functions with one of these prefixes are probed.
func newMachine(t testing.TB, o Options, prologue int, only ...string) *machine {
	t.Helper()
	m := &machine{t: t, p: opened(t, o), dir: t.TempDir(), ops: map[string]bool{}}
	for _, name := range []string{"libcuda.so.1", "libnccl.so.2", "work"} {
		programtest.Write(t, filepath.Join(m.dir, name), compiled(t, name, prologue))
	}
	m.attach(prologue, only...)
	return m
}

// attach probes the libraries.
func (m *machine) attach(prologue int, only ...string) {
	t := m.t
	t.Helper()
	for _, name := range []string{"libcuda.so.1", "libnccl.so.2"} {
		file := filepath.Join(m.dir, name)
		all := slices.DeleteFunc(points(t, file, behind(prologue)), func(at Point) bool {
			return len(only) > 0 && !slices.ContainsFunc(only, func(p string) bool { return strings.HasPrefix(at.Symbol, p) })
		})
		if len(all) == 0 {
			continue
		}
		for _, at := range all {
			m.ops[at.Op.Name] = true
		}
		l, err := m.p.Attach(file, m.identity(name), all)
		check(t, err)
		m.attachments = append(m.attachments, l)
		t.Cleanup(func() { check(t, l.Close()) })
	}
}

// identity is that of a file of this machine, by its name.
func (m *machine) identity(name string) Identity {
	return Identity{Content: filepath.Join(m.dir, name)}
}

func compiled(t testing.TB, name string, prologue int) []byte {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		skip(t, "gcc", err)
	}
	buildLock.Lock()
	defer buildLock.Unlock()
	key := fmt.Sprint(name, prologue)
	if built[key] == nil {
		dir, err := os.MkdirTemp("", "fake")
		check(t, err)
		defer os.RemoveAll(dir)
		lib := func(so, src string) {
			out, err := exec.Command("gcc", "-O1", "-fPIC", "-shared", "-fcf-protection=none", fmt.Sprintf("-DPROLOGUE=%d", prologue),
				"-Wl,-soname,"+so, "-o", filepath.Join(dir, so), "testdata/"+src, "-lpthread").CombinedOutput()
			if err != nil {
				t.Fatalf("cannot build %s: %v\n%s", so, err, out)
			}
		}
		lib("libcuda.so.1", "cuda.c")
		lib("libnccl.so.2", "nccl.c")
		// Old tags come before LD_LIBRARY_PATH, which names the real libraries on a machine with a GPU.
		out, err := exec.Command("gcc", "-O1", "-o", filepath.Join(dir, "work"), "testdata/work.c",
			filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "libnccl.so.2"), "-lpthread", "-Wl,-rpath,$ORIGIN,--disable-new-dtags").CombinedOutput()
		if err != nil {
			t.Fatalf("cannot build the program: %v\n%s", err, out)
		}
		for _, file := range []string{"libcuda.so.1", "libnccl.so.2", "work"} {
			built[fmt.Sprint(file, prologue)], err = os.ReadFile(filepath.Join(dir, file))
			check(t, err)
		}
	}
	return built[key]
}

// points returns all functions of the table that a file has.
func points(t testing.TB, file string, behind uint64) []Point {
	t.Helper()
	f, err := elf.Open(file)
	check(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	check(t, err)
	var out []Point
	for i := range tracer.Ops {
		for _, s := range symbols {
			if s.Value == 0 || !slices.Contains(tracer.Ops[i].Symbols, s.Name) {
				continue
			}
			for _, p := range f.Progs {
				if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && s.Value >= p.Vaddr && s.Value < p.Vaddr+p.Memsz {
					out = append(out, Point{Op: &tracer.Ops[i], Symbol: s.Name, Offset: s.Value - p.Vaddr + p.Off + behind})
				}
			}
		}
	}
	return out
}

// running is the running program.
type running struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	pid uint32
}

func (m *machine) start(args ...string) *running {
	m.t.Helper()
	cmd := exec.Command(filepath.Join(m.dir, "work"), args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(m.t, err)
	out, err := cmd.StdoutPipe()
	check(m.t, err)
	check(m.t, cmd.Start())
	m.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return &running{t: m.t, cmd: cmd, in: in, out: bufio.NewReader(out), pid: uint32(cmd.Process.Pid)}
}

// reaches waits until the program reports a step.
func (r *running) reaches(step string) {
	r.t.Helper()
	line, err := r.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != step {
		r.t.Fatalf("the program says %q, want %q: %v", line, step, err)
	}
}

func (r *running) goOn() {
	r.t.Helper()
	_, err := io.WriteString(r.in, "\n")
	check(r.t, err)
}

func (r *running) ends() string {
	r.t.Helper()
	rest, err := io.ReadAll(r.out)
	check(r.t, err)
	check(r.t, r.cmd.Wait())
	return strings.TrimSpace(string(rest))
}

// run runs the program to its end and returns its final state.
func (m *machine) run(args ...string) tracer.Process {
	m.t.Helper()
	r := m.start(args...)
	r.ends()
	return m.read(r.pid)
}

func (m *machine) read(pid uint32) tracer.Process {
	m.t.Helper()
	all, _, err := m.p.Read(time.Now())
	check(m.t, err)
	for _, p := range all {
		if p.PID == pid {
			return p
		}
	}
	m.t.Fatalf("process %d is not among %d", pid, len(all))
	return tracer.Process{}
}

func (m *machine) losses() tracer.Losses {
	m.t.Helper()
	_, l, err := m.p.Read(time.Now())
	check(m.t, err)
	return l
}

// lossless fails a test in which something was unexpectedly lost.
func (m *machine) lossless() {
	m.t.Helper()
	l := m.losses()
	l.Unnamed, l.Spared = 0, 0
	if diff := cmp.Diff(tracer.Losses{MapFull: map[string]uint64{}}, l); diff != "" {
		m.t.Errorf("something was lost (-want +got):\n%s", diff)
	}
}

// inModes runs a test in each mode and without task storage, with different prologues. In mode
// perf only functions with the prefixes in uses are probed, because each takes a tenth of a
// second to detach. Without uses there is no perf case: its programs are those of multi, so it
// adds nothing if only arguments matter. With -short only the first mode and one of the others
// run; which one depends on the test. Where it is known which modes a kernel has, only those run.
func inModes(t *testing.T, o Options, uses []string, f func(t *testing.T, m *machine)) {
	t.Helper()
	cases := map[string]struct {
		mode     string
		hash     bool
		prologue int
	}{
		"session": {ModeSession, false, 580},
		"multi":   {ModeMulti, false, 535},
		"perf":    {ModePerf, false, 64},
		"hash":    {ModeMulti, true, 64},
	}
	if uses == nil {
		delete(cases, "perf")
	}
	names := slices.SortedFunc(maps.Keys(cases), func(a, b string) int { return strings.Compare(b, a) }) // session first
	if requires(ModePerf) {
		names = slices.DeleteFunc(names, func(name string) bool { return !requires(cases[name].mode) })
	}
	if len(names) == 0 {
		t.Skip("its cases are in modes that this kernel lacks")
	}
	if others := names[1:]; testing.Short() && len(others) > 1 {
		names = []string{names[0], others[len(t.Name())%len(others)]}
	}
	for _, name := range names {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := o
			o.Mode, o.NoTaskStorage = c.mode, c.hash
			var only []string
			if c.mode == ModePerf {
				only = append([]string{"cuDevicePrimaryCtx", "cuCtxSet"}, uses...)
			}
			f(t, newMachine(t, o, c.prologue, only...))
		})
	}
}

// calls returns the number of calls by name, kind and device.
func calls(p tracer.Process) map[string]uint64 {
	out := map[string]uint64{}
	for _, op := range p.Ops {
		key := op.Op
		if op.Kind != "" {
			key += " " + op.Kind
		}
		out[fmt.Sprintf("%s @%d", key, op.Device)] += op.Time.Count
	}
	return out
}
