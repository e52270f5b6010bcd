//go:build linux && amd64

package live

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// A driver library whose functions start with a push, and a program that calls it as often as
// requested.
const (
	driver = `
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s, void **p, void **x);
__asm__(".text\n.globl cuLaunchKernel\n.type cuLaunchKernel,@function\ncuLaunchKernel: push %rbp; xor %eax,%eax; pop %rbp; ret\n");
`
	worker = `
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef int launch_t(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int main(int argc, char **argv) {
	void *lib = dlopen(argv[1], RTLD_NOW);
	if (!lib) { puts(dlerror()); return 1; }
	launch_t *launch = (launch_t *)dlsym(lib, "cuLaunchKernel");
	setvbuf(stdout, 0, _IOLBF, 0);
	if (argc > 2) { for (int i = atoi(argv[2]); i > 0; i--) launch((void *)1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0); return 0; }
	puts("ready");
	for (char line[64]; fgets(line, sizeof line, stdin);) {
		if (line[0] == 'x') execv("/proc/self/exe", argv);
		for (int i = atoi(line); i > 0; i--) launch((void *)1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
		puts("done");
	}
	return 0;
}
`
)

// job is a running worker.
type job struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startJob(t *testing.T, name string, args ...string) *job {
	t.Helper()
	cmd := exec.Command(name, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	j := &job{t, cmd, in, bufio.NewReader(out)}
	t.Cleanup(j.stop)
	if line, _ := j.out.ReadString('\n'); line != "ready\n" {
		_ = cmd.Wait()
		require(t, "root", fmt.Errorf("the process says %q, %s", line, stderr.String()))
	}
	return j
}

func (j *job) pid() uint32 { return uint32(j.cmd.Process.Pid) }

func (j *job) stop() {
	j.in.Close()
	_ = j.cmd.Wait()
}

// launch makes calls and returns when they are done.
func (j *job) launch(n int) {
	j.t.Helper()
	fmt.Fprintf(j.in, "%d\n", n)
	if line, err := j.out.ReadString('\n'); line != "done\n" {
		j.t.Fatalf("%q, %v", line, err)
	}
}

// running opens a Tracer on this kernel and runs it until the test ends.
func running(t *testing.T, o Options) *Tracer {
	t.Helper()
	o.Interval = cmp.Or(o.Interval, 50*time.Millisecond)
	if o.Roots == nil {
		o.Roots = []string{} // what is installed here is used by others
	}
	tr, err := Open(o)
	require(t, "bpf", err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- tr.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return tr
}

// launches returns the number of calls of a process, and whether it is traced.
func launches(s tracer.Snapshot, pid uint32) (n uint64) {
	for _, p := range s.Processes {
		if p.PID == pid {
			for _, op := range p.Ops {
				n += op.Time.Count
			}
		}
	}
	return n
}

// traced waits until calls of a process are seen.
func traced(t *testing.T, tr *Tracer, j *job) {
	t.Helper()
	await.True(t, "probes", func() bool { return len(tr.Snapshot(time.Now(), map[uint32][]string{j.pid(): nil}).Untraced) == 0 })
}

// exactly makes calls and checks that all are counted.
func exactly(t *testing.T, tr *Tracer, j *job, n int) {
	t.Helper()
	traced(t, tr, j)
	before := launches(tr.Snapshot(time.Now(), nil), j.pid())
	j.launch(n)
	s := tr.Snapshot(time.Now(), nil)
	if got := launches(s, j.pid()) - before; got != uint64(n) {
		t.Errorf("%d of %d calls are counted; libraries %+v", got, n, s.Libraries)
	}
}

func fixtures(t *testing.T) (dir, lib, exe string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	lib = build(t, filepath.Join(dir, "libcuda.so.1"), driver, "-shared", "-fPIC", "-nostdlib")
	return dir, lib, build(t, filepath.Join(dir, "worker"), worker, "-ldl")
}

// Processes started before and after the tracer are both seen, in each mode.
func TestBeforeAndAfter(t *testing.T) {
	for _, mode := range []string{probe.ModeSession, probe.ModeMulti, probe.ModePerf} {
		t.Run(mode, func(t *testing.T) {
			_, lib, exe := fixtures(t)
			before := startJob(t, exe, lib)
			before.launch(5)
			tr := running(t, Options{Probe: probe.Options{Mode: mode}})
			exactly(t, tr, before, 1000)
			after := startJob(t, exe, lib)
			exactly(t, tr, after, 1000)
			older := map[uint32]bool{}
			for _, p := range tr.Snapshot(time.Now(), nil).Processes {
				older[p.PID] = p.Older
			}
			if !older[before.pid()] || older[after.pid()] {
				t.Errorf("older: %v, %d was before us and %d after", older, before.pid(), after.pid())
			}
			before.stop()
			await.True(t, "the last numbers of a process that ended", func() bool {
				for _, p := range tr.Snapshot(time.Now(), nil).Processes {
					if p.PID == before.pid() && p.Ended {
						return launches(tracer.Snapshot{Processes: []tracer.Process{p}}, p.PID) == 1000
					}
				}
				return false
			})
		})
	}
}

// A library that a process loads while nobody searches is probed because the kernel reports it.
func TestLoadedLate(t *testing.T) {
	_, first, exe := fixtures(t)
	_, second, _ := fixtures(t)
	early := startJob(t, exe, first)
	tr := running(t, Options{Interval: time.Hour})
	probed := func(lib string) bool {
		return slices.ContainsFunc(tr.Snapshot(time.Now(), nil).Libraries, func(l tracer.Library) bool { return l.Path == lib && l.Probes > 0 })
	}
	await.True(t, "the only search", func() bool { return probed(first) })
	late := startJob(t, exe, second)
	await.True(t, "probes in a library that was loaded after it", func() bool { return probed(second) })
	late.launch(1000)
	early.launch(10)
	s := tr.Snapshot(time.Now(), nil)
	if got := [2]uint64{launches(s, early.pid()), launches(s, late.pid())}; got != [2]uint64{10, 1000} {
		t.Errorf("launches: %v", got)
	}
}

// A library visible only to a container is found in its mount namespace.
func TestMountNamespace(t *testing.T) {
	dir, lib, exe := fixtures(t)
	hidden := filepath.Join(dir, "hidden")
	if err := os.Mkdir(hidden, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("mount -t tmpfs none %[1]s && cp %[2]s %[1]s/libcuda.so.1 && exec %[3]s %[1]s/libcuda.so.1", hidden, lib, exe)
	_, err := exec.LookPath("unshare")
	require(t, "root", err)
	j := startJob(t, "unshare", "-m", "sh", "-c", script)
	if _, err := os.Stat(filepath.Join(hidden, "libcuda.so.1")); err == nil {
		t.Fatal("the library is not hidden")
	}
	tr := running(t, Options{})
	exactly(t, tr, j, 1000)
}

// A library replaced while a process uses it is still probed there, and so is the new one.
func TestReplaced(t *testing.T) {
	dir, lib, exe := fixtures(t)
	old := startJob(t, exe, lib)
	tr := running(t, Options{})
	exactly(t, tr, old, 100)
	fresh := build(t, filepath.Join(dir, "next"), driver, "-shared", "-fPIC", "-nostdlib", "-Wl,--build-id=0x1234")
	if err := os.Rename(fresh, lib); err != nil {
		t.Fatal(err)
	}
	exactly(t, tr, old, 100)
	young := startJob(t, exe, lib)
	exactly(t, tr, young, 100)
	exactly(t, tr, old, 100)
	// A tracer that starts now finds both as well.
	second := running(t, Options{})
	exactly(t, second, old, 100)
	exactly(t, second, young, 100)
}

// The same file through an overlay and below it is counted once.
func TestOverlay(t *testing.T) {
	dir, _, exe := fixtures(t)
	lower := filepath.Dir(build(t, filepath.Join(mkdir(t, dir, "lower"), "libcuda.so.1"), driver, "-shared", "-fPIC", "-nostdlib"))
	merged := mkdir(t, dir, "merged")
	script := fmt.Sprintf("mount -t tmpfs none %[1]s && mkdir %[1]s/u %[1]s/w && mount -t overlay overlay -o lowerdir=%[2]s,upperdir=%[1]s/u,workdir=%[1]s/w %[3]s && exec %[4]s %[3]s/libcuda.so.1",
		mkdir(t, dir, "scratch"), lower, merged, exe)
	_, err := exec.LookPath("unshare")
	require(t, "root", err)
	above := startJob(t, "unshare", "-m", "sh", "-c", script)
	below := startJob(t, exe, filepath.Join(lower, "libcuda.so.1"))
	tr := running(t, Options{})
	exactly(t, tr, above, 100)
	exactly(t, tr, below, 100)
	exactly(t, tr, above, 100)
	var probed []string
	for _, l := range tr.Snapshot(time.Now(), nil).Libraries {
		if strings.HasPrefix(l.Path, dir) {
			probed = append(probed, l.Path)
		}
	}
	if len(probed) != 1 {
		t.Errorf("one file is probed as %q", probed)
	}
}

// Two containers of one image may have separate file systems in which the library has the
// same inode: the probes of one do not see the other.
func TestMountedTwice(t *testing.T) {
	dir, lib, exe := fixtures(t)
	script := fmt.Sprintf("mount -t tmpfs none %[1]s && cp %[2]s %[1]s/libcuda.so.1 && exec %[3]s %[1]s/libcuda.so.1", mkdir(t, dir, "hidden"), lib, exe)
	_, err := exec.LookPath("unshare")
	require(t, "root", err)
	one := startJob(t, "unshare", "-m", "sh", "-c", script)
	two := startJob(t, "unshare", "-m", "sh", "-c", script)
	tr := running(t, Options{})
	exactly(t, tr, one, 100)
	exactly(t, tr, two, 100)
}

func mkdir(t *testing.T, dir, name string) string {
	t.Helper()
	name = filepath.Join(dir, name)
	if err := os.Mkdir(name, 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// A thousand short processes are all counted and leave nothing behind: no map entry, no
// descriptor, no goroutine, no memory.
func TestThousandShortProcesses(t *testing.T) {
	processes := uint64(1000)
	if testing.Short() {
		processes = 100
	}
	_, lib, exe := fixtures(t)
	tr := running(t, Options{})
	keeper := startJob(t, exe, lib) // has the library while none of the others does
	exactly(t, tr, keeper, 1)
	runtime.GC()
	descriptors, goroutines := openDescriptors(t), runtime.NumGoroutine()
	const calls = 10
	mine := map[uint32]bool{}
	counted := uint64(0)
	count := func() {
		for _, p := range tr.Snapshot(time.Now(), nil).Processes {
			if p.Ended && mine[p.PID] {
				counted += launches(tracer.Snapshot{Processes: []tracer.Process{p}}, p.PID)
			}
		}
	}
	for i := range processes {
		cmd := exec.Command(exe, lib, fmt.Sprint(calls))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		mine[uint32(cmd.Process.Pid)] = true
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		if i%(processes/5) == 0 {
			count()
		}
	}
	await.True(t, "the last numbers of all", func() bool {
		count()
		return counted == processes*calls
	})
	left, _, err := tr.kernel.Read(time.Now())
	if err != nil {
		t.Error(err)
	}
	for _, p := range left {
		if mine[p.PID] {
			t.Errorf("the kernel still has process %d", p.PID)
		}
	}
	await.True(t, "the search to forget them", func() bool {
		tr.find.mu.Lock()
		defer tr.find.mu.Unlock()
		for pid := range tr.find.processes {
			if mine[pid] {
				return false
			}
		}
		return true
	})
	await.True(t, "descriptors to be closed", func() bool { return openDescriptors(t) <= descriptors })
	await.True(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for pid := range tr.known {
		if mine[pid] {
			t.Errorf("process %d is remembered", pid)
		}
	}
	for pid := range mine { // others of this machine may end just now
		final := slices.ContainsFunc(tr.finals, func(p tracer.Process) bool { return p.PID == pid })
		if tr.exited[pid] || final || tr.comms[pid] != nil {
			t.Errorf("process %d is kept: exit %v, final %v, communicators %v", pid, tr.exited[pid], final, tr.comms[pid])
		}
	}
}

// openDescriptors counts our open files except links: libraries of other tests on this
// machine may be found and probed meanwhile.
func openDescriptors(t *testing.T) (n int) {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil && !strings.Contains(to, "bpf_link") && !strings.Contains(to, "bpf-link") && !strings.Contains(to, "perf_event") {
			n++
		}
	}
	return n
}
