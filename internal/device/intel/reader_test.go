//go:build linux

package intel

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

func itoa(n int) string { return strconv.Itoa(n) }

const (
	machineID = "0123456789abcdef"
	flexDir   = "sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1a:00.0"
	arcDir    = "sys/devices/pci0000:17/0000:17:03.0/0000:1b:00.0/0000:1c:01.0/0000:1d:00.0"
	maxDir    = "sys/devices/pci0000:4c/0000:4c:01.0/0000:4d:00.0"
)

func throttle(cause string, b device.Buckets, active bool) device.Throttle {
	return device.Throttle{Cause: cause, Buckets: b, Active: active}
}

const (
	power   = device.BucketPower
	thermal = device.BucketThermal
	sw      = device.BucketSW
	hw      = device.BucketHW
)

func caps(slowdown, shutdown float64) []device.TemperatureCap {
	return []device.TemperatureCap{{Event: "slowdown", Limit: device.Of(slowdown)}, {Event: "shutdown", Limit: device.Of(shutdown)}}
}

// wantNode is the machine in testdata/node.txt, ten seconds after the first read.
func wantNode() []device.Sample {
	id := func(pci, model string, index int) device.ID {
		return device.ID{Vendor: "intel", UUID: "intel-" + machineID + "-" + pci, Index: index, Model: model, PCI: pci}
	}
	flex := device.Sample{
		ID:          id("0000:1a:00.0", "Intel Data Center GPU Flex 170", 0),
		Info:        device.Info{Driver: "i915 1.25.2.40.250316", Architecture: "Xe-HPG", NUMA: "1"},
		Utilization: device.Engines{Compute: device.Of(0.25)},
		Memory:      device.Memory{Used: device.Of(4096 << 10), Total: device.Of(14248050688)},
		Temperatures: []device.Temperature{
			{Sensor: "hotspot", Value: device.Of(55)},
		},
		Powers: []device.Power{{Scope: "gpu", Average: device.Of(90), Limits: []device.PowerLimit{
			{Type: "enforced", Watts: device.Of(120)}, {Type: "default", Watts: device.Of(150)},
		}}},
		Energy:   device.Of(25900),
		Clocks:   []device.Clock{{Type: "graphics", Frequency: device.Of(600e6), Limit: device.Of(2050e6)}},
		Voltages: []device.Voltage{{Rail: "core", Volts: device.Of(0.805)}},
		Fans:     []device.Fan{{Index: 0, RPM: device.Of(0)}},
		Throttles: []device.Throttle{
			throttle("pl1", power|sw, true), throttle("pl2", power|sw, false), throttle("pl4", power|hw, false),
			throttle("vr_tdc", power|hw, false), throttle("thermal", thermal|sw, true), throttle("ratl", thermal|sw, false),
			throttle("prochot", thermal|hw, false), throttle("vr_thermalert", thermal|hw, false),
		},
		PCIe: device.PCIe{
			Generation: device.Of(4), GenerationMax: device.Of(4), Width: device.Of(8), WidthMax: device.Of(16),
			Errors: []device.ErrorCount{
				{Type: "correctable", Count: device.Of(7)},
				{Type: "receiver", Count: device.Of(3)},
				{Type: "bad_tlp", Count: device.Of(3)},
				{Type: "bad_dllp", Count: device.Of(1)},
				{Type: "non_fatal", Count: device.Of(4)},
				{Type: "fatal", Count: device.Of(1)},
			},
		},
		Processes: []device.Process{
			{PID: 900, Name: "ffmpeg", Type: "graphics", MemoryUsed: device.Of(4096 << 10), Utilization: device.Of(0.25)},
		},
		Aliases: []string{"card1", "renderD129", "0000-1a-00-0-0x56c0"},
	}
	arc := device.Sample{
		ID:          id("0000:1d:00.0", "Intel Arc B580", 1),
		Info:        device.Info{Driver: "xe 6.16.3-generic", Architecture: "Xe2-HPG"},
		Utilization: device.Engines{Compute: device.Of(0.5)},
		Memory:      device.Memory{Used: device.Of(6144<<20 + 1024<<10 + 16<<20)},
		Temperatures: []device.Temperature{
			{Sensor: "hotspot", Value: device.Of(54), Limits: caps(100, 125)},
			{Sensor: "memory", Value: device.Of(56), Limits: caps(105, 120)},
			{Sensor: "memory_controller", Value: device.Of(55), Limits: caps(100, 125)},
			{Sensor: "pcie", Value: device.Of(58), Limits: caps(100, 125)},
		},
		Powers: []device.Power{{Scope: "gpu", Average: device.Of(30), Limits: []device.PowerLimit{
			{Type: "enforced", Watts: device.Of(190)},
		}}},
		Energy: device.Of(29800),
		Clocks: []device.Clock{
			{Type: "graphics", Frequency: device.Of(0), Limit: device.Of(2850e6)},
			{Type: "media", Frequency: device.Of(400e6), Limit: device.Of(1500e6)},
		},
		Voltages: []device.Voltage{{Rail: "core", Volts: device.Of(0.61)}},
		Fans: []device.Fan{
			{Index: 0, Speed: device.Of(0.5), RPM: device.Of(1080)},
			{Index: 1, RPM: device.Of(1234)},
			{Index: 2, Speed: device.Of(0), RPM: device.Of(0)},
		},
		Throttles: []device.Throttle{
			throttle("pl1", power|sw, false), throttle("pl2", power|sw, false), throttle("pl4", power|hw, true),
			throttle("vr_tdc", power|hw, false), throttle("thermal", thermal|sw, false), throttle("ratl", thermal|sw, false),
			throttle("prochot", thermal|hw, false), throttle("vr_thermalert", thermal|hw, false),
			throttle("brownout", hw, true),
		},
		PCIe:   device.PCIe{Generation: device.Of(1), GenerationMax: device.Of(4), Width: device.Of(8), WidthMax: device.Of(8)},
		Status: device.Of(0),
		Processes: []device.Process{
			{PID: 1200, Name: "python3", Type: "compute", MemoryUsed: device.Of(6144<<20 + 1024<<10), Utilization: device.Of(0.4)},
			{PID: 1300, Name: "Xorg", Type: "graphics", MemoryUsed: device.Of(16 << 20), Utilization: device.Of(0.1)},
		},
		Aliases: []string{"card2", "renderD130", "0000-1d-00-0-0xe20b"},
	}
	ponte := device.Sample{
		ID:          id("0000:4d:00.0", "Intel Data Center GPU Max 1550", 2),
		Info:        device.Info{Driver: "xe 6.16.3-generic", Architecture: "Xe-HPC"},
		Utilization: device.Engines{Compute: device.Of(0)},
		Memory:      device.Memory{Used: device.Of(0), Total: device.Of(128 << 30)},
		Powers: []device.Power{{Scope: "gpu", Average: device.Of(400), Limits: []device.PowerLimit{
			{Type: "enforced", Watts: device.Of(600)}, {Type: "default", Watts: device.Of(600)},
		}}},
		Energy: device.Of(4007),
		Clocks: []device.Clock{
			{Type: "graphics", Frequency: device.Of(1600e6), Limit: device.Of(1600e6)},
			{Type: "graphics_tile1", Frequency: device.Of(900e6), Limit: device.Of(1600e6)},
		},
		Current:   device.Of(250.5),
		Throttles: []device.Throttle{throttle("pl1", power|sw, true), throttle("prochot", thermal|hw, false)},
		PCIe:      device.PCIe{Generation: device.Of(5), GenerationMax: device.Of(5), Width: device.Of(16), WidthMax: device.Of(16)},
		Status:    device.Of(0),
		Aliases:   []string{"card4", "renderD132", "0000-4d-00-0-0x0bd5"},
	}
	pro := device.Sample{
		ID:           id("0000:5e:00.0", "Intel Arc Pro B60", 3),
		Info:         device.Info{Driver: "xe 6.16.3-generic", Architecture: "Xe2-HPG"},
		Temperatures: []device.Temperature{{Sensor: "hotspot", Value: device.Of(40)}},
		Status:       device.Of(0),
		Processes:    []device.Process{{PID: 1400, Name: "guest", Type: "compute", MemoryUsed: device.Of(2 << 20), Utilization: device.Of(0)}},
		Aliases:      []string{"card6", "renderD134", "0000-5e-00-0-0xe211"},
	}
	vf := device.Sample{
		ID:        id("0000:5e:00.1", "Intel Arc Pro B60", 3),
		Info:      device.Info{Driver: "xe 6.16.3-generic", Architecture: "Xe2-HPG"},
		Memory:    device.Memory{Used: device.Of(8 << 20)},
		Status:    device.Of(0),
		Processes: []device.Process{{PID: 1400, Name: "guest", Type: "compute", MemoryUsed: device.Of(8 << 20)}},
		Slice:     device.Slice{Held: 1, Of: 2},
		Aliases:   []string{"card7", "renderD135", "0000-5e-00-1-0xe211", "0000:5e:00.1"},
	}
	vf.ID.Parent, vf.ID.Profile = pro.ID.UUID, "vf"
	broken := device.Sample{
		ID:      id("0000:6f:00.0", "Intel Arc B570", 4),
		Info:    device.Info{Driver: "xe 6.16.3-generic", Architecture: "Xe2-HPG"},
		Status:  device.Of(1),
		Aliases: []string{"0000-6f-00-0-0xe20c"},
	}
	return []device.Sample{flex, arc, ponte, pro, vf, broken}
}

// advance simulates ten seconds of work on the machine in testdata/node.txt.
func (m *machine) advance() {
	m.t.Helper()
	m.set(flexDir+"/hwmon/hwmon3/energy1_input", "25900000000") // 900 J
	m.set(arcDir+"/hwmon/hwmon5/energy2_input", "29800000000")  // 300 J
	m.set(maxDir+"/hwmon/hwmon6/energy1_input", "4007000000")   // 4000 J
	change := func(file string, pairs ...string) {
		m.t.Helper()
		m.replace(file, pairs...)
	}
	change("proc/900/fdinfo/4", "drm-engine-render:\t9000000000", "drm-engine-render:\t11500000000") // 2.5 of 10 s
	for _, file := range []string{"proc/1200/fdinfo/5", "proc/1200/fdinfo/6", "proc/1250/fdinfo/5"} {
		change(file, "cycles-ccs:\t1000\n", "cycles-ccs:\t801000\n", "\t100000\n", "\t1100000\n") // 800 000 of 2 x 1 000 000
	}
	change("proc/1200/fdinfo/7", "\t100000\n", "\t1100000\n")
	change("proc/1300/fdinfo/10", "cycles-rcs:\t500\n", "cycles-rcs:\t100500\n", "\t100000\n", "\t1100000\n") // a tenth
	m.now = m.now.Add(10 * time.Second)
}

// The whole machine in testdata: a value in the wrong unit, from the wrong file or card, or
// counted twice would show here. The first read cannot know power and utilization yet and
// must not report 0.
func TestNode(t *testing.T) {
	m := load(t, "node.txt")
	devices := m.devices()
	for i, d := range devices {
		s, want := m.read(d, device.Fast, 0), wantNode()[i] // a first read covers all tiers, whatever was requested
		if i > 1 {
			continue
		}
		want.Energy = device.Of([]float64{25000, 29500}[i])
		want.Utilization.Compute, want.Powers[0].Average = device.Value{}, device.Value{}
		for j := range want.Processes {
			want.Processes[j].Utilization = device.Value{}
		}
		if diff := cmp.Diff(want, s); diff != "" {
			t.Errorf("first reading (-want +got):\n%s", diff)
		}
	}
	m.advance()
	var got []device.Sample
	for _, d := range devices {
		got = append(got, m.read(d, device.Fast, 0))
	}
	if diff := cmp.Diff(wantNode(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAbsent(t *testing.T) {
	f := func(what string, fill func(*machine)) {
		t.Helper()
		m := newMachine(t)
		fill(m)
		if r, err := Open(context.Background(), m.options()); r != nil || err == nil || !strings.Contains(err.Error(), device.ErrAbsent.Error()) {
			t.Errorf("%s: %v, %v", what, r, err)
		}
		if checks := Diagnose(context.Background(), m.options()); len(checks) != 1 || checks[0].State != device.CheckAbsent {
			t.Errorf("%s: %+v", what, checks)
		}
	}
	const dir = "sys/devices/pci0000:00/0000:00:02.0"
	f("nothing", func(*machine) {})
	f("another vendor", func(m *machine) { m.add(0, dir, "amdgpu", "1002:74A1") })
	f("an integrated GPU", func(m *machine) {
		m.add(0, dir, "i915", "8086:46D0")
		m.remove(dir + "/hwmon")
	})
	f("no PCI device", func(m *machine) { m.set("sys/class/drm/card0/device/uevent", "DRIVER=vkms\n") })
	f("only a connector", func(m *machine) { m.set("sys/class/drm/card0-DP-1/status", "connected") })
}

// Discrete GPUs are included and integrated GPUs excluded, even if one of the two
// indications is missing.
func TestDiscrete(t *testing.T) {
	f := func(chip uint16, hwmon, want bool) {
		t.Helper()
		if got := discrete(chip, hwmon); got != want {
			t.Errorf("0x%04x, hwmon %v: %v", chip, hwmon, got)
		}
	}
	f(0x56c0, false, true) // Flex in a virtual machine
	f(0x56c1, true, true)
	f(0x0bd5, false, true) // Max
	f(0x0bda, false, true)
	f(0x4907, false, true)  // SG-1
	f(0xe20b, false, true)  // Arc B
	f(0x674c, false, true)  // Crescent Island
	f(0x9a49, false, false) // Tiger Lake
	f(0x46d0, false, false) // Alder Lake N
	f(0x7d55, false, false) // Meteor Lake
	f(0x64a0, false, false) // Lunar Lake
	f(0xb080, false, false) // Panther Lake
	f(0xffff, true, true)   // any future chip that has its own sensors
}

// Sixteen cards with gaps: card10 does not precede card2, and indexes follow the bus order.
func TestManyCards(t *testing.T) {
	m := newMachine(t)
	var want []string
	for i, n := range []int{0, 1, 2, 3, 10, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33, 63} {
		bus := strconv.FormatInt(int64(16*i+3), 16)
		if len(bus) < 2 {
			bus = "0" + bus
		}
		m.add(n, "sys/devices/pci0000:00/0000:"+bus+":00.0", "xe", "8086:56C0")
		want = append(want, "0000:"+bus+":00.0 card"+itoa(n))
	}
	m.add(64, "sys/devices/pci10000:00/10000:01:00.0", "xe", "8086:56C0") // a VMD domain
	want = append(want, "10000:01:00.0 card64")
	var got []string
	for i, d := range m.devices() {
		s := m.read(d, device.Static, 0)
		got = append(got, s.ID.PCI+" "+s.Aliases[0])
		if s.ID.Index != i {
			t.Errorf("%s has the number %d, not %d", s.ID.PCI, s.ID.Index, i)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// State lives in the Device: it must stay the same as long as the GPU does, and change when
// another GPU takes its place.
func TestRediscovery(t *testing.T) {
	m := load(t, "node.txt")
	r := m.open()
	find := func() map[string]device.Device {
		t.Helper()
		list, err := r.Devices(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		by := map[string]device.Device{}
		for _, d := range list {
			by[d.ID().PCI] = d
		}
		return by
	}
	first, second := find(), find()
	if len(first) != 6 || len(second) != 6 {
		t.Fatalf("%d, then %d devices", len(first), len(second))
	}
	for pci, d := range first {
		if second[pci] != d {
			t.Errorf("%s has a new Device", pci)
		}
	}
	// Another card in the same slot.
	m.replace(arcDir+"/uevent", "8086:E20B", "8086:E20C")
	third := find()
	if third["0000:1d:00.0"] == first["0000:1d:00.0"] {
		t.Error("a changed GPU kept its Device")
	}
	if third["0000:1a:00.0"] != first["0000:1a:00.0"] {
		t.Error("the neighboring GPU has a new Device")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
