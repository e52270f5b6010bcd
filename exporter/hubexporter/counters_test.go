package hubexporter

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/device"
	machine "github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver"
)

// Catches counters of a device that a hub counts from zero: a hub that starts minutes after the agent would
// add the energy since the driver was loaded, and the errors since the board was made, to the last ten
// minutes. What began while the agent watched counts from its start.
func TestHubStartsAfterAgent(t *testing.T) {
	f := gpureceiver.NewFactory()
	e := gpureceiver.NewEmitter(f.CreateDefaultConfig().(*gpureceiver.Config), receivertest.NewNopSettings(f.Type()))
	s := openStore(t)
	w := NewWriter(s, nil)
	agent := now.Add(-8 * time.Minute)
	pod := workload.Workload{ID: "pod", Kind: "pod", Name: "train"}
	for ago := 5 * time.Minute; ago >= 0; ago -= 10 * time.Second {
		at := now.Add(-ago)
		seconds := at.Sub(agent).Seconds()
		grown := func(old, rate float64) device.Value { return device.Of(old + rate*seconds) }
		// The pod started 7 and the XID occurred 6 minutes ago, before the hub started.
		tick := machine.Tick{Time: at, Started: agent, Host: "node-a", Readings: []machine.Reading{{
			Up: true, Since: agent,
			XIDs: []machine.XIDCount{{Code: 48, Count: 1, Since: now.Add(-6 * time.Minute)}},
			Holders: []machine.Holder{{
				Workload: pod, Basis: machine.Exclusive, Allocation: 1, Share: 1, Since: now.Add(-7 * time.Minute),
				Energy: device.Of(100 * (seconds - 60)), Allocated: seconds - 60,
			}},
			Sample: device.Sample{
				ID: device.ID{UUID: "GPU-0", Vendor: "nvidia"}, Energy: grown(9e9, 100),
				ThrottleTimes: []device.ThrottleTime{{Cause: "power", Seconds: grown(1e6, 0.5)}},
				Interconnects: []device.Interconnect{{Type: "nvlink", TX: grown(18e12, 1e6), Errors: []device.ErrorCount{{Type: "replay", Count: device.Of(3)}}}},
				PCIe:          device.PCIe{Replays: device.Of(12)},
				ECC:           []device.ECC{{Type: "corrected", Lifetime: "volatile", Count: device.Of(40)}, {Type: "corrected", Lifetime: "aggregate", Count: device.Of(4000)}},
				RowRemap:      device.RowRemap{Corrected: device.Of(7)},
				Resets:        []device.ErrorCount{{Type: "hard", Count: device.Of(5)}},
				Runtime:       device.Runtime{Operations: grown(1e15, 1e3)},
			},
		}}}
		if r, err := w.Metrics(t.Context(), e.Emit(tick)); err != nil || r.Refused > 0 {
			t.Fatalf("%+v %v", r, err)
		}
	}
	got := map[string]float64{}
	for _, name := range []string{
		"gpu_energy_joules_total", "gpu_throttle_time_seconds_total", "gpu_interconnect_io_bytes_total", "gpu_interconnect_errors_total",
		"gpu_pcie_replays_total", "gpu_ecc_errors_total", "gpu_ecc_lifetime_errors_total", "gpu_row_remap_count_total",
		"gpu_resets_total", "gpu_runtime_operations_total", "gpu_xid_errors_total", "gpu_workload_energy_joules_total",
		"gpu_workload_allocated_time_seconds_total",
	} {
		list, err := s.Instant(t.Context(), "round(increase("+name+"[10m]))", now)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list {
			got[name] = x.Value
		}
	}
	// PromQL extrapolates by half a sampling interval to the left of a series without a zero: 305 s of 300.
	want := map[string]float64{
		"gpu_energy_joules_total": 305 * 100, "gpu_throttle_time_seconds_total": 153, "gpu_interconnect_io_bytes_total": 305e6,
		"gpu_interconnect_errors_total": 0, "gpu_pcie_replays_total": 0, "gpu_ecc_errors_total": 0, "gpu_ecc_lifetime_errors_total": 0,
		"gpu_row_remap_count_total": 0, "gpu_resets_total": 0, "gpu_runtime_operations_total": 305e3, "gpu_xid_errors_total": 1,
		"gpu_workload_energy_joules_total": 420 * 100, "gpu_workload_allocated_time_seconds_total": 420,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("increase over ten minutes (-want +got):\n%s", diff)
	}
}
