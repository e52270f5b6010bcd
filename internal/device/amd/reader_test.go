//go:build linux

package amd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
)

// A machine without GPUs, or with GPUs of other vendors only, is a normal state.
func TestAbsent(t *testing.T) {
	f := func(build func(tree)) {
		t.Helper()
		tr := newTree(t)
		build(tr)
		if r, err := Open(t.Context(), tr.options()); r != nil || !errors.Is(err, device.ErrAbsent) {
			t.Errorf("%v, %v", r, err)
		}
	}
	f(func(tree) {})
	f(func(tr tree) {
		tr.write("sys/class/drm/card0/device/uevent", "DRIVER=nvidia\nPCI_SLOT_NAME=0000:01:00.0\n")
	})
	f(func(tr tree) { tr.write("sys/class/drm/card0/device/uevent", "DRIVER=amdgpu\n") }) // a partition without its GPU
	f(func(tr tree) {
		tr.write("sys/class/drm/card0-DP-1/device/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:01:00.0\n")
	})
	f(func(tr tree) { tr.folder("sys/class/drm/card0/device/uevent") })
}

// Empty options mean this machine and the current time.
func TestOptions(t *testing.T) {
	o := Options{}.filled()
	if o.sys() != "/sys" || o.proc() != "/proc" || time.Since(o.Now()) > time.Minute {
		t.Errorf("%s, %s, %s", o.sys(), o.proc(), o.Now())
	}
	tr := newTree(t)
	tr.card(0, "0000:01:00.0", nil)
	t.Chdir(tr.root) // a directory other than the root
	_, err := Open(t.Context(), Options{})
	if _, slash := Open(t.Context(), Options{Root: "/"}); (err == nil) != (slash == nil) {
		t.Errorf("%v, and below /: %v", err, slash)
	}
}

// Sixteen GPUs with gaps in their numbers are ordered by number: in string order card10
// would precede card2 and shift every index after it.
func TestOrder(t *testing.T) {
	tr := newTree(t)
	numbers := []int{0, 1, 2, 3, 10, 12, 13, 20, 21, 22, 33, 64, 99, 100, 101, 128}
	for i, n := range numbers {
		tr.card(n, fmt.Sprintf("0000:%02x:00.0", 0xf0-i), nil)
	}
	var got, want []string
	for _, d := range devices(t, tr.open()) {
		got = append(got, fmt.Sprint(d.ID().Index, " ", d.ID().PCI, " ", read(t, []device.Device{d}, device.Fast)[0].Aliases))
	}
	for i, n := range numbers {
		want = append(want, fmt.Sprintf("%d 0000:%02x:00.0 [card%d]", i, 0xf0-i, n))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A GPU that is still present keeps its Device and its counters. A GPU that changed gets a
// new Device, and the caller starts over.
func TestRediscovery(t *testing.T) {
	tr := machine(t)
	r := tr.open()
	before, after := devices(t, r), devices(t, r)
	for i := range before {
		if before[i] != after[i] {
			t.Errorf("%s has a new Device", before[i].ID().UUID)
		}
	}
	tr.write(mi300x+"current_memory_partition", "NPS4\n")
	tr.write("sys/class/kfd/kfd/topology/nodes/10/gpu_id", "2601\n")
	after = devices(t, r)
	for i, same := range []bool{true, false, false, false, true, true} {
		if (before[i] == after[i]) != same {
			t.Errorf("%s: the same Device %v, want %v", before[i].ID().UUID, !same, same)
		}
	}
	if got := after[1].ID().Profile; got != "dpx_nps4" {
		t.Errorf("profile %s", got)
	}
	// In SPX mode it is a single GPU again, with its files and its address.
	tr.remove("sys/class/kfd/kfd/topology/nodes/2")
	tr.write(mi300x+"current_compute_partition", "SPX\n")
	after = devices(t, r)
	if len(after) != 4 || after[0].ID() != before[0].ID() || after[0] == before[0] {
		t.Errorf("%d devices, first %v", len(after), after[0].ID())
	}
	s := read(t, after[:1], device.Fast)[0]
	if diff := cmp.Diff([]string{"GPU-e3aa1c0d5b6f7081", "renderD128", "card1", "gpu-1-128"}, s.Aliases); diff != "" {
		t.Errorf("aliases (-want +got):\n%s", diff)
	}
	if len(s.Processes) != 1 || s.Processes[0].Occupancy != device.Of(0.75) {
		t.Errorf("processes %v", s.Processes)
	}
}

// A GPU whose directory disappeared is lost: its last values must not be reported forever.
// Other GPUs are unaffected.
func TestLost(t *testing.T) {
	tr := machine(t)
	list := devices(t, tr.open())
	read(t, list, device.Static)
	lost := map[int]bool{}
	f := func(gone ...int) {
		t.Helper()
		for _, i := range gone {
			lost[i] = true
		}
		for i, d := range list {
			s, err := d.Read(t.Context(), device.Fast)
			if errors.Is(err, device.ErrLost) != lost[i] || !lost[i] && err != nil {
				t.Errorf("%s: %v", d.ID().UUID, err)
			}
			if diff := cmp.Diff(device.Sample{ID: d.ID()}, s); lost[i] && diff != "" {
				t.Errorf("%s (-want +got):\n%s", d.ID().UUID, diff)
			}
		}
	}
	f()
	tr.write("sys/class/kfd/kfd/topology/nodes/2/gpu_id", "77\n") // repartitioned
	f(2)
	tr.remove("sys/class/kfd/kfd/topology/nodes/1")
	f(1)
	tr.remove("sys/class/drm/card10")
	f(3)
	tr.remove("sys/devices/pci0000:00")
	f(0)
}

// ENODEV from any file means that the device is lost. EPERM because the GPU just fell
// asleep is not an error.
func TestFinish(t *testing.T) {
	tr := newTree(t)
	tr.card(0, "0000:01:00.0", map[string]string{"mem_info_vram_used": "5\n"})
	g := devices(t, tr.open())[0].(*gpu)
	read(t, []device.Device{g}, device.Static)
	fails := func(errno error) error { return &os.PathError{Op: "read", Path: "x", Err: errno} }

	g.errs = []error{fails(unix.EIO), fails(unix.ENODEV)}
	if s, err := g.finish(device.Fast); !errors.Is(err, device.ErrLost) || s.Memory.Used.OK() || !g.fresh {
		t.Errorf("%+v, %v", s, err)
	}
	g.errs = []error{fails(unix.EPERM)}
	if s, err := g.finish(device.Fast); !errors.Is(err, unix.EPERM) || errors.Is(err, device.ErrLost) || !s.Memory.Used.OK() || g.fresh {
		t.Errorf("%+v, %v", s, err)
	}
	tr.write("sys/class/drm/card0/device/power/runtime_status", "suspended\n")
	g.errs = []error{fails(unix.EPERM)}
	if s, err := g.finish(device.Fast); err != nil || s.Memory.Used != device.Of(5) || !g.fresh {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestEnded(t *testing.T) {
	tr := newTree(t)
	tr.card(0, "0000:01:00.0", nil)
	r := tr.open()
	list := devices(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := list[0].Read(ctx, device.Static); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
	if _, err := r.Devices(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("devices: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// Nothing that would wake a sleeping GPU is read, and all values return when the GPU wakes
// up.
func TestSleep(t *testing.T) {
	tr := machine(t)
	const dir = "sys/class/drm/card13/device/"
	list := devices(t, tr.open())[5:]
	awake := read(t, list, device.Static)
	tr.write(dir+"power/runtime_status", "suspended\n")
	for _, name := range []string{"gpu_busy_percent", "mem_busy_percent", "pp_dpm_sclk", "current_link_speed", "gpu_metrics"} {
		tr.folder(dir + name) // reading them fails
	}
	tr.folder(dir + "hwmon/hwmon9/temp1_input")
	asleep := read(t, list, device.Slow)
	want := []device.Sample{{ID: awake[0].ID, Info: awake[0].Info, Aliases: awake[0].Aliases}}
	if diff := cmp.Diff(want, asleep); diff != "" {
		t.Errorf("asleep (-want +got):\n%s", diff)
	}
	tr.write(dir+"power/runtime_status", "active\n")
	for _, name := range []string{"pp_dpm_sclk", "current_link_speed", "gpu_metrics", "hwmon/hwmon9/temp1_input"} {
		tr.remove(dir + name)
	}
	tr.write(dir+"hwmon/hwmon9/temp1_input", "38000\n")
	tr.remove(dir + "gpu_busy_percent")
	tr.remove(dir + "mem_busy_percent")
	tr.write(dir+"gpu_busy_percent", "4\n")
	tr.write(dir+"mem_busy_percent", "0\n")
	if diff := cmp.Diff(awake, read(t, list, device.Fast)); diff != "" {
		t.Errorf("awake again (-want +got):\n%s", diff)
	}
}

// While a read hangs, Busy names its file.
func TestBusy(t *testing.T) {
	g := newGPU(Options{}, sighting{})
	if g.Busy() != "" {
		t.Error(g.Busy())
	}
	g.at("/sys/x", "gpu_metrics")
	if g.Busy() != "reading /sys/x/gpu_metrics" {
		t.Error(g.Busy())
	}
	tr := newTree(t)
	tr.card(0, "0000:01:00.0", nil)
	d := devices(t, tr.open())[0]
	read(t, []device.Device{d}, device.Static)
	if busy := d.(device.Busy).Busy(); busy != "" {
		t.Error(busy)
	}
}

// A value that one GPU cannot provide is missing on that GPU only.
func TestOneBrokenOfTwo(t *testing.T) {
	tr := newTree(t)
	tr.card(1, "0000:01:00.0", map[string]string{"gpu_busy_percent": "7\n"})
	tr.card(2, "0000:02:00.0", map[string]string{"gpu_busy_percent": "9\n", "mem_info_vram_total": "100\n"})
	tr.folder("sys/class/drm/card2/device/mem_info_vram_used")
	list := devices(t, tr.open())
	if s := read(t, list[:1], device.Static)[0]; s.Utilization.Compute != device.Of(0.07) {
		t.Errorf("the good one: %v", s.Utilization)
	}
	s, err := list[1].Read(t.Context(), device.Static)
	if s.Utilization.Compute != device.Of(0.09) || s.Memory.Total != device.Of(100) || s.Memory.Used.OK() || s.Memory.Free.OK() ||
		err == nil || !strings.Contains(err.Error(), "mem_info_vram_used") {
		t.Errorf("the broken one: %+v, %v", s, err)
	}
	tr.remove("sys/class/drm/card2/device/mem_info_vram_used")
	tr.write("sys/class/drm/card2/device/mem_info_vram_used", "40\n")
	if s := read(t, list[1:], device.Fast)[0]; s.Memory.Free != device.Of(60) {
		t.Errorf("after the repair: %+v", s.Memory)
	}
}

// A GPU that is being reset fails in every file. The error stays short.
func TestManyErrors(t *testing.T) {
	tr := newTree(t)
	tr.card(0, "0000:01:00.0", nil)
	for name := range strings.FieldsSeq(`gpu_busy_percent gpu_metrics mem_info_vram_used mem_info_vram_total hwmon/hwmon9/power1_cap
		hwmon/hwmon9/power1_average hwmon/hwmon9/freq1_input hwmon/hwmon9/in0_input hwmon/hwmon9/pwm1 vbios_version`) {
		tr.folder("sys/class/drm/card0/device/" + name)
	}
	_, err := devices(t, tr.open())[0].Read(t.Context(), device.Slow)
	if err == nil || strings.Count(err.Error(), "\n") != 8 || !strings.Contains(err.Error(), "and 2 more") {
		t.Errorf("%v", err)
	}
}

// Two GPUs with the same unique id must not become one device.
func TestSameID(t *testing.T) {
	tr := newTree(t)
	same := map[string]string{"unique_id": "00000000000000ab\n", "serial_number": "SN01\n"}
	for i := range 3 {
		tr.card(i, fmt.Sprintf("0000:0%d:00.0", i), same)
	}
	tr.card(3, "0000:03:00.0", map[string]string{"unique_id": "0\n"})
	var got []string
	for _, d := range devices(t, tr.open()) {
		got = append(got, d.ID().UUID)
	}
	want := []string{"amd-00000000000000ab", "amd-SN01", "amd-0123456789abcdef-0000:02:00.0", "amd-0123456789abcdef-0000:03:00.0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
