//go:build linux

package nvmltest

import (
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/google/go-cmp/cmp"
)

// The NVML return codes that the tests expect.
const (
	success          = 0
	uninitialized    = 1
	invalidArgument  = 2
	notSupported     = 3
	notFound         = 6
	insufficientSize = 7
	functionNotFound = 13
	gpuIsLost        = 15
	mismatch         = 25
)

type library struct {
	t      *testing.T
	handle uintptr
}

// open loads and initializes the library of h until the test ends.
func open(t *testing.T, h *Host) library {
	t.Helper()
	handle, err := purego.Dlopen(h.Library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	l := library{t, handle}
	l.want(success, "nvmlInit_v2")
	t.Cleanup(func() { l.call("nvmlShutdown") })
	return l
}

// call makes an NVML call. Pointers are converted in its argument list.
//
//go:uintptrescapes
func (l library) call(name string, args ...uintptr) int {
	l.t.Helper()
	symbol, err := purego.Dlsym(l.handle, name)
	if err != nil {
		l.t.Error(err)
		return -1
	}
	r, _, _ := purego.SyscallN(symbol, args...)
	return int(int32(r))
}

//go:uintptrescapes
func (l library) want(ret int, name string, args ...uintptr) {
	l.t.Helper()
	if got := l.call(name, args...); got != ret {
		l.t.Errorf("%s returned %d, want %d", name, got, ret)
	}
}

func (l library) gpu(index uintptr) uintptr {
	l.t.Helper()
	var d uintptr
	l.want(success, "nvmlDeviceGetHandleByIndex_v2", index, uintptr(unsafe.Pointer(&d)))
	return d
}

func (l library) count() (n uint32) {
	l.t.Helper()
	l.want(success, "nvmlDeviceGetCount_v2", uintptr(unsafe.Pointer(&n)))
	return n
}

func (l library) temperature(d uintptr) (ret int, celsius uint32) {
	l.t.Helper()
	ret = l.call("nvmlDeviceGetTemperature", d, 0, uintptr(unsafe.Pointer(&celsius)))
	return ret, celsius
}

func (l library) energy(d uintptr) (mJ uint64) {
	l.t.Helper()
	l.want(success, "nvmlDeviceGetTotalEnergyConsumption", d, uintptr(unsafe.Pointer(&mJ)))
	return mJ
}

func (l library) text(name string, d uintptr) string {
	l.t.Helper()
	var b [96]byte
	l.want(success, name, d, uintptr(unsafe.Pointer(&b)), uintptr(len(b)))
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b[:])
}

func diff(t *testing.T, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestScriptIsFollowed(t *testing.T) {
	h := New(t, "gpus 2\ngpu * temp 41 # all\ngpu 1 temp 42\ngpu 1 name NVIDIA B200\n")
	l := open(t, h)
	diff(t, uint32(2), l.count())
	diff(t, "GPU-00000000-0000-4000-8000-000000000001", l.text("nvmlDeviceGetUUID", l.gpu(1)))
	diff(t, "NVIDIA B200", l.text("nvmlDeviceGetName", l.gpu(1)))
	_, celsius := l.temperature(l.gpu(0))
	diff(t, uint32(41), celsius)

	h.Append(t, "gpu 0 temp 90")
	_, celsius = l.temperature(l.gpu(0))
	diff(t, uint32(90), celsius)
	h.Script(t, "gpu 0 temp hot") // a script with an error leaves the previous state in place
	_, celsius = l.temperature(l.gpu(0))
	diff(t, uint32(90), celsius)

	h.Script(t, "gpus 2\ngpu 0 temp na\ngpu 0 gone")
	diff(t, uint32(1), l.count())
	diff(t, "GPU-00000000-0000-4000-8000-000000000001", l.text("nvmlDeviceGetUUID", l.gpu(0)))
}

func TestHangEndsWithTheScript(t *testing.T) {
	h := New(t, "gpus 2\ngpu 1 hang nvmlDeviceGetTemperature")
	l := open(t, h)
	hung, healthy := l.gpu(1), l.gpu(0)
	done := make(chan int)
	go func() {
		ret, _ := l.temperature(hung)
		done <- ret
	}()
	select {
	case ret := <-done:
		t.Fatalf("the call did not hang, it returned %d", ret)
	case <-time.After(100 * time.Millisecond):
	}
	if ret, _ := l.temperature(healthy); ret != success {
		t.Errorf("a hung GPU made another one answer %d", ret)
	}
	h.Script(t, "gpus 2")
	diff(t, success, <-done)
}

func TestFaults(t *testing.T) {
	h := New(t, "gpus 2\ngpu 0 ret nvmlDeviceGetTemp* 999\ngpu 0 sleep nvmlDeviceGetUUID 50\ngpu * ret nvmlDeviceGetCount_v2 4")
	l := open(t, h)
	ret, _ := l.temperature(l.gpu(0))
	diff(t, 999, ret)
	ret, _ = l.temperature(l.gpu(1))
	diff(t, success, ret)
	start := time.Now()
	l.text("nvmlDeviceGetUUID", l.gpu(0))
	if d := time.Since(start); d < 50*time.Millisecond {
		t.Errorf("nvmlDeviceGetUUID took %v", d)
	}
	var n uint32
	l.want(4, "nvmlDeviceGetCount_v2", uintptr(unsafe.Pointer(&n)))
}

func TestLostUntilInitialized(t *testing.T) {
	h := New(t, "gpus 2")
	l := open(t, h)
	d := l.gpu(1)
	h.Script(t, "gpus 2\ngpu 1 lost")
	check := func() {
		t.Helper()
		ret, _ := l.temperature(d)
		diff(t, gpuIsLost, ret)
		l.want(gpuIsLost, "nvmlDeviceGetHandleByIndex_v2", 1, uintptr(unsafe.Pointer(new(uintptr))))
		ret, _ = l.temperature(l.gpu(0))
		diff(t, success, ret)
		diff(t, uint32(2), l.count())
	}
	check()
	h.Script(t, "gpus 2")
	check()
	l.want(success, "nvmlShutdown")
	l.want(success, "nvmlInit_v2")
	ret, _ := l.temperature(l.gpu(1))
	diff(t, success, ret)
	ret, _ = l.temperature(d)
	diff(t, invalidArgument, ret) // a handle of the previous initialization
}

func TestDriverReload(t *testing.T) {
	h := New(t, "gpu 0 ecc-dram 5 0 7 0")
	l := open(t, h)
	d := l.gpu(0)
	diff(t, uint64(8653252), l.energy(d))
	h.Append(t, "generation 1\ngpu 0 throttle-times 9")
	ret, _ := l.temperature(d)
	diff(t, uninitialized, ret)
	l.want(uninitialized, "nvmlDeviceGetCount_v2", uintptr(unsafe.Pointer(new(uint32))))
	l.want(success, "nvmlInit_v2") // only increments the reference count
	ret, _ = l.temperature(d)
	diff(t, uninitialized, ret)
	l.want(success, "nvmlShutdown")
	l.want(success, "nvmlShutdown")
	l.want(success, "nvmlInit_v2")
	d = l.gpu(0)
	diff(t, uint64(0), l.energy(d))
	diff(t, []field{{74, 3, success, 9}, {78, 3, success, 0}, {3, 3, success, 0}, {5, 3, success, 7}},
		l.fields(d, 74, 78, 3, 5))
}

func TestDeviceFiles(t *testing.T) {
	h := New(t, "gpus 2\ngpu 1 minor 5\ninit 18")
	handle, err := purego.Dlopen(h.Library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	l := library{t, handle}
	l.want(uninitialized, "nvmlShutdown")
	l.want(18, "nvmlInit_v2")
	diff(t, []string(nil), h.OpenFiles(t, os.Getpid()))
	h.Append(t, "init 0")
	all := []string{"nvidia0", "nvidia5", "nvidiactl"}
	l.want(success, "nvmlInit_v2")
	l.want(success, "nvmlInit_v2")
	diff(t, all, h.OpenFiles(t, os.Getpid()))
	l.want(success, "nvmlShutdown")
	diff(t, all, h.OpenFiles(t, os.Getpid()))
	l.want(success, "nvmlShutdown")
	diff(t, []string(nil), h.OpenFiles(t, os.Getpid()))
	l.want(uninitialized, "nvmlShutdown")
	for flags, want := range map[uintptr][]string{1: all, 2: {"nvidiactl"}} {
		l.want(success, "nvmlInitWithFlags", flags)
		diff(t, want, h.OpenFiles(t, os.Getpid()))
		diff(t, uint32(len(want)-1), l.count())
		l.want(success, "nvmlShutdown")
	}
}

func TestWithout(t *testing.T) {
	l := open(t, Without(t, "gpu 0 temp 7", "nvmlGpm*", "nvmlDeviceGetMarginTemperature"))
	for name, want := range map[string]bool{
		"nvmlGpmSampleGet": false, "nvmlGpmMetricsGet": false, "nvmlDeviceGetMarginTemperature": false,
		"nvmlDeviceGetTemperature": true,
	} {
		_, err := purego.Dlsym(l.handle, name)
		if got := err == nil; got != want {
			t.Errorf("%s is exported: %v, want %v", name, got, want)
		}
	}
	_, celsius := l.temperature(l.gpu(0))
	diff(t, uint32(7), celsius)
}

func TestConcurrentCalls(t *testing.T) {
	h := New(t, "gpus 8")
	l := open(t, h)
	var wg sync.WaitGroup
	for i := range uintptr(8) {
		d := l.gpu(i)
		wg.Go(func() {
			for range 300 {
				if ret, celsius := l.temperature(d); ret != success || celsius < 60 || celsius > 69 {
					t.Errorf("returned %d, temperature %d", ret, celsius)
					return
				}
				l.fields(d, 82, 83, 186)
			}
		})
	}
	for i := range 30 {
		h.Script(t, "gpus 8\ngpu * temp 6"+string(rune('0'+i%10)))
	}
	wg.Wait()
}
