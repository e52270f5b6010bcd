//go:build linux

package intel

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Absent, zero and broken are three different cases for every file, and a broken file costs
// only its own value.
func TestDegraded(t *testing.T) {
	const h, gt0 = "hwmon/hwmon0/", "tile0/gt0/freq0/"
	pick := func(get func(*device.Sample) device.Value) func(*device.Sample) device.Value {
		return func(s *device.Sample) (v device.Value) {
			defer func() { _ = recover() }() // a missing list
			return get(s)
		}
	}
	// Each file is read next to a working temperature sensor.
	m := oneCard(t, map[string]string{h + "temp9_label": "pkg", h + "temp9_input": "41000", gt0 + "rp0_freq": "2000"})
	f := func(file, content string, get func(*device.Sample) device.Value, want device.Value, wantErr string) {
		t.Helper()
		defer m.remove(cardDir + "/" + file)
		switch content {
		case "absent":
		case "broken":
			m.spoil(cardDir + "/" + file)
		default:
			m.set(cardDir+"/"+file, content)
		}
		s, err := m.devices()[0].Read(context.Background(), device.Static)
		if got := pick(get)(&s); got != want {
			t.Errorf("%s %q: %v, not %v", file, content, got, want)
		}
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s %q: error %v", file, content, err)
		}
		if len(s.Temperatures) == 0 || s.Temperatures[0].Value != device.Of(41) {
			t.Errorf("%s %q costs the temperature: %+v", file, content, s.Temperatures)
		}
	}
	all := func(file, good string, want float64, get func(*device.Sample) device.Value) {
		t.Helper()
		f(file, "absent", get, device.Value{}, "")
		f(file, good, get, device.Of(want), "")
		f(file, "garbage", get, device.Value{}, file)
		f(file, "NaN", get, device.Value{}, file)
		f(file, "broken", get, device.Value{}, file)
	}
	energy := func(s *device.Sample) device.Value { return s.Energy }
	all(h+"energy1_input", "5000000", 5, energy)
	f(h+"energy1_input", "0", energy, device.Of(0), "")
	clock := func(s *device.Sample) device.Value { return s.Clocks[0].Frequency }
	all(gt0+"act_freq", "600", 600e6, clock)
	f(gt0+"act_freq", "0", clock, device.Of(0), "") // asleep is 0
	fan := func(s *device.Sample) device.Value { return s.Fans[0].RPM }
	all(h+"fan1_input", "945", 945, fan)
	f(h+"fan1_input", "0", fan, device.Of(0), "")
	limit := func(s *device.Sample) device.Value { return s.Powers[0].Enforced() }
	all(h+"power1_max", "55000000", 55, limit)
	all(h+"power2_max", "55000000", 55, limit)
	f(h+"power1_max", "0", limit, device.Value{}, "") // no limit is different from a limit of 0 W
	m.set(cardDir+"/"+h+"power1_cap", "70000000")
	f(h+"power1_max", "55000000", limit, device.Of(55), "") // the lower limit applies
	f(h+"power1_max", "90000000", limit, device.Of(70), "")
	f(h+"power1_max", "0", limit, device.Of(70), "")
	f(h+"power2_max", "55000000", limit, device.Of(70), "") // the card's limit takes precedence over the package's
	m.remove(cardDir + "/" + h + "power1_cap")
	all(h+"power2_rated_max", "60000000", 60, func(s *device.Sample) device.Value { return s.Powers[0].Limits[0].Watts })
	all(h+"in1_input", "605", 0.605, func(s *device.Sample) device.Value { return s.Voltages[0].Volts })
	all(h+"in0_input", "605", 0.605, func(s *device.Sample) device.Value { return s.Voltages[0].Volts })
	all(h+"curr1_input", "1500", 1.5, func(s *device.Sample) device.Value { return s.Current })
	all(h+"temp9_crit", "100000", 100, func(s *device.Sample) device.Value { return s.Temperatures[0].Limits[0].Limit })
	all("tile0/physical_vram_size_bytes", "1024", 1024, func(s *device.Sample) device.Value { return s.Memory.Total })

	pl1 := func(s *device.Sample) device.Value { return s.Throttled(device.BucketPower) }
	f(gt0+"throttle/reason_pl1", "absent", pl1, device.Value{}, "")
	f(gt0+"throttle/reason_pl1", "1", pl1, device.Of(1), "")
	f(gt0+"throttle/reason_pl1", "0", pl1, device.Of(0), "")
	f(gt0+"throttle/reason_pl1", "garbage", pl1, device.Value{}, "reason_pl1")
	f(gt0+"throttle/reasons", "pl1 thermal\n", pl1, device.Of(1), "")
	f(gt0+"throttle/reasons", "none", pl1, device.Of(0), "")
	f(gt0+"throttle/reasons", "broken", pl1, device.Value{}, "reasons")
	hardware := func(s *device.Sample) device.Value { return s.Throttled(device.BucketHW) }
	f(gt0+"throttle/status", "1", hardware, device.Of(1), "") // throttled without a named cause
	f(gt0+"throttle/status", "0", hardware, device.Of(0), "")
	f(gt0+"throttle/reason_new", "1", hardware, device.Of(1), "") // a future cause

	aer := func(s *device.Sample) device.Value { return s.PCIe.Errors[0].Count }
	f("aer_dev_fatal", "TOTAL_ERR_FATAL 0\n", aer, device.Of(0), "")
	f("aer_dev_fatal", "garbage", aer, device.Value{}, "aer_dev_fatal")
	f("aer_dev_fatal", "broken", aer, device.Value{}, "aer_dev_fatal")
}

// The link on the card's own switch always reports slow and narrow. It is not the card's
// link.
func TestLink(t *testing.T) {
	f := func(files map[string]string, want device.PCIe, wantErr string) {
		t.Helper()
		m := oneCard(t, nil)
		for name, content := range files {
			m.set(cardDir+"/"+name, content)
		}
		s, err := m.devices()[0].Read(context.Background(), device.Static)
		if diff := cmp.Diff(want, s.PCIe); diff != "" {
			t.Errorf("%v (-want +got):\n%s", files, diff)
		}
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%v: error %v", files, err)
		}
	}
	link := func(where, speed, width, maxSpeed, maxWidth string) map[string]string {
		return map[string]string{
			where + "current_link_speed": speed, where + "current_link_width": width,
			where + "max_link_speed": maxSpeed, where + "max_link_width": maxWidth,
		}
	}
	f(nil, device.PCIe{}, "")
	f(link("", "2.5 GT/s PCIe", "1", "2.5 GT/s PCIe", "1"), device.PCIe{}, "")
	f(link("", "8.0 GT/s PCIe", "8", "16.0 GT/s PCIe", "16"),
		device.PCIe{Generation: device.Of(3), Width: device.Of(8), GenerationMax: device.Of(4), WidthMax: device.Of(16)}, "")
	f(link("", "2.5 GT/s PCIe", "1", "2.5 GT/s PCIe", "4"), // a slow link that is real
		device.PCIe{Generation: device.Of(1), Width: device.Of(1), GenerationMax: device.Of(1), WidthMax: device.Of(4)}, "")
	f(link("", "Unknown", "0", "Unknown", "255"), device.PCIe{}, "") // the link is down
	f(link("", "64.0 GT/s PCIe", "63", "fast", "16"), device.PCIe{Generation: device.Of(6), WidthMax: device.Of(16)}, "max_link_speed")
	both := link("", "2.5 GT/s PCIe", "1", "2.5 GT/s PCIe", "1")
	maps.Copy(both, link("../", "16.0 GT/s PCIe", "4", "32.0 GT/s PCIe", "8"))
	direct := link("", "8.0 GT/s PCIe", "8", "8.0 GT/s PCIe", "8")
	direct["aer_dev_fatal"] = "TOTAL_ERR_FATAL 3\n"
	f(direct, device.PCIe{
		Generation: device.Of(3), Width: device.Of(8), GenerationMax: device.Of(3), WidthMax: device.Of(8),
		Errors: []device.ErrorCount{{Type: "fatal", Count: device.Of(3)}}, // counted once
	}, "")
	f(both, device.PCIe{Generation: device.Of(4), Width: device.Of(4), GenerationMax: device.Of(5), WidthMax: device.Of(8)}, "")
}

// A broken card affects no other, in discovery and in reading.
func TestBrokenNeighbor(t *testing.T) {
	const other = "sys/devices/pci0000:00/0000:00:03.0/0000:09:00.0"
	m := oneCard(t, nil)
	m.add(1, other, "xe", "8086:56A5")
	m.spoil(cardDir + "/uevent")
	list, err := m.open().Devices(context.Background())
	if err == nil || !strings.Contains(err.Error(), "0000:08:00.0") {
		t.Errorf("error %v", err)
	}
	if len(list) != 1 || list[0].ID().PCI != "0000:09:00.0" || list[0].ID().Index != 0 {
		t.Errorf("%+v", list)
	}
	m.read(list[0], device.Static, 0)

	m = newMachine(t)
	m.set("sys/class/drm/card0/device/uevent", "DRIVER=xe\nPCI_ID=8086:garbage\nPCI_SLOT_NAME=0000:01:00.0\n")
	if _, err := Open(context.Background(), m.options()); !errors.Is(err, device.ErrAbsent) || !strings.Contains(err.Error(), "garbage") {
		t.Errorf("error %v", err)
	}
}

// A GPU that disappeared is lost, however it disappeared, and its Sample is void.
func TestLost(t *testing.T) {
	f := func(what string, change func(*machine), wantLost bool) {
		t.Helper()
		m := oneCard(t, map[string]string{"hwmon/hwmon0/energy1_input": "1"})
		d := m.devices()[0]
		m.read(d, device.Static, 0)
		change(m)
		s, err := d.Read(context.Background(), device.Fast)
		if errors.Is(err, device.ErrLost) != wantLost {
			t.Errorf("%s: error %v", what, err)
		}
		if diff := cmp.Diff(device.Sample{ID: d.ID()}, s); wantLost && diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	f("nothing", func(*machine) {}, false)
	f("unplugged", func(m *machine) { m.remove(cardDir) }, true)
	f("given to a virtual machine", func(m *machine) { m.replace(cardDir+"/uevent", "DRIVER=xe", "DRIVER=vfio-pci") }, true)
	f("without its DRM device", func(m *machine) { m.remove("sys/class/drm/card0") }, true)
	f("with other sensors", func(m *machine) {
		if err := os.Rename(m.path(cardDir+"/hwmon/hwmon0"), m.path(cardDir+"/hwmon/hwmon9")); err != nil {
			t.Fatal(err)
		}
	}, true)
	f("with a broken sensor", func(m *machine) { m.spoil(cardDir + "/hwmon/hwmon0/energy1_input") }, false)
}

// After a driver restart everything is rediscovered under its new names, and nothing is
// compared with earlier values.
func TestDriverRestart(t *testing.T) {
	m := load(t, "node.txt")
	d := m.devices()[1]
	m.read(d, device.Static, 0)
	if err := os.Rename(m.path(arcDir+"/hwmon/hwmon5"), m.path(arcDir+"/hwmon/hwmon9")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read(context.Background(), device.Fast); !errors.Is(err, device.ErrLost) {
		t.Fatalf("error %v", err)
	}
	m.set(arcDir+"/hwmon/hwmon9/energy2_input", "1000000")
	m.replace("proc/1300/fdinfo/10", "cycles-rcs:\t500\n", "cycles-rcs:\t900\n")
	s := m.read(d, device.Fast, 10*time.Second)
	if s.Energy != device.Of(1) || s.Powers[0].Average.OK() || len(s.Temperatures) != 4 || s.Processes[1].Utilization.OK() {
		t.Errorf("%+v", s)
	}
}

// A sleeping GPU is not woken: only files that the kernel answers by itself are read.
func TestAsleep(t *testing.T) {
	m := load(t, "node.txt")
	d := m.devices()[1]
	m.set(arcDir+"/power/runtime_status", "suspended")
	for _, file := range []string{
		"hwmon/hwmon5/energy2_input", "hwmon/hwmon5/temp2_input", "hwmon/hwmon5/power1_cap", "hwmon/hwmon5/fan1_input",
		"tile0/gt0/freq0/act_freq", "tile0/gt0/freq0/rp0_freq", "tile0/gt0/freq0/throttle/reasons", "current_link_speed", "max_link_speed",
	} {
		if err := os.Rename(m.path(arcDir+"/"+file), m.path("aside/"+file)); err != nil {
			t.Fatal(err)
		}
		m.spoil(arcDir + "/" + file)
	}
	if err := os.Rename(m.path("proc/1300/fdinfo/10"), m.path("aside/fdinfo")); err != nil {
		t.Fatal(err)
	}
	m.spoil("proc/1300/fdinfo/10")
	s := m.read(d, device.Static, 0) // fails if any other file was read
	if d.(*gpu).gts != nil {
		t.Error("read the GTs, whose names wake the GPU")
	}
	want := device.Sample{
		ID: d.ID(), Info: wantNode()[1].Info, Status: device.Of(0), Aliases: wantNode()[1].Aliases,
		Utilization: device.Engines{Compute: device.Of(0)},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("asleep from the start (-want +got):\n%s", diff)
	}

	// The GPU wakes up: static values are due although a fast read was requested.
	m.set(arcDir+"/power/runtime_status", "active")
	for _, file := range []string{
		"hwmon/hwmon5/energy2_input", "hwmon/hwmon5/temp2_input", "hwmon/hwmon5/power1_cap", "hwmon/hwmon5/fan1_input",
		"tile0/gt0/freq0/act_freq", "tile0/gt0/freq0/rp0_freq", "tile0/gt0/freq0/throttle/reasons", "current_link_speed", "max_link_speed",
	} {
		m.remove(arcDir + "/" + file)
		if err := os.Rename(m.path("aside/"+file), m.path(arcDir+"/"+file)); err != nil {
			t.Fatal(err)
		}
	}
	m.remove("proc/1300/fdinfo/10")
	if err := os.Rename(m.path("aside/fdinfo"), m.path("proc/1300/fdinfo/10")); err != nil {
		t.Fatal(err)
	}
	m.read(d, device.Fast, 10*time.Second)
	m.advance()
	if diff := cmp.Diff(wantNode()[1], m.read(d, device.Fast, 0)); diff != "" {
		t.Errorf("awake (-want +got):\n%s", diff)
	}

	// The GPU sleeps again: counters stay, clocks are 0, nothing runs, and Xorg has exited.
	m.set(arcDir+"/power/runtime_status", "suspending")
	m.remove("proc/1300")
	s = m.read(d, device.Fast, 10*time.Second)
	want = wantNode()[1]
	want.Temperatures, want.Voltages, want.Fans, want.Throttles = nil, nil, nil, nil
	want.Powers[0].Average, want.PCIe.Generation, want.PCIe.Width = device.Value{}, device.Value{}, device.Value{}
	want.Clocks[1].Frequency = device.Of(0)
	want.Utilization.Compute, want.Memory.Used = device.Of(0), device.Value{}
	want.Processes = want.Processes[:1]
	want.Processes[0].Utilization = device.Of(0)
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("asleep again (-want +got):\n%s", diff)
	}
	// No power is derived from the energy used while asleep.
	m.set(arcDir+"/power/runtime_status", "active")
	m.set(arcDir+"/hwmon/hwmon5/energy2_input", "29900000000")
	if s := m.read(d, device.Fast, time.Second); s.Energy != device.Of(29900) || s.Powers[0].Average.OK() {
		t.Errorf("after sleep: %v J, %+v", s.Energy, s.Powers)
	}
}

// No sensor keeps its last value while the GPU sleeps.
func TestAsleepSensors(t *testing.T) {
	m := oneCard(t, map[string]string{"hwmon/hwmon0/curr1_input": "1500", "hwmon/hwmon0/in1_input": "600", "hwmon/hwmon0/fan1_input": "9"})
	d := m.devices()[0]
	if s := m.read(d, device.Static, 0); s.Current != device.Of(1.5) {
		t.Errorf("%+v", s.Current)
	}
	m.set(cardDir+"/power/runtime_status", "suspended")
	if s := m.read(d, device.Fast, time.Second); s.Current.OK() || s.Voltages != nil || s.Fans != nil {
		t.Errorf("%+v", s)
	}
	m.set(cardDir+"/power/runtime_status", "active")
	if s := m.read(d, device.Fast, time.Second); s.Current != device.Of(1.5) || s.Voltages == nil || s.Fans == nil {
		t.Errorf("a short sleep dropped the slow values: %+v", s)
	}
}

// A device that fails at run time still has its DRM device.
func TestSurvivability(t *testing.T) {
	m := oneCard(t, nil)
	d := m.devices()[0]
	if s := m.read(d, device.Static, 0); s.Status != device.Of(0) {
		t.Errorf("%v", s.Status)
	}
	m.set(cardDir+"/survivability_mode", "Survivability mode type: Runtime\n")
	m.link("sys/bus/pci/drivers/xe/0000:08:00.0", "../../../../"+strings.TrimPrefix(cardDir, "sys/"))
	if s := m.read(d, device.Fast, time.Second); s.Status != device.Of(1) {
		t.Errorf("%v", s.Status)
	}
	if list := m.devices(); len(list) != 1 || list[0].(*gpu).card == "" {
		t.Errorf("%d devices", len(list))
	}
	m = newMachine(t)
	m.add(0, cardDir, "i915", "8086:56A5")
	if s := m.read(m.devices()[0], device.Static, 0); s.Status.OK() {
		t.Error("i915 reports a survivability mode")
	}
}

// A Read without time left returns an error, and its Sample is void.
func TestNoTime(t *testing.T) {
	m := oneCard(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	d := m.devices()[0]
	s, err := d.Read(ctx, device.Fast)
	if diff := cmp.Diff(device.Sample{ID: d.ID()}, s); diff != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("%v\n%s", err, diff)
	}
}

// While a read hangs, Busy names its file for the log.
func TestBusy(t *testing.T) {
	m := oneCard(t, map[string]string{"hwmon/hwmon0/temp1_input": "1"})
	g := m.devices()[0].(*gpu)
	m.read(g, device.Static, 0)
	if g.Busy() != "" {
		t.Errorf("busy after the Read: %q", g.Busy())
	}
	g.number(g.hwmon.dir, "temp1_input")
	if !strings.HasSuffix(g.Busy(), "hwmon0/temp1_input") {
		t.Errorf("%q", g.Busy())
	}
}

// xe without GT names: the second GT of a tile is for media.
func TestUnnamedGT(t *testing.T) {
	m := oneCard(t, map[string]string{
		"tile0/gt0/freq0/act_freq": "1", "tile0/gt1/freq0/act_freq": "2", "tile1/gt2/freq0/act_freq": "3", "tile1/gt10/freq0/act_freq": "4",
	})
	s := m.read(m.devices()[0], device.Static, 0)
	want := []device.Clock{
		{Type: "graphics", Frequency: device.Of(1e6)},
		{Type: "media", Frequency: device.Of(2e6)},
		{Type: "graphics_tile1", Frequency: device.Of(3e6)},
		{Type: "media_tile1", Frequency: device.Of(4e6)},
	}
	if diff := cmp.Diff(want, s.Clocks); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A virtual function is a share of its GPU if the driver reports how many there are.
func TestVirtualFunction(t *testing.T) {
	const vf = "sys/devices/pci0000:00/0000:00:01.0/0000:08:00.1"
	f := func(numvfs string, want device.Slice) {
		t.Helper()
		m := oneCard(t, map[string]string{"sriov_numvfs": numvfs})
		m.add(1, vf, "xe", "8086:56A5")
		m.link(vf+"/physfn", "../0000:08:00.0")
		m.set(vf+"/hwmon/hwmon1/temp1_input", "1000") // not the virtual function's own sensor
		list := m.devices()
		s := m.read(list[1], device.Static, 0)
		if s.Slice != want || s.ID.Parent != list[0].ID().UUID || s.ID.Index != 0 || s.Temperatures != nil {
			t.Errorf("%q: %+v", numvfs, s)
		}
	}
	f("4", device.Slice{Held: 1, Of: 4})
	f("0", device.Slice{})
	f("many", device.Slice{})
	f("65", device.Slice{})

	// If the GPU has another driver, the virtual function counts as a GPU.
	m := newMachine(t)
	m.add(1, vf, "xe", "8086:56A5")
	m.link(vf+"/physfn", "../0000:08:00.0")
	if id := m.devices()[0].ID(); id.Parent != "" || id.Profile != "" || id.Index != 0 {
		t.Errorf("%+v", id)
	}
}

// i915 before Linux 5.18 has its only GT in the DRM device itself.
func TestOldI915(t *testing.T) {
	m := newMachine(t)
	m.add(0, cardDir, "i915", "8086:4905")
	m.set(cardDir+"/drm/card0/gt_act_freq_mhz", "1100")
	m.set(cardDir+"/drm/card0/gt_RP0_freq_mhz", "1650")
	s := m.read(m.devices()[0], device.Static, 0)
	want := []device.Clock{{Type: "graphics", Frequency: device.Of(1.1e9), Limit: device.Of(1.65e9)}}
	if diff := cmp.Diff(want, s.Clocks); diff != "" || s.Throttles != nil {
		t.Errorf("%v (-want +got):\n%s", s.Throttles, diff)
	}
}
