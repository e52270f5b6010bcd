//go:build linux

package gaudi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/devicetest"
)

// fromSysfs is what the driver's files alone provide for an accelerator of server.
func fromSysfs(number int, pci string) device.Sample {
	return device.Sample{
		ID: device.ID{Vendor: "gaudi", UUID: "gaudi-9b0c-" + pci, Index: number, Model: "Intel Gaudi2", PCI: pci},
		Info: device.Info{
			Driver: "1.22.1-97ec1a4", Architecture: "gaudi2", NUMA: "1", VBIOS: "Preboot version hl-gaudi2-1.22.1-fw-61.4.2.1",
			Firmware: "Linux gaudi2 5.10.18-hl-gaudi2-1.22.1-fw-61.4.2.1",
		},
		Powers:  []device.Power{{Scope: "gpu", Limits: []device.PowerLimit{{Type: "enforced", Watts: device.Of(600)}}}},
		Clocks:  []device.Clock{{Type: "soc", Frequency: device.Of(1.2e9), Limit: device.Of(1.65e9)}},
		PCIe:    device.PCIe{Generation: device.Of(4), GenerationMax: device.Of(4), Width: device.Of(8), WidthMax: device.Of(16)},
		Status:  device.Of(0),
		Resets:  []device.ErrorCount{{Type: "hard", Count: device.Of(2)}, {Type: "soft", Count: device.Of(0)}},
		Aliases: []string{fmt.Sprintf("accel%d", number), strings.NewReplacer(":", "-", ".", "-").Replace(pci) + "-0x1020"},
	}
}

// whole is what files and library provide together.
func whole(number int, pci, uuid, serial string, util float64) device.Sample {
	s := fromSysfs(number, pci)
	s.ID.UUID, s.ID.Model = uuid, "Intel Gaudi2 HL-225"
	s.Modes.ECC = device.Of(1)
	s.Utilization.Compute = device.Of(util)
	s.Memory = device.Memory{Used: device.Of(805306368), Free: device.Of(102273908736), Total: device.Of(103079215104)}
	s.Temperatures = []device.Temperature{
		{Sensor: "edge", Value: device.Of(45), Limits: []device.TemperatureCap{
			{Event: "operating", Limit: device.Of(95), Margin: device.Of(50)},
			{Event: "slowdown", Limit: device.Of(100), Margin: device.Of(55)},
			{Event: "shutdown", Limit: device.Of(110), Margin: device.Of(65)},
		}},
		{Sensor: "board", Value: device.Of(31)},
	}
	s.Powers = []device.Power{{Scope: "gpu", Instant: device.Of(88), Limits: []device.PowerLimit{
		{Type: "enforced", Watts: device.Of(600)}, {Type: "default", Watts: device.Of(600)},
	}}}
	s.Clocks = []device.Clock{
		{Type: "soc", Frequency: device.Of(1.5e9), Limit: device.Of(1.8e9)},
		{Type: "tpc", Limit: device.Of(1.9e9)},
	}
	s.Throttles = []device.Throttle{
		{Cause: "power", Buckets: device.BucketPower | device.BucketSW},
		{Cause: "thermal", Buckets: device.BucketThermal | device.BucketSW, Active: true},
	}
	s.Interconnects = []device.Interconnect{{Type: "ethernet", Links: []device.Link{{Index: 22, Up: device.Of(1)}, {Index: 23, Up: device.Of(0)}}}}
	s.PCIe.Replays = device.Of(6)
	s.ECC = []device.ECC{
		{Type: "uncorrected", Lifetime: "volatile", Count: device.Of(3)},
		{Type: "uncorrected", Lifetime: "volatile", Location: "dram", Count: device.Of(2)},
		{Type: "uncorrected", Lifetime: "aggregate", Count: device.Of(4)},
	}
	s.RowRemap = device.RowRemap{Corrected: device.Of(1), Uncorrected: device.Of(0), Pending: device.Of(0)}
	s.Aliases = []string{s.Aliases[0], serial, s.Aliases[1]}
	return s
}

func processes(s device.Sample, list ...device.Process) device.Sample {
	s.Processes = list
	return s
}

var (
	onFirst = []device.Process{{PID: 17, Name: "vllm", Type: "compute"}, {PID: 4242, Name: "python3", Type: "compute"}}
	onThird = device.Process{PID: 19, Name: "trainer", Type: "compute"}
)

// Every value of a whole machine: units, order by number, the library's answers on the
// accelerator with the same address, and absence of what nothing reports.
func TestWholeMachine(t *testing.T) {
	r, _ := open(t, untouched, fake(t, script))
	var got []device.Sample
	for _, d := range devices(t, r) {
		got = append(got, read(t, d, device.Static))
	}
	want := []device.Sample{
		processes(whole(0, first, "01P4-HL3090A0-18-U4V193-22-07-01", "AN00000000", 0.4), onFirst...),
		whole(2, second, "01P4-HL3090A0-18-U4V193-22-07-02", "AN00000002", 0),
		processes(whole(10, third, "01P4-HL3090A0-18-U4V193-22-07-00", "AN00000010", 0), onThird),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
	want[0].Energy = device.Of(1) // see TestEnergy
	for _, wrong := range devicetest.CheckSources("sources.txt", want...) {
		t.Error(wrong)
	}
}

// Without the library only the values from the files are left, without an error.
func TestWithoutLibrary(t *testing.T) {
	r, _ := open(t, untouched, "")
	var got []device.Sample
	for _, d := range devices(t, r) {
		got = append(got, read(t, d, device.Fast)) // a first Read covers all tiers
	}
	want := []device.Sample{processes(fromSysfs(0, first), onFirst...), fromSysfs(2, second), processes(fromSysfs(10, third), onThird)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}

// A driver from before Linux 6.2 has its own class, which holds the attributes.
func TestOldDriver(t *testing.T) {
	const bus = "sys/devices/pci0000:00/0000:0f:00.0"
	files := map[string]string{
		"sys/class/habanalabs/hl0":                 "-> ../../devices/pci0000:00/0000:0f:00.0/habanalabs/hl0",
		"sys/class/habanalabs/hl_controlD0/status": "Operational",
		bus + "/device":                            "0x1000",
		bus + "/numa_node":                         "-1",
		bus + "/habanalabs/hl0/device":             "-> ../../../0000:0f:00.0",
		bus + "/habanalabs/hl0/status":             "Operational",
		bus + "/habanalabs/hl0/device_type":        "GAUDI",
		bus + "/habanalabs/hl0/max_power":          "350000",
		"proc/7/comm":                              "old",
		"proc/7/fd/0":                              "-> /dev/hl0",
	}
	r, _ := open(t, machine(t, files), "")
	want := device.Sample{
		ID:        device.ID{Vendor: "gaudi", UUID: "gaudi-9b0c-0000:0f:00.0", Model: "Intel Gaudi", PCI: "0000:0f:00.0"},
		Info:      device.Info{Architecture: "gaudi"},
		Powers:    []device.Power{{Scope: "gpu", Limits: []device.PowerLimit{{Type: "enforced", Watts: device.Of(350)}}}},
		Status:    device.Of(0),
		Processes: []device.Process{{PID: 7, Name: "old", Type: "compute"}},
		Aliases:   []string{"hl0", "0000-0f-00-0-0x1000"},
	}
	list := devices(t, r)
	if diff := cmp.Diff(want, read(t, list[0], device.Static)); diff != "" || len(list) != 1 {
		t.Errorf("%d devices (-want +got):\n%s", len(list), diff)
	}
}

// A machine without the hardware, or with another vendor's in the same class.
func TestAbsent(t *testing.T) {
	for _, files := range []map[string]string{nil, {"sys/class/accel/accel0/device/vendor": "0x8086", "sys/class/accel/accel0/device/status": "1"}} {
		if _, err := Open(t.Context(), Options{Root: machine(t, files)}); !errors.Is(err, device.ErrAbsent) {
			t.Errorf("%v: err = %v", files, err)
		}
	}
}

// A missing, broken or unreadable file affects its own value and no other.
func TestDegradedFiles(t *testing.T) {
	files := server()
	root := machine(t, files)
	f := func(file, text string, get func(device.Sample) device.Value, want device.Value, wantErr string) {
		t.Helper()
		path := busDir + first + "/" + file
		check(t, os.Remove(filepath.Join(root, path)))
		defer put(t, root, path, files[path])
		if text != "" {
			put(t, root, path, text)
		}
		r, _ := open(t, root, "")
		list := devices(t, r)
		s, err := list[0].Read(t.Context(), device.Static)
		if got := get(s); got != want {
			t.Errorf("%s = %q gives %v, want %v", file, text, got, want)
		}
		if (err == nil) != (wantErr == "") || err != nil && (!strings.Contains(err.Error(), wantErr) || !strings.Contains(err.Error(), file)) {
			t.Errorf("%s = %q: err = %v, want %q and the file", file, text, err, wantErr)
		}
		if len(s.Processes) != 2 || s.Info.NUMA != "1" {
			t.Errorf("%s = %q costs other values: %+v", file, text, s)
		}
		if other, err := list[1].Read(t.Context(), device.Static); err != nil || other.Status != device.Of(0) {
			t.Errorf("%s = %q costs another accelerator: %v", file, text, err)
		}
	}
	limit := func(s device.Sample) device.Value {
		if s.Powers == nil {
			return device.Value{}
		}
		return s.Powers[0].Enforced()
	}
	f("max_power", "", limit, device.Value{}, "")
	f("max_power", "0", limit, device.Of(0), "")
	f("max_power", "-1", limit, device.Value{}, "is not an unsigned integer")
	f("max_power", "/", limit, device.Value{}, "is a directory")
	clock := func(s device.Sample) device.Value { return s.Clocks[0].Frequency }
	f("clk_cur_freq_mhz", "", clock, device.Value{}, "")
	f("clk_cur_freq_mhz", "0", clock, device.Of(0), "")
	f("clk_cur_freq_mhz", "fast", clock, device.Value{}, "is not an unsigned integer")
	resets := func(s device.Sample) device.Value { return s.Resets[0].Count }
	f("hard_reset_cnt", "", resets, device.Of(0), "") // only the soft resets are left
	f("hard_reset_cnt", "7", resets, device.Of(7), "")
	f("hard_reset_cnt", "/", resets, device.Of(0), "is a directory")
	width := func(s device.Sample) device.Value { return s.PCIe.Width }
	f("current_link_width", "0", width, device.Value{}, "")
	f("current_link_width", "1", width, device.Of(1), "")
	f("current_link_width", "255", width, device.Value{}, "")
	status := func(s device.Sample) device.Value { return s.Status }
	f("status", "/", status, device.Value{}, "is a directory")
	f("status", " ", status, device.Value{}, "")
	f("numa_node", "1", status, device.Of(0), "")
	f("pci_addr", "", status, device.Of(0), "") // the directory name provides the address as well
}

// An accelerator that disappeared is lost, and affects no other.
func TestRemoved(t *testing.T) {
	root := machine(t, server())
	r, _ := open(t, root, fake(t, script))
	list := devices(t, r)
	read(t, list[0], device.Static)
	check(t, os.Remove(filepath.Join(root, "sys/class/accel/accel0")))
	check(t, os.RemoveAll(filepath.Join(root, busDir, first)))
	s, err := list[0].Read(t.Context(), device.Fast)
	if diff := cmp.Diff(device.Sample{ID: list[0].ID()}, s); !errors.Is(err, device.ErrLost) || diff != "" {
		t.Errorf("err %v, sample %s", err, diff)
	}
	read(t, list[1], device.Fast)
	if rest := devices(t, r); len(rest) != 2 {
		t.Errorf("%d devices", len(rest))
	}
	// Another accelerator in its slot, with the same number.
	files := map[string]string{}
	accel(files, 0, "0000:34:00.0")
	for name, text := range files {
		put(t, root, name, text)
	}
	if _, err := list[0].Read(t.Context(), device.Slow); !errors.Is(err, device.ErrLost) {
		t.Errorf("another one at its place: %v", err)
	}
}

// The same accelerator keeps its Device; a replaced one gets a new Device.
func TestRediscovery(t *testing.T) {
	root := machine(t, server())
	lib := fake(t, script)
	r, _ := open(t, root, lib)
	before, after := devices(t, r), devices(t, r)
	for i := range before {
		if before[i] != after[i] {
			t.Errorf("accelerator %d has a new Device", i)
		}
	}
	// The accelerator disappeared for a moment.
	check(t, os.Rename(filepath.Join(root, busDir, first), filepath.Join(root, "away")))
	if _, err := before[0].Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) {
		t.Fatalf("err = %v", err)
	}
	check(t, os.Rename(filepath.Join(root, "away"), filepath.Join(root, busDir, first)))
	if after = devices(t, r); after[0] != before[0] {
		t.Error("after its return the accelerator has a new Device")
	}
	// The accelerator disappears again, and what comes back has another serial number.
	check(t, os.Rename(filepath.Join(root, busDir, first), filepath.Join(root, "away")))
	if _, err := before[0].Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) {
		t.Fatalf("err = %v", err)
	}
	check(t, os.Rename(filepath.Join(root, "away"), filepath.Join(root, busDir, first)))
	rewrite(t, lib, script+"1 text serial AN00000077\n1 text uuid 01P4-NEW\n")
	if after = devices(t, r); after[0] == before[0] || after[0].ID().UUID != "01P4-NEW" || after[1] != before[1] {
		t.Errorf("an exchanged accelerator: %v", after[0].ID())
	}
	if s := read(t, after[0], device.Fast); s.Aliases[1] != "AN00000077" {
		t.Errorf("aliases: %v", s.Aliases)
	}
}

// Sixteen accelerators with gaps in their numbers are ordered by number, not as strings.
func TestManyAccelerators(t *testing.T) {
	files := map[string]string{}
	var want []int
	for i := range 16 {
		want = append(want, 3*i)
		one := map[string]string{}
		accel(one, 3*i, fmt.Sprintf("0000:%02x:00.0", i+1))
		maps.Copy(files, one)
	}
	r, _ := open(t, machine(t, files), "")
	var got []int
	for _, d := range devices(t, r) {
		got = append(got, d.ID().Index)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// Processes are searched at the slow tier; those that exited are gone at the next fast one.
// All accelerators share one scan.
func TestProcesses(t *testing.T) {
	root := machine(t, server())
	r, c := open(t, root, "")
	list := devices(t, r)
	pids := func(i int, tier device.Tier) (pids []uint32) {
		t.Helper()
		for _, p := range read(t, list[i], tier).Processes {
			pids = append(pids, p.PID)
		}
		return pids
	}
	got := [][]uint32{pids(0, device.Static), pids(2, device.Static)}
	check(t, os.RemoveAll(filepath.Join(root, "proc/17")))
	put(t, root, "proc/20/comm", "new")
	put(t, root, "proc/20/fd/3", "-> /dev/accel/accel10")
	got = append(got, pids(0, device.Fast), pids(2, device.Slow)) // from the same scan
	c.advance(time.Second)
	got = append(got, pids(2, device.Fast), pids(2, device.Slow), pids(0, device.Slow))
	var many []uint32
	for pid := uint32(9990); pid < 10010; pid++ {
		many = append(many, pid)
		put(t, root, fmt.Sprintf("proc/%d/comm", pid), "worker")
		put(t, root, fmt.Sprintf("proc/%d/fd/3", pid), "-> /dev/accel/accel2")
	}
	c.advance(time.Second)
	got = append(got, pids(1, device.Slow))
	want := [][]uint32{{17, 4242}, {19}, {4242}, {19}, {19}, {19, 20}, {4242}, many}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
}

// An accelerator without a known address must not be confused with another.
func TestNoAddress(t *testing.T) {
	root := machine(t, server())
	put(t, root, busDir+first+"/pci_addr", "somewhere")
	check(t, os.Rename(filepath.Join(root, busDir, first), filepath.Join(root, busDir, "platform")))
	put(t, root, "sys/class/accel/accel0", "-> ../../devices/pci0000:00/platform/accel/accel0")
	put(t, root, busDir+"platform/accel/accel0/device", "-> ../../../platform")
	r, _ := open(t, root, "")
	list, err := r.Devices(t.Context())
	if len(list) != 2 || err == nil || !strings.Contains(err.Error(), "accel0 has no PCI address") {
		t.Errorf("%d devices, err %v", len(list), err)
	}
}

func TestCancelled(t *testing.T) {
	r, _ := open(t, untouched, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := devices(t, r)[0].Read(ctx, device.Fast); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}
