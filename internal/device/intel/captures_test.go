//go:build linux

package intel

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// captured returns a machine with one card from captures of real machines, which are not
// part of this repository.
func captured(t *testing.T, name, card string) *machine {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("../../../../shared/fixtures/intel/sysfs", name, card))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no captures found: %v", err)
	}
	m := newMachine(t)
	m.link("sys/class/drm/"+card, dir)
	m.set("proc/2/stat", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0")
	return m
}

// calm are the causes that all captured cards report, none of them active.
func calm() []device.Throttle {
	return []device.Throttle{
		throttle("pl1", power|sw, false), throttle("pl2", power|sw, false), throttle("pl4", power|hw, false),
		throttle("vr_tdc", power|hw, false), throttle("thermal", thermal|sw, false), throttle("ratl", thermal|sw, false),
		throttle("prochot", thermal|hw, false), throttle("vr_thermalert", thermal|hw, false),
	}
}

func limit(kind string, watts float64) []device.Power {
	return []device.Power{{Scope: "gpu", Limits: []device.PowerLimit{{Type: kind, Watts: device.Of(watts)}}}}
}

func TestCaptures(t *testing.T) {
	idle := device.Engines{Compute: device.Of(0)}
	f := func(name, card string, want device.Sample) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			m := captured(t, name, card)
			s, err := m.devices()[0].Read(context.Background(), device.Static)
			if err != nil {
				t.Error(err)
			}
			want.Utilization, want.Memory.Used, want.Throttles = idle, device.Of(0), calm()
			if diff := cmp.Diff(want, s); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	id := func(pci, model string) device.ID {
		return device.ID{Vendor: "intel", UUID: "intel-" + machineID + "-" + pci, Model: model, PCI: pci}
	}
	f("a380-i915", "card1", device.Sample{
		ID: id("0000:0b:00.0", "Intel Arc A380"), Info: device.Info{Driver: "i915", Architecture: "Xe-HPG"},
		Temperatures: []device.Temperature{{Sensor: "hotspot", Value: device.Of(55)}},
		Powers:       limit("enforced", 55),
		Energy:       device.Of(25637.161804),
		Clocks:       []device.Clock{{Type: "graphics", Frequency: device.Of(600e6), Limit: device.Of(2450e6)}},
		Voltages:     []device.Voltage{{Rail: "core", Volts: device.Of(0.603)}},
		Fans:         []device.Fan{{Index: 0, RPM: device.Of(0)}},
		Aliases:      []string{"card1", "0000-0b-00-0-0x56a5"},
	})
	f("a380-xe", "card0", device.Sample{
		ID: id("0000:08:00.0", "Intel Arc A380"), Info: device.Info{Driver: "xe", Architecture: "Xe-HPG"},
		Temperatures: []device.Temperature{{Sensor: "hotspot", Value: device.Of(56)}, {Sensor: "memory", Value: device.Of(54)}},
		Powers:       limit("enforced", 55),
		Energy:       device.Of(59540.97052),
		Clocks:       []device.Clock{{Type: "graphics", Frequency: device.Of(0), Limit: device.Of(2450e6)}},
		Voltages:     []device.Voltage{{Rail: "core", Volts: device.Of(0.605)}},
		Fans:         []device.Fan{{Index: 0, RPM: device.Of(945)}, {Index: 1, RPM: device.Of(0)}},
		Status:       device.Of(0),
		Aliases:      []string{"card0", "0000-08-00-0-0x56a5"},
	})
	clocks := func(graphics float64) []device.Clock {
		return []device.Clock{
			{Type: "graphics", Frequency: device.Of(graphics), Limit: device.Of(2850e6)},
			{Type: "media", Frequency: device.Of(0), Limit: device.Of(1500e6)},
		}
	}
	f("b580-6.16", "card1", device.Sample{
		ID: id("0000:0b:00.0", "Intel Arc B580"), Info: device.Info{Driver: "xe", Architecture: "Xe2-HPG"},
		Temperatures: []device.Temperature{{Sensor: "hotspot", Value: device.Of(46)}, {Sensor: "memory", Value: device.Of(48)}},
		Energy:       device.Of(29523.753173), // of the package: the card's counter is 0
		Clocks:       clocks(400e6),
		Fans:         []device.Fan{{Index: 0, RPM: device.Of(0)}, {Index: 1, RPM: device.Of(418)}, {Index: 2, RPM: device.Of(0)}},
		Status:       device.Of(0),
		Aliases:      []string{"card1", "0000-0b-00-0-0xe20b"},
	})
	fan := func(i int, rpm float64) device.Fan {
		return device.Fan{Index: i, RPM: device.Of(rpm), Speed: device.Of(rpm / 2160)}
	}
	f("b580", "card1", device.Sample{
		ID: id("0000:09:00.0", "Intel Arc B580"), Info: device.Info{Driver: "xe", Architecture: "Xe2-HPG"},
		Temperatures: []device.Temperature{
			{Sensor: "hotspot", Value: device.Of(54), Limits: caps(100, 125)},
			{Sensor: "memory", Value: device.Of(56), Limits: caps(105, 120)},
			{Sensor: "memory_controller", Value: device.Of(55), Limits: caps(100, 125)},
			{Sensor: "pcie", Value: device.Of(58), Limits: caps(100, 125)},
		},
		Powers:  limit("enforced", 190),
		Energy:  device.Of(11031.745544),
		Clocks:  clocks(0),
		Fans:    []device.Fan{fan(0, 1116), fan(1, 1235), fan(2, 0)},
		Status:  device.Of(0),
		Aliases: []string{"card1", "0000-09-00-0-0xe20b"},
	})
}

// Real fdinfo files, from the kernel's documentation and from users.
func TestCapturedFdinfo(t *testing.T) {
	f := func(name string, pdev string, client uint64, vram device.Value, class string, want engine) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join("../../../../shared/fixtures/intel/fdinfo", name))
		if err != nil {
			t.Skipf("no captures found: %v", err)
		}
		info, err := parseFdinfo(string(b))
		if err != nil || info.pdev != pdev || info.client != client || !info.identified || info.vram != vram || info.engines[class] != want {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
	f("xe-kernel-doc.txt", "0000:03:00.0", 3, device.Of(23992<<10), "rcs",
		engine{counted: true, busy: 28257900, cycles: true, total: 7655183225, hasTotal: true})
	f("i915.txt", "0000:00:02.0", 7, device.Value{}, "video", engine{counted: true, busy: 52567609040, capacity: 2})
}
