//go:build linux

package tenstorrent

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// The captured tree was written independently from the driver's sources: names and units
// must mean the same to both.
func TestCaptures(t *testing.T) {
	const root = "../../../../shared/fixtures/tenstorrent/sysfs-synthetic"
	if _, err := os.Stat(root); err != nil {
		t.Skipf("no captures found: %v", err)
	}
	var got []device.Sample
	for _, d := range devices(t, open(t, root)) {
		s, err := d.Read(t.Context(), device.Static)
		check(t, err)
		s.Aliases = nil
		got = append(got, s)
	}
	want := []device.Sample{
		{
			ID:   device.ID{Vendor: "tenstorrent", UUID: "tenstorrent-0100014311708001-0000000000000001", Model: "Tenstorrent Wormhole n300"},
			Info: device.Info{Architecture: "wormhole", Firmware: "80.17.0.0"},
			Temperatures: []device.Temperature{{
				Sensor: "edge", Value: device.Of(46.25),
				Limits: []device.TemperatureCap{{Event: "slowdown", Limit: device.Of(75), Margin: device.Of(28.75)}},
			}},
			Powers:    []device.Power{{Scope: "gpu", Instant: device.Of(16), Limits: []device.PowerLimit{{Type: "enforced", Watts: device.Of(85)}}}},
			Clocks:    []device.Clock{{Type: "ai", Frequency: device.Of(1e9)}, {Type: "axi", Frequency: device.Of(9e8)}, {Type: "arc", Frequency: device.Of(5.4e8)}},
			Voltages:  []device.Voltage{{Rail: "core", Volts: device.Of(0.76)}},
			Current:   device.Of(21),
			Heartbeat: device.Of(1234),
		},
		{
			ID:   device.ID{Vendor: "tenstorrent", UUID: "tenstorrent-0000046131924062-89e991bdb13e022e", Index: 1, Model: "Tenstorrent Blackhole p150a"},
			Info: device.Info{Architecture: "blackhole", Firmware: "19.7.99.0"},
			Temperatures: []device.Temperature{{
				Sensor: "edge", Value: device.Of(34.832),
				Limits: []device.TemperatureCap{{Event: "slowdown", Limit: device.Of(110), Margin: device.Of(110 - 34.832)}},
			}},
			Powers:    []device.Power{{Scope: "gpu", Instant: device.Of(16)}},
			Clocks:    []device.Clock{{Type: "ai", Frequency: device.Of(8e8)}, {Type: "axi", Frequency: device.Of(9.6e8)}, {Type: "arc", Frequency: device.Of(8e8)}},
			Voltages:  []device.Voltage{{Rail: "core", Volts: device.Of(0.719)}},
			Current:   device.Of(23),
			Fans:      []device.Fan{{RPM: device.Of(1882)}},
			Heartbeat: device.Of(11540),
			Resets:    []device.ErrorCount{{Type: "thermal_trip", Count: device.Of(0)}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}
