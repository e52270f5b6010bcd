package probe

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Defects: busy time that ends with the wrong stream, a bubble of another thread, or a launch
// that was only captured. The machine may be slow: the test's own duration is the upper bound.
func TestBusy(t *testing.T) {
	t.Parallel()
	uses := []string{"cuLaunchKernel", "cuStream", "cuCtxSync", "cuEvent", "cuGraphLaunch"}
	inModes(t, Options{}, uses, func(t *testing.T, m *machine) {
		began := time.Now()
		r := m.start("busy")
		r.reaches("launched")
		p := m.read(r.pid)
		if len(p.Devices) != 1 {
			t.Fatalf("%d devices, want 1", len(p.Devices))
		}
		d := p.Devices[0]
		between := func(what string, got, low, high time.Duration) {
			t.Helper()
			if got < low || got > high {
				t.Errorf("%s is %v, want %v to %v", what, got, low, high)
			}
		}
		between("busy", d.Busy, 100*time.Millisecond, time.Since(began))
		between("wait", d.Wait, 60*time.Millisecond, d.Busy)
		between("bubble", d.Bubble, 40*time.Millisecond, time.Since(began))
		if !d.WaitingSince.IsZero() {
			t.Errorf("it waits since %v", d.WaitingSince)
		}
		r.goOn()
		r.reaches("waited")
		again := m.read(r.pid)
		if !again.Since.Equal(p.Since) {
			t.Errorf("it is known since %v, and then since %v: that is another process", p.Since, again.Since)
		}
		after := again.Devices[0]
		between("busy of the last", after.Busy-d.Busy, 50*time.Millisecond, time.Since(began))
		between("wait of the last", after.Wait-d.Wait, 50*time.Millisecond, after.Busy-d.Busy)
		r.goOn()
		r.ends()
		m.lossless()
	})
}

// A wait that is known only after it ended cannot reveal a hang.
func TestWaitingSince(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuCtxSync"}, func(t *testing.T, m *machine) {
		began := time.Now()
		r := m.start("hang")
		r.reaches("waiting")
		await.True(t, "somebody who waits", func() bool {
			p := m.read(r.pid)
			if len(p.Devices) != 1 || p.Devices[0].WaitingSince.IsZero() {
				return false
			}
			if since := p.Devices[0].WaitingSince; since.Before(began.Add(-time.Second)) || since.After(time.Now().Add(time.Second)) {
				t.Errorf("it waits since %v, the test began at %v", since, began)
			}
			return true
		})
	})
}

// PyTorch's allocator reports, for the device only.
func TestTorch(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"_ZN3c10"}, func(t *testing.T, m *machine) {
		want := []tracer.Device{
			{Ordinal: 1, Memory: tracer.Memory{Allocated: 1024, Pool: 4 << 20, Framework: true}},
			{Ordinal: 3, Memory: tracer.Memory{Allocated: 7, Pool: 1 << 20, Framework: true}},
		}
		began, got := time.Now(), m.run("torch").Devices
		for i := range got {
			if at := got[i].Memory.Reported; at.Before(began.Add(-time.Second)) || at.After(time.Now()) {
				t.Errorf("device %d was reported at %v, the test began at %v", got[i].Ordinal, at, began)
			}
			got[i].Memory.Reported = time.Time{}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("devices (-want +got):\n%s", diff)
		}
		if n := m.p.Reports(); n < 2 {
			t.Errorf("%d reports", n)
		}
		m.lossless()
	})
}

// A child's calls are its own; it inherits neither frames nor device.
func TestFork(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel"}, func(t *testing.T, m *machine) {
		r := m.start("fork")
		child, err := strconv.Atoi(r.ends())
		check(t, err)
		parent := calls(m.read(r.pid))
		if diff := cmp.Diff(map[string]uint64{"cuLaunchKernel @0": 2, "cuDevicePrimaryCtxRetain @0": 1}, parent); diff != "" {
			t.Errorf("calls of the parent (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]uint64{"cuLaunchKernel @-1": 2}, calls(m.read(uint32(child)))); diff != "" {
			t.Errorf("calls of the child (-want +got):\n%s", diff)
		}
		m.lossless()
	})
}

// Calls that never return must not be confused with later ones, and are counted.
func TestCallsWithoutReturn(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuCtxSync"}, func(t *testing.T, m *machine) {
		p := m.run("gone")
		if diff := cmp.Diff(map[string]uint64{"cuLaunchKernel @0": 11, "cuDevicePrimaryCtxRetain @0": 1}, calls(p)); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		l := m.losses()
		want := uint64(2) // one thread ended, one jumped
		if !m.p.features[0].OK {
			want = 1 // the thread's end is not seen without task storage
		}
		if l.NoReturn != want {
			t.Errorf("%d calls without a return, want %d", l.NoReturn, want)
		}
		if at := p.Devices[0].WaitingSince; want == 2 && !at.IsZero() {
			t.Errorf("it waits since %v, in a call that it has left", at)
		}
	})
}

// Nested calls are followed up to a depth; deeper ones are counted as such and do not disturb
// later calls.
func TestNested(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuStreamSync"}, func(t *testing.T, m *machine) {
		got := calls(m.run("deep"))
		if diff := cmp.Diff(map[string]uint64{"cuStreamSynchronize @0": 4, "cuLaunchKernel @0": 5, "cuDevicePrimaryCtxRetain @0": 1}, got); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if l := m.losses(); l.Nested != 3 || l.NoReturn != 0 {
			t.Errorf("%d calls too deep and %d without a return, want 3 and 0", l.Nested, l.NoReturn)
		}
	})
}

// An unreadable argument is counted, and so is the call.
func TestFaults(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernelEx"}, func(t *testing.T, m *machine) {
		if got := calls(m.run("faults"))["cuLaunchKernelEx @0"]; got != 2 {
			t.Errorf("%d launches, want 2", got)
		}
		if l := m.losses(); l.Faults != 2 {
			t.Errorf("%d faults, want 2", l.Faults)
		}
	})
}

// All errors are counted by code; only some are reported as events.
func TestErrors(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuCtxSync"}, func(t *testing.T, m *machine) {
		p := m.run("fail")
		got := map[string][]tracer.CodeCount{}
		for _, op := range p.Ops {
			if op.Errors != nil {
				got[op.Op] = op.Errors
			}
		}
		want := map[string][]tracer.CodeCount{
			"cuLaunchKernel":   {{Code: 1, Count: 1}, {Code: 719, Count: 3}},
			"cuCtxSynchronize": {{Code: 600, Count: 1000}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("errors (-want +got):\n%s", diff)
		}
		told := map[string]uint64{}
		for _, e := range m.p.Events(10000) {
			told[fmt.Sprint(e.Type, " ", e.Op, " ", e.Code)]++
		}
		if told["error cuLaunchKernel 719"] != 3 || told["error cuLaunchKernel 1"] != 1 {
			t.Errorf("told are %v", told)
		}
		if l := m.losses(); told["error cuCtxSynchronize 600"]+l.Limited+l.Events != 1000 || l.Limited == 0 {
			t.Errorf("of 1000 errors %d are told, %d limited and %d lost", told["error cuCtxSynchronize 600"], l.Limited, l.Events)
		}
	})
}

// Watch reports slow calls, Record all calls, and both can be stopped.
func TestEvents(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuLibrary", "cuMemcpyHtoD_"}, func(t *testing.T, m *machine) {
		r := m.start("slow")
		r.reaches("watch")
		check(t, m.p.Watch(r.pid, "cuLaunchKernel", 20*time.Millisecond))
		began := time.Now()
		r.goOn()
		r.reaches("record")
		all := slices.DeleteFunc(m.p.Events(100), func(e tracer.Event) bool {
			return e.Stream == 3 && e.Duration >= 20*time.Millisecond // a fast launch that had to wait for a CPU
		})
		if len(all) != 1 {
			t.Fatalf("%d events, want the slow launch only: %v", len(all), all)
		}
		e := all[0]
		if e.Duration < 30*time.Millisecond || e.Time.Before(began.Add(-10*time.Millisecond)) || e.Time.After(time.Now()) || e.TID != r.pid {
			t.Errorf("the event is %+v", e)
		}
		if m.p.features[1].OK && e.Blocked < 25*time.Millisecond {
			t.Errorf("it slept 30 ms in the call, and was blocked %v", e.Blocked)
		}
		e.Time, e.TID, e.Duration, e.RunQueue, e.Blocked = time.Time{}, 0, 0, 0, 0
		want := tracer.Event{PID: r.pid, Type: "outlier", Op: "cuLaunchKernel", Kernel: "slowly", Stream: 4}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Errorf("outlier (-want +got):\n%s", diff)
		}

		check(t, m.p.Record(r.pid, true))
		r.goOn()
		r.reaches("stop")
		check(t, m.p.Record(r.pid, false))
		check(t, m.p.Watch(r.pid, "cuLaunchKernel", 0))
		r.goOn()
		r.ends()
		var got []string
		for _, e := range m.p.Events(100) {
			if e.Type != "outlier" { // on a slow machine any launch may be one
				got = append(got, fmt.Sprintf("%s %s %d %#x", e.Type, e.Op, e.Bytes, e.Stream))
			}
		}
		wantCalls := []string{"call cuMemcpyHtoD 4711 0x0", "call cuLaunchKernel 0 0x5"}
		if m.p.features[2].OK {
			wantCalls = append(wantCalls, "exit  0 0x0")
		}
		if diff := cmp.Diff(wantCalls, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if err := m.p.Watch(r.pid, "cuNothing", time.Second); err == nil {
			t.Error("an operation that does not exist can be watched")
		}
		m.lossless()
	})
}

// Full maps: the excess is counted, total launches stay exact, and existing entries are kept.
func TestFull(t *testing.T) {
	t.Parallel()
	o := Options{MaxKernels: 8, MaxNames: 8, MaxAllocations: 8, MaxStreams: 8, RingBytes: 4096}
	inModes(t, o, []string{"cuLaunchKernel", "cuModuleGet", "cuMemAlloc_"}, func(t *testing.T, m *machine) {
		p := m.run("many", "500")
		var sum uint64
		for _, k := range p.Kernels {
			sum += k.Count
		}
		if sum != 500 || p.Kernels[len(p.Kernels)-1].Name != tracer.KernelOther {
			t.Errorf("%d launches are in kernels, want 500; the last is %q", sum, p.Kernels[len(p.Kernels)-1].Name)
		}
		if got := calls(p)["cuLaunchKernel @0"]; got != 500 {
			t.Errorf("%d launches, want 500", got)
		}
		l := m.losses()
		for _, name := range []string{"kernels", "names", "allocations", "streams"} {
			// The kernel admits a few more entries per CPU.
			if n := l.MapFull[name]; n < 300 || n > 492 {
				t.Errorf("%d of 500 %s had no place, with a place for 8", n, name)
			}
		}
		kept := p.Devices[0].Memory.Allocations
		if kept+l.MapFull["allocations"] != 500 || p.Devices[0].Memory.Reserved != kept {
			t.Errorf("%d allocations of %d bytes are known, %d not", kept, p.Devices[0].Memory.Reserved, l.MapFull["allocations"])
		}
	})
}

// Processes that have no place: each of their calls counts as lost. Two in three were not.
func TestTooManyProcesses(t *testing.T) {
	t.Parallel()
	inModes(t, Options{MaxProcesses: 8}, []string{"cuLaunchKernel"}, func(t *testing.T, m *machine) {
		const each, more = 10, 2 // launches of a process, and other calls
		made := 0
		for m.losses().MapFull["processes"] < 5*each {
			m.start("loop", strconv.Itoa(each)).ends()
			made++
		}
		all, losses, err := m.p.Read(time.Now())
		check(t, err)
		for _, p := range all {
			if got := calls(p)["cuLaunchKernel @0"]; got != each {
				t.Errorf("process %d has %d launches, want %d", p.PID, got, each)
			}
		}
		if want := uint64((made - len(all)) * (each + more)); losses.MapFull["processes"] != want {
			t.Errorf("%d calls of %d processes without a place are lost, want %d", losses.MapFull["processes"], made-len(all), want)
		}
		for _, p := range all {
			m.p.Forget(p.PID)
		}
		if got := calls(m.run("loop", strconv.Itoa(each)))["cuLaunchKernel @0"]; got != each {
			t.Errorf("with room again, a process has %d launches, want %d", got, each)
		}
	})
}

// A pid that is given out again before its first process is forgotten: both were one process, that had ended.
// Pids are not made to repeat, which would confuse other tests: the first process is only in the map.
func TestReusedPID(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel"}, func(t *testing.T, m *machine) {
		r := m.start("gated", "5")
		r.reaches("ready")
		check(t, m.p.maps.Procs.Put(kernelProcKey{Tgid: r.pid}, kernelProcVal{First: 1, Start: 1}))
		r.goOn()
		r.ends()
		all, _, err := m.p.Read(time.Now())
		check(t, err)
		type one struct {
			ended bool
			calls map[string]uint64
		}
		var got []one
		for _, p := range all {
			if p.PID == r.pid {
				got = append(got, one{p.Ended, calls(p)})
			}
		}
		want := []one{
			{true, map[string]uint64{}},
			{m.p.features[2].OK, map[string]uint64{"cuLaunchKernel @0": 5, "cuDevicePrimaryCtxRetain @0": 1}},
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(one{})); diff != "" {
			t.Errorf("processes with pid %d (-want +got):\n%s", r.pid, diff)
		}
		m.lossless()
	})
}

// A process that exited is marked as ended, and after Forget no map has a key of it.
func TestForget(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuModuleGet", "cuMemAlloc_"}, func(t *testing.T, m *machine) {
		other := m.run("copies")
		for _, args := range [][]string{{"many", "600"}, {"nccl"}, {"devices"}, {"fail"}} {
			r := m.start(args...)
			check(t, m.p.Watch(r.pid, "cuLaunchKernel", time.Hour))
			for range 2 {
				if args[0] == "nccl" {
					r.goOn()
				}
			}
			r.ends()
			if p := m.read(r.pid); p.Ended != m.p.features[2].OK {
				t.Errorf("%v has ended: %v", args, p.Ended)
			}
			m.p.Forget(r.pid)
			left := map[string]int{}
			for name, em := range m.p.all {
				var k, v []byte
				if name == kernelMapTasks || name == kernelMapThreads || name == kernelMapLosses || name == kernelMapNothing || name == kernelMapEvents || name[0] == '.' {
					continue
				}
				for it := em.Iterate(); it.Next(&k, &v); {
					if uint32(k[0])|uint32(k[1])<<8|uint32(k[2])<<16|uint32(k[3])<<24 == r.pid {
						left[name]++
					}
				}
			}
			if diff := cmp.Diff(map[string]int{}, left); diff != "" {
				t.Errorf("keys of %v that are left (-want +got):\n%s", args, diff)
			}
		}
		if again := m.read(other.PID); cmp.Diff(calls(other), calls(again)) != "" {
			t.Errorf("another process was forgotten, too: %v", calls(again))
		}
	})
}

// Time off the CPU, inside calls and in total.
func TestHost(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuCtxSync"}, func(t *testing.T, m *machine) {
		if !m.p.features[1].OK {
			if m.run("host").Host.Known {
				t.Error("the scheduler is not seen, and known")
			}
			return
		}
		// On a busy machine a thread may lose its CPU after it has set the timer of its sleep: then it sleeps
		// less, and waits for the CPU. Some run is undisturbed.
		await.NoError(t, func() error {
			h := m.run("host").Host
			if !h.Known || h.Blocked > time.Minute || h.RunQueue <= 0 || h.RunQueue < h.RunQueueInCall || h.Switches == 0 {
				t.Fatalf("it shared its CPU: %+v", h)
			}
			if h.BlockedInCall < 95*time.Millisecond || h.Blocked < h.BlockedInCall+45*time.Millisecond {
				return fmt.Errorf("it slept 100 ms in a call and 50 ms outside: %+v", h)
			}
			return nil
		})
	})
}
