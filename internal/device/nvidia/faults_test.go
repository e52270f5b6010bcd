//go:build linux

package nvidia

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/device/vendorlib"
)

// One failing call costs only its own value and is reported; the rest of the Sample is
// valid.
func TestPartialFailure(t *testing.T) {
	h := nvmltest.New(t, "gpu 0 ret nvmlDeviceGetMemoryInfo_v2 999\ngpu 0 ret nvmlDeviceGetPerformanceState 4")
	s, err := devices(t, openFake(t, h, newClock()))[0].Read(t.Context(), device.Slow)
	if err == nil || !strings.Contains(err.Error(), "nvmlDeviceGetMemoryInfo_v2") || !strings.Contains(err.Error(), "no permission") {
		t.Errorf("err = %v, want both calls", err)
	}
	if s.Memory.Used.OK() || !s.Energy.OK() || !s.Utilization.Compute.OK() {
		t.Errorf("memory %v, energy %v, utilization %v", s.Memory.Used, s.Energy, s.Utilization.Compute)
	}
}

// A driver that predates a feature loses that feature and nothing else.
func TestOldDriver(t *testing.T) {
	h := nvmltest.Without(t, "process 0 4242 compute 1024 74", "nvmlGpm*", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetProcessUtilization",
		"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSamples", "nvmlDeviceGetMarginTemperature", "nvmlInitWithFlags")
	c := newClock()
	s := readTwice(t, devices(t, openFake(t, h, c))[0], c)
	if diff := cmp.Diff(device.Profile{}, s.Profile); diff != "" {
		t.Errorf("profiling without GPM: %s", diff)
	}
	// The old call counts reserved memory as used, which is a different quantity.
	want := device.Memory{Total: device.Of(150754820096), Free: device.Of(148915748864), BAR1Used: s.Memory.BAR1Used, BAR1Total: s.Memory.BAR1Total}
	if diff := cmp.Diff(want, s.Memory); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
	if s.Processes[0].Utilization.OK() || s.Processes[0].MemoryUsed != device.Of(1024) {
		t.Errorf("process: %+v", s.Processes[0])
	}
	if s.Throttled(device.BucketPower) != device.Of(1) {
		t.Error("throttling is not read through the function's old name")
	}
	if s.UtilizationPeak.Compute.OK() || !s.Utilization.Compute.OK() || !s.Energy.OK() {
		t.Errorf("peak %v, utilization %v, energy %v", s.UtilizationPeak.Compute, s.Utilization.Compute, s.Energy)
	}
	if limits := s.Temperatures[0].Limits; len(limits) != 3 || limits[1].Margin != device.Of(89-63) {
		t.Errorf("margins from thresholds: %+v", limits)
	}
}

// A lost GPU affects no other, and comes back with the driver as a working Device.
func TestLostAndReturned(t *testing.T) {
	h := nvmltest.New(t, "gpus 3")
	c := newClock()
	r := openFake(t, h, c)
	list := devices(t, r)
	h.Script(t, "gpus 3\ngpu 1 lost")
	if _, err := list[1].Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) {
		t.Fatalf("Read of a lost GPU: err = %v", err)
	}
	for _, i := range []int{0, 2} {
		if s, err := list[i].Read(t.Context(), device.Fast); err != nil || !s.Utilization.Compute.OK() {
			t.Errorf("GPU %d beside a lost one: %v", i, err)
		}
	}
	found, err := r.Devices(t.Context())
	if len(found) != 2 || !errors.Is(err, device.ErrLost) {
		t.Fatalf("while lost: %d devices, err %v", len(found), err)
	}
	// The library was re-initialized meanwhile; the other GPUs are unaffected.
	for _, i := range []int{0, 2} {
		if s, err := list[i].Read(t.Context(), device.Fast); err != nil || !s.Energy.OK() {
			t.Errorf("GPU %d after the re-initialization: energy %v, err %v", i, s.Energy, err)
		}
	}
	h.Script(t, "gpus 3\ngeneration 1")
	if _, err := list[0].Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) {
		t.Fatalf("Read with a handle from before the driver reload: err = %v", err)
	}
	found = devices(t, r)
	if len(found) != 3 {
		t.Fatalf("%d devices after the driver was reloaded", len(found))
	}
	for i, d := range found {
		if s, err := d.Read(t.Context(), device.Fast); err != nil || !s.Energy.OK() {
			t.Errorf("GPU %d after the reload: energy %v, err %v", i, s.Energy, err)
		}
	}
}

// A call that hangs must not delay other devices, a discovery or Close.
func TestHangBlocksNobody(t *testing.T) {
	h := nvmltest.New(t, "gpus 2")
	r := openFake(t, h, newClock())
	list := devices(t, r)
	h.Append(t, "gpu 0 hang nvmlDeviceGetTemperature")
	done := make(chan error, 1)
	go func() {
		_, err := list[0].Read(t.Context(), device.Fast)
		done <- err
	}()
	await.True(t, "a hung call", func() bool { return list[0].(device.Busy).Busy() == "nvmlDeviceGetTemperature" })
	r.stale.Store(true) // makes the next discovery re-initialize
	waiting := make(chan error, 1)
	go func() {
		_, err := r.Devices(t.Context())
		waiting <- err
	}()
	for range 20 {
		if _, err := list[1].Read(t.Context(), device.Fast); err != nil {
			t.Fatal(err)
		}
	}
	h.Script(t, "gpus 2")
	if err := <-done; err != nil {
		t.Errorf("the call that hung returned %v", err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("the discovery that waited returned %v", err)
	}
}

// A GPU that hangs during discovery must not keep the others from being read.
func TestDiscoveryHangBlocksNobody(t *testing.T) {
	h := nvmltest.New(t, "gpus 2")
	r := openFake(t, h, newClock())
	list := devices(t, r)
	h.Append(t, "gpu 1 hang nvmlDeviceGetUUID")
	done := make(chan error, 1)
	go func() {
		_, err := r.Devices(t.Context())
		done <- err
	}()
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
		if _, err := list[0].Read(t.Context(), device.Slow); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("the discovery did not hang: %v", err)
	default:
	}
	h.Script(t, "gpus 2")
	if err := <-done; err != nil {
		t.Errorf("the discovery that hung returned %v", err)
	}
}

func TestCloseReleasesDeviceFiles(t *testing.T) {
	h := nvmltest.New(t, "gpus 2")
	c := newClock()
	r, err := Open(t.Context(), Options{Library: h.Library, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	readTwice(t, devices(t, r)[0], c)
	if open := h.OpenFiles(t, os.Getpid()); len(open) != 3 {
		t.Errorf("open while reading: %v", open)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if open := h.OpenFiles(t, os.Getpid()); len(open) != 0 {
		t.Errorf("still open: %v", open)
	}
}

func TestOpenErrors(t *testing.T) {
	f := func(script string, want error, text string) {
		t.Helper()
		h := nvmltest.New(t, script)
		_, err := Open(t.Context(), Options{Library: h.Library})
		if !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Errorf("init %q: err = %v", script, err)
		}
	}
	f("init 9", device.ErrAbsent, "driver is not loaded")
	f("init 18", errLibVersionMismatch, "without a reboot")
	f("init 4", errNoPermission, "no permission")

	if _, err := Open(t.Context(), Options{Root: t.TempDir()}); !errors.Is(err, device.ErrAbsent) {
		t.Errorf("a machine without the library: %v", err)
	}
	// A library that exists but is broken is a failure, not an absence.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, soname), []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{Root: t.TempDir(), LibraryDirs: []string{dir}}); err == nil || errors.Is(err, device.ErrAbsent) {
		t.Errorf("a broken library: %v", err)
	}
}

// After a GPU was lost, re-initializing the library takes a while. Reads of other GPUs wait
// meanwhile and must not report those GPUs as lost.
func TestReinitializationHidesNobody(t *testing.T) {
	host := nvmltest.New(t, "gpus 3\n")
	r := openFake(t, host, newClock())
	list := devices(t, r)
	// No Read calls nvmlDeviceGetUUID, so only discovery is slow.
	host.Append(t, "gpu 1 lost\ngpu * sleep nvmlDeviceGetUUID 100")
	if _, err := list[1].Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) {
		t.Fatalf("Read of a lost GPU: err = %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := r.Devices(t.Context())
		done <- err
	}()
	for running := true; running; {
		select {
		case err := <-done:
			running = false
			if !errors.Is(err, device.ErrLost) {
				t.Errorf("discovery beside a lost GPU: %v", err)
			}
		default:
		}
		if _, err := list[0].Read(t.Context(), device.Fast); err != nil {
			t.Fatalf("GPU 0 during the initialization: %v", err)
		}
		time.Sleep(time.Millisecond) // let the initialization proceed
	}
}

// A GPU that hangs when it is first opened must not hide the others.
func TestFirstDiscoveryHang(t *testing.T) {
	t.Parallel()
	h := nvmltest.New(t, "gpus 3\ngpu 1 hang nvmlDeviceGetUUID")
	r := openFake(t, h, newClock())
	found, err := r.Devices(t.Context())
	if len(found) != 2 || err == nil || !strings.Contains(err.Error(), "GPU 1: nvmlDeviceGetUUID has not returned") {
		t.Fatalf("%d devices, err %v", len(found), err)
	}
	r.stale.Store(true)
	if _, err := r.Devices(t.Context()); !errors.Is(err, vendorlib.ErrBusy) {
		t.Errorf("re-initialized during a hung call: %v", err)
	}
	h.Script(t, "gpus 3")
	await.NoError(t, func() error {
		if found, err = r.Devices(t.Context()); len(found) != 3 || err != nil {
			return fmt.Errorf("after the hang: %d devices, error %w", len(found), err)
		}
		return nil
	})
}

// A GPU that needs a reset, or stays lost, must not interrupt the profiling of the others.
func TestSickGPUCostsOnlyItself(t *testing.T) {
	h := nvmltest.New(t, "gpus 3")
	c := newClock()
	r := openFake(t, h, c)
	list := devices(t, r)
	readTwice(t, list[0], c)
	h.Script(t, "gpus 3\ngpu 1 ret nvmlDeviceGetUtilizationRates 16\ngpu 2 lost")
	if _, err := list[1].Read(t.Context(), device.Fast); !errors.Is(err, device.ErrNeedsReset) {
		t.Fatalf("Read of a GPU that needs a reset: err = %v", err)
	}
	if r.stale.Load() {
		t.Error("a GPU that needs a reset made the library re-initialize")
	}
	if _, err := list[2].Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) || !r.stale.Load() {
		t.Fatalf("Read of a lost GPU: err = %v", err)
	}
	profiled := func() bool {
		t.Helper()
		if _, err := r.Devices(t.Context()); !errors.Is(err, device.ErrLost) {
			t.Fatalf("discovery beside a lost GPU: %v", err)
		}
		c.advance(time.Minute)
		s, err := list[0].Read(t.Context(), device.Fast)
		return err == nil && s.Profile.SMActive.OK()
	}
	if profiled() {
		t.Error("a newly lost GPU did not re-initialize the library")
	}
	for range 10 {
		if !profiled() {
			t.Error("a GPU lost earlier interrupted the profiling of another GPU")
		}
	}
	if profiled() {
		t.Error("after ten minutes the library was not re-initialized to find the lost GPU")
	}
	if !profiled() {
		t.Error("the library was re-initialized again at the next discovery")
	}
}

// Unsupported queries are retried after each discovery, because a link may come up late.
func TestUnsupportedIsForgotten(t *testing.T) {
	h := nvmltest.New(t, "gpu 0 nvlinks 2\nfield 0 165/1 unsupported")
	r := openFake(t, h, newClock())
	d := devices(t, r)[0]
	links := func() int {
		t.Helper()
		s, err := d.Read(t.Context(), device.Slow)
		if err != nil {
			t.Fatal(err)
		}
		return len(s.Interconnects[len(s.Interconnects)-1].Links)
	}
	if n := links(); n != 1 {
		t.Fatalf("%d links", n)
	}
	h.Script(t, "gpu 0 nvlinks 2")
	devices(t, r)
	if n := links(); n != 2 {
		t.Errorf("%d links after the second came up", n)
	}
}
