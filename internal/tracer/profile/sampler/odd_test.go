//go:build linux

package sampler

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/tracer/profile"
)

// odd starts a program of testdata/odd.c.
func odd(t *testing.T, mode string) *program {
	t.Helper()
	return start(t, build(t, library(t)), mode)
}

func build(t testing.TB, lib string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "odd")
	out, err := exec.Command("gcc", "-O1", "-rdynamic", "-o", path, "testdata/odd.c", lib, "-lpthread", "-Wl,-rpath,"+filepath.Dir(lib)+",--disable-new-dtags").CombinedOutput()
	if err != nil {
		t.Fatalf("cannot build the program: %v\n%s", err, out)
	}
	return path
}

// A process that claims to be Python cannot make the kernel or us follow it for ever, allocate without bound, or
// write to a terminal.
func TestForgedPython(t *testing.T) {
	t.Parallel()
	w := odd(t, "forged")
	p := taken(t, Options{Takes: only(w.pid()), Rate: MaxRate}, func() { w.does("100") })
	if len(p.Samples) == 0 {
		t.Fatal("no samples")
	}
	for _, s := range p.Samples {
		if i := slices.IndexFunc(s.Frames, func(f profile.Frame) bool { return f.Function == profile.Cut }); i != 0 {
			t.Errorf("an endless stack is marked at %d of %d frames", i, len(s.Frames))
		}
		if len(s.Frames) > 200 {
			t.Errorf("%d frames", len(s.Frames))
		}
		for _, f := range s.Frames {
			if len(f.Function) > 2048 || strings.ContainsAny(f.Function+f.File, "\x1b\n\x00") {
				t.Errorf("a function is called %.100q", f.Function)
			}
		}
	}
	if p.Launches() != 100 || p.Processes[0].Python != "3.11" {
		t.Errorf("processes are %+v", p.Processes)
	}
}

// Each thread has its own turn of sampling: all are counted.
func TestThousandThreads(t *testing.T) {
	t.Parallel()
	w := odd(t, "threads")
	p := taken(t, Options{Takes: only(w.pid())}, func() { w.does("go") })
	var calls uint64
	for _, s := range p.Samples {
		calls += s.Calls
	}
	if p.Launches() != 10000 || calls != 10000 || p.Losses != (profile.Losses{}) {
		t.Errorf("%d launches, %d in stacks, want 10000; lost: %+v", p.Launches(), calls, p.Losses)
	}
}

// After exec the addresses of the program before are worth nothing. What it launched stays.
func TestExec(t *testing.T) {
	t.Parallel()
	w := odd(t, "exec")
	p := taken(t, Options{Takes: only(w.pid())}, func() {
		w.does("10")
		w.does("10")
	})
	if n := p.Launches(); n < 10 || n > 20 {
		t.Errorf("%d launches, want 10 of the first program, and those of the second once it was found", n)
	}
}
