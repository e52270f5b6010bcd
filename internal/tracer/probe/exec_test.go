package probe

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// A program replaced by exec no longer has memory, names or contexts. The next program's calls
// must not be added to it, nor be lost when the first is forgotten.
func TestExec(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuModuleGet", "cuMemAlloc_"}, func(t *testing.T, m *machine) {
		if !m.p.features[3].OK {
			t.Skip("exec is not seen: ", m.p.features[3].Reason)
		}
		r := m.start("exec")
		r.reaches("first")
		check(t, m.p.Watch(r.pid, "cuLaunchKernel", time.Nanosecond))
		first := m.read(r.pid)
		r.goOn()
		r.reaches("second")
		type image struct {
			ended    bool
			reserved uint64
			kernels  map[string]uint64
		}
		look := func() (images []image, since []time.Time) {
			all, _, err := m.p.Read(time.Now())
			check(t, err)
			for _, p := range all {
				if p.PID != r.pid {
					continue
				}
				i := image{p.Ended, p.Devices[0].Memory.Reserved, map[string]uint64{}}
				for _, k := range p.Kernels {
					i.kernels[k.Symbol] = k.Count
				}
				images, since = append(images, i), append(since, p.Since)
			}
			return images, since
		}
		before, now := image{true, 1000, map[string]uint64{"first": 1}}, image{false, 7, map[string]uint64{"second": 2}}
		images, since := look()
		if diff := cmp.Diff([]image{before, now}, images, cmp.AllowUnexported(image{})); diff != "" {
			t.Fatalf("programs (-want +got):\n%s", diff)
		}
		if !since[0].Equal(first.Since) || !since[1].After(since[0]) {
			t.Errorf("the programs are known since %v, the first was since %v", since, first.Since)
		}
		m.p.Forget(r.pid)
		images, _ = look()
		if diff := cmp.Diff([]image{now}, images, cmp.AllowUnexported(image{})); diff != "" {
			t.Errorf("programs, the first forgotten (-want +got):\n%s", diff)
		}
		if events := m.p.Events(10); len(events) != 2 || events[0].PID != r.pid || events[0].Kernel != "second" {
			t.Errorf("the launches of the second program are watched, too: %+v", events)
		}
		r.goOn()
		r.ends()
		now.ended = true
		images, _ = look()
		if diff := cmp.Diff([]image{now}, images, cmp.AllowUnexported(image{})); diff != "" {
			t.Errorf("programs at the end (-want +got):\n%s", diff)
		}
		m.p.Forget(r.pid)
		if images, _ = look(); images != nil {
			t.Errorf("left are %+v", images)
		}
		m.lossless()
	})
}

// A process that executes a program without CUDA left an entry in a map forever.
func TestExecWithoutCUDA(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel"}, func(t *testing.T, m *machine) {
		if !m.p.features[3].OK {
			t.Skip("exec is not seen: ", m.p.features[3].Reason)
		}
		p := m.run("leave")
		if !p.Ended {
			t.Error("the program has not ended")
		}
		check(t, each(m.p.maps.Images, func(k kernelProcKey, v *uint32) {
			if k.Tgid == p.PID {
				t.Errorf("the entry %#x is left", *v)
			}
		}))
	})
}

// A name that is looked up after the launch does not decrease Losses.
func TestUnnamedNeverFalls(t *testing.T) {
	t.Parallel()
	m := newMachine(t, Options{Mode: ModeMulti}, 535)
	r := m.start("late")
	r.reaches("launched")
	if l := m.losses(); l.Unnamed != 3 {
		t.Errorf("%d launches have no name, want 3", l.Unnamed)
	}
	r.goOn()
	r.reaches("named")
	if l := m.losses(); l.Unnamed != 3 {
		t.Errorf("%d launches had no name, want 3", l.Unnamed)
	}
	if p := m.read(r.pid); len(p.Kernels) != 1 || p.Kernels[0].Symbol == "" {
		t.Errorf("kernels are %+v", p.Kernels)
	}
	r.goOn()
	r.ends()
	if diff := cmp.Diff(tracer.Losses{Unnamed: 3, MapFull: map[string]uint64{}}, m.losses()); diff != "" {
		t.Errorf("losses (-want +got):\n%s", diff)
	}
}

// A reset frees all memory of a device; a later free of it must not reduce newer allocations.
func TestReset(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuMemAlloc_", "cuMemFree_"}, func(t *testing.T, m *machine) {
		r := m.start("reset")
		memory := func() map[int]uint64 {
			out := map[int]uint64{}
			for _, d := range m.read(r.pid).Devices {
				out[d.Ordinal] = d.Memory.Reserved
			}
			return out
		}
		r.reaches("reset")
		if diff := cmp.Diff(map[int]uint64{0: 0, 1: 5}, memory()); diff != "" {
			t.Errorf("memory after a reset (-want +got):\n%s", diff)
		}
		r.goOn()
		r.reaches("again")
		if diff := cmp.Diff(map[int]uint64{0: 7, 1: 5}, memory()); diff != "" {
			t.Errorf("memory after it (-want +got):\n%s", diff)
		}
		r.goOn()
		r.ends()
		m.lossless()
	})
}
