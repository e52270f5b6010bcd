//go:build linux

package sampler

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/profile"
)

// stacks returns what was called from where: the frames of Python and the leaf of each sample, with its calls.
func stacks(p profile.Profile, kind string) map[string]uint64 {
	out := map[string]uint64{}
	for _, s := range p.Samples {
		var parts []string
		for _, f := range s.Frames {
			switch f.Kind {
			case profile.Python:
				parts = append(parts, fmt.Sprintf("%s:%d", f.Function, f.Line))
			case profile.Kernel, profile.Wait:
				parts = append(parts, f.Function)
			}
		}
		if s.Frames[len(s.Frames)-1].Kind == kind {
			out[strings.Join(parts, " ")] += s.Calls
		}
	}
	return out
}

// qualified reports whether a version of Python has the classes of a function in its name.
func qualified(version string) bool {
	minor, _, _ := strings.Cut(strings.TrimPrefix(version, "3."), " ")
	n, err := strconv.Atoi(minor)
	return err == nil && n >= 11
}

// Defects: offsets of another release, a line of the caller or of the definition, calls that do not add up, a
// kernel under the stack of another one. Each interpreter of this machine is tried.
func TestPython(t *testing.T) {
	t.Parallel()
	lib := library(t)
	all := pythons(t)
	for _, version := range slices.Sorted(maps.Keys(all)) {
		minor, _, _ := strings.Cut(version, " ")
		if n, err := strconv.Atoi(strings.TrimPrefix(minor, "3.")); err != nil || n < 8 {
			continue
		}
		t.Run(version, func(t *testing.T) {
			w := start(t, all[version], "testdata/work.py", lib)
			names := func(uint32) map[uint64]string { return map[uint64]string{0x100: "gemm", 0x200: "softmax"} }
			const rounds = 3000
			p := taken(t, Options{Takes: only(w.pid()), Names: names, Rate: MaxRate}, func() { w.does(strconv.Itoa(rounds)) })
			want := map[string]uint64{
				"<module>:47 train:32 Model.forward:18 launch:13 gemm":                                rounds,
				"<module>:47 train:33 train.<locals>.<lambda>:33 Model.backward:22 launch:13 softmax": 3 * rounds,
			}
			if !qualified(version) {
				want = map[string]uint64{
					"<module>:47 train:32 forward:18 launch:13 gemm":                 rounds,
					"<module>:47 train:33 <lambda>:33 backward:22 launch:13 softmax": 3 * rounds,
				}
			}
			if diff := cmp.Diff(want, stacks(p, profile.Kernel)); diff != "" {
				t.Errorf("launches (-want +got):\n%s", diff)
			}
			for stack := range stacks(p, profile.Wait) {
				if want := "<module>:47 train:35 wait:27 cuCtxSynchronize"; stack != want {
					t.Errorf("it waits in %s, want %s", stack, want)
				}
			}
			if len(p.Processes) != 1 || p.Processes[0].Python != minor || p.Processes[0].Problem != "" || p.Processes[0].Launches != 4*rounds {
				t.Errorf("processes are %+v", p.Processes)
			}
			for _, s := range p.Samples {
				for _, f := range s.Frames {
					if f.Kind == profile.Python && filepath.Base(f.File) != "work.py" {
						t.Errorf("%s is in %s", f.Function, f.File)
					}
				}
			}
			if diff := cmp.Diff(profile.Losses{}, p.Losses); diff != "" {
				t.Errorf("lost (-want +got):\n%s", diff)
			}
		})
	}
}

// A thread of Python that is not the main one, and kernels whose names nobody knows.
func TestThread(t *testing.T) {
	t.Parallel()
	w := start(t, interpreter(t), "testdata/work.py", library(t))
	p := taken(t, Options{Takes: only(w.pid()), Rate: MaxRate}, func() { w.does("thread 500") })
	var launches uint64
	for stack, n := range stacks(p, profile.Kernel) {
		launches += n
		if !strings.Contains(stack, "run:") || !strings.Contains(stack, "train:") || !strings.Contains(stack, " launch:13 ") || !strings.HasSuffix(stack, tracer.KernelUnknown) {
			t.Errorf("a thread launches in %q", stack)
		}
	}
	if launches != 2000 {
		t.Errorf("%d launches, want 2000", launches)
	}
}

// Two profiles at once see the same, and do not disturb each other.
func TestTwo(t *testing.T) {
	t.Parallel()
	w := start(t, interpreter(t), "testdata/work.py", library(t))
	var inner profile.Profile
	outer := taken(t, Options{Takes: only(w.pid())}, func() {
		inner = taken(t, Options{Takes: only(w.pid())}, func() { w.does("1000") })
	})
	if outer.Launches() != 4000 || inner.Launches() != 4000 {
		t.Errorf("%d and %d launches, want 4000", outer.Launches(), inner.Launches())
	}
}

// A process that exits while it is profiled keeps its counts; stacks that could not be read any more say so.
func TestExit(t *testing.T) {
	t.Parallel()
	w := start(t, interpreter(t), "testdata/work.py", library(t))
	p := taken(t, Options{Takes: only(w.pid())}, func() {
		w.does("1000")
		w.kill()
	})
	if p.Launches() != 4000 {
		t.Errorf("%d launches, want 4000", p.Launches())
	}
	for _, s := range p.Samples {
		if f := s.Frames[0]; f.Kind == profile.Note && f.Function != profile.Unresolved {
			t.Errorf("a stack begins with %q", f.Function)
		}
	}
}
