//go:build linux

package live

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// fakeKernel counts what it is asked to probe, and tells what it is told to.
type fakeKernel struct {
	proc      string // of the machine
	mu        sync.Mutex
	links     map[uint64]int // probes that are in place, by inode
	attached  []string       // the names of the files, in order
	points    map[uint64][]probe.Point
	refuse    error
	fail      error // of reading
	processes map[uint32]tracer.Process
	losses    tracer.Losses
	events    []tracer.Event
	forgotten []uint32
	reads     int
	closed    bool
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{links: map[uint64]int{}, points: map[uint64][]probe.Point{}, processes: map[uint32]tracer.Process{}}
}

type fakeLink func()

func (f fakeLink) Close() error {
	f()
	return nil
}

func (k *fakeKernel) Attach(path string, _ probe.Identity, points []probe.Point) (probe.Attachment, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refuse != nil {
		return probe.Attachment{}, k.refuse
	}
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return probe.Attachment{}, err
	}
	name, err := os.Readlink(path)
	if err != nil {
		return probe.Attachment{}, err
	}
	k.links[st.Ino]++
	k.attached = append(k.attached, filepath.Base(name))
	k.points[st.Ino] = points
	return probe.Attachment{Since: k.uptime(), Closer: fakeLink(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.links[st.Ino]--; k.links[st.Ino] == 0 {
			delete(k.links, st.Ino)
		}
	})}, nil
}

func (k *fakeKernel) Mode() string { return "fake" }

func (k *fakeKernel) Sweep() error { return nil }

func (k *fakeKernel) Began() time.Duration { return k.uptime() }

func (k *fakeKernel) Inherited() time.Time { return time.Time{} }

func (k *fakeKernel) Leave() {}

func (k *fakeKernel) Reports() uint64 { return 0 }

// uptime is that of the fake machine.
func (k *fakeKernel) uptime() time.Duration {
	ticks, _ := target.ReadUptime(k.proc)
	return time.Duration(ticks) * time.Second / ticksPerSec
}

func (k *fakeKernel) Read(time.Time) ([]tracer.Process, tracer.Losses, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	var all []tracer.Process
	for _, p := range k.processes {
		p.Kernels = slices.Clone(p.Kernels)
		p.Devices = slices.Clone(p.Devices)
		all = append(all, p)
	}
	return all, k.losses, k.fail
}

func (k *fakeKernel) Events(limit int) []tracer.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := min(limit, len(k.events))
	events := k.events[:n]
	k.events = k.events[n:]
	return events
}

func (k *fakeKernel) Forget(pid uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.processes, pid)
	k.forgotten = append(k.forgotten, pid)
}

func (k *fakeKernel) Watch(uint32, string, time.Duration) error { return nil }
func (k *fakeKernel) Record(uint32, bool) error                 { return nil }

func (k *fakeKernel) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	return nil
}

func (k *fakeKernel) has(t *testing.T, want ...string) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Equal(k.attached, want) {
		t.Errorf("probed were %q, want %q", k.attached, want)
	}
}

func (k *fakeKernel) open() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.links)
}

// machine is a fake /proc.
type machine struct {
	t      *testing.T
	proc   string
	kernel *fakeKernel
	tracer *Tracer
	now    time.Time
	uptime time.Duration
}

func newMachine(t *testing.T, o Options) *machine {
	t.Helper()
	m := &machine{t: t, proc: t.TempDir(), kernel: newFakeKernel(), now: time.Unix(1e9, 0), uptime: time.Hour}
	m.write("uptime", "3600.00 1.00\n")
	o.Proc, m.kernel.proc = m.proc, m.proc
	m.tracer = newTracer(o, m.kernel, m.now)
	return m
}

func (m *machine) write(name, content string) {
	m.t.Helper()
	file := filepath.Join(m.proc, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// start makes a process that has files mapped, started at a time after boot.
func (m *machine) start(pid uint32, at time.Duration, files ...string) {
	m.t.Helper()
	m.write(fmt.Sprintf("%d/stat", pid), fmt.Sprintf("%d (python) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0", pid, at.Milliseconds()/10))
	m.remap(pid, files...)
}

// remap changes what a process has mapped.
func (m *machine) remap(pid uint32, files ...string) {
	m.t.Helper()
	dir := filepath.Join(m.proc, fmt.Sprint(pid), "map_files")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		m.t.Fatal(err)
	}
	var b strings.Builder
	for i, f := range files {
		var st syscall.Stat_t
		if err := syscall.Stat(f, &st); err != nil {
			m.t.Fatal(err)
		}
		from, to := 0x1000*(i+1), 0x1000*(i+2)
		fmt.Fprintf(&b, "%x-%x r-xp 00000000 08:01 %d %s\n", from, to, st.Ino, f)
		if err := os.Symlink(f, filepath.Join(dir, fmt.Sprintf("%x-%x", from, to))); err != nil {
			m.t.Fatal(err)
		}
	}
	m.write(fmt.Sprintf("%d/maps", pid), b.String())
}

func (m *machine) stop(pid uint32) {
	m.t.Helper()
	if err := os.RemoveAll(filepath.Join(m.proc, fmt.Sprint(pid))); err != nil {
		m.t.Fatal(err)
	}
}

// scan lets time pass, then searches.
func (m *machine) scan(after time.Duration) {
	m.now = m.now.Add(after)
	m.uptime += after
	m.write("uptime", fmt.Sprintf("%.2f 1.00\n", m.uptime.Seconds()))
	m.tracer.find.scan(m.now)
}

func (m *machine) snapshot(after time.Duration, gpuPIDs ...uint32) tracer.Snapshot {
	m.now = m.now.Add(after)
	m.uptime += after
	gpus := map[uint32][]string{}
	for _, pid := range gpuPIDs {
		gpus[pid] = nil
	}
	return m.tracer.Snapshot(m.now, gpus)
}

// require skips a test that needs a tool, unless GPUMETER_REQUIRE names it.
func require(t testing.TB, tool string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), tool) {
		t.Fatalf("GPUMETER_REQUIRE asks for %s: %v", tool, err)
	}
	t.Skipf("%s: %v", tool, err)
}

// build compiles a C source to a file.
func build(t testing.TB, file, source string, flags ...string) string {
	t.Helper()
	_, err := exec.LookPath("gcc")
	require(t, "gcc", err)
	cmd := exec.Command("gcc", append([]string{"-x", "c", "-O1", "-o", file, "-"}, flags...)...)
	cmd.Stdin = strings.NewReader(source)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	return file
}

// A library of the driver: one function that is cheap to probe, one that is not and is
// called often, one that is not and is rare, and a second name of the first.
const fakeCUDA = `
__asm__(".globl cuLaunchKernel, cuLaunchKernel_ptsz, cuMemcpyAsync, cuMemAlloc_v2\n"
	".type cuLaunchKernel,@function\n.type cuLaunchKernel_ptsz,@function\n.type cuMemcpyAsync,@function\n.type cuMemAlloc_v2,@function\n"
	"cuLaunchKernel:\ncuLaunchKernel_ptsz: push %rbp; xor %eax,%eax; pop %rbp; ret\n"
	"cuMemcpyAsync: sub $8,%rsp; xor %eax,%eax; add $8,%rsp; ret\n"
	"cuMemAlloc_v2: sub $8,%rsp; xor %eax,%eax; add $8,%rsp; ret\n");
`

const fakeNCCL = "int ncclAllReduce(void) { return 0; }"

func buildLibrary(t testing.TB, name, source, id string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return build(t, filepath.Join(dir, name), source, "-shared", "-fPIC", "-nostdlib", "-Wl,--build-id=0x"+id)
}
