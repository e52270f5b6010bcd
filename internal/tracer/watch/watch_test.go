package watch

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Catches wrong means, a wrong fraction of throttled time, and a partition without the sensors of its
// device or with processes of another.
func TestFactsOfDevices(t *testing.T) {
	reading := func(clock float64, capped bool, pid uint32) node.Tick {
		whole := node.Reading{Up: true, Sample: device.Sample{
			ID:     device.ID{UUID: "GPU-0"},
			Clocks: []device.Clock{{Type: "graphics", Frequency: device.Of(1)}, {Type: "sm", Frequency: device.Of(clock), Limit: device.Of(1980)}},
			Powers: []device.Power{{Scope: "gpu", Instant: device.Of(600), Limits: []device.PowerLimit{{Type: device.LimitEnforced, Watts: device.Of(700)}}}},
			Throttles: []device.Throttle{
				{Cause: "sw_power_cap", Buckets: device.BucketPower | device.BucketSW, Active: capped},
				{Cause: "hw_thermal_slowdown", Buckets: device.BucketThermal | device.BucketHW, Active: true},
			},
		}}
		part := node.Reading{Up: true, Sample: device.Sample{
			ID: device.ID{UUID: "MIG-1", Parent: "GPU-0"}, Utilization: device.Engines{Compute: device.Of(0.5)},
			Processes: []device.Process{{PID: pid, Name: "python3", Utilization: device.Of(0.25)}},
		}}
		return node.Tick{Readings: []node.Reading{whole, part, {Sample: device.Sample{ID: device.ID{UUID: "GPU-9"}}}}}
	}
	w := New(t.TempDir())
	w.Owner = func(pid uint32) (workload.Workload, bool) {
		return workload.Workload{Kind: "deployment", Name: "llm", Attributes: map[string]string{"k8s.namespace.name": "ml", "k8s.pod.name": "llm-0"}}, pid == 7
	}
	for _, tick := range []node.Tick{reading(1000, true, 6), reading(2000, false, 7)} {
		w.See(&tick)
	}
	want := []anomaly.DeviceFacts{
		{
			UUID: "GPU-0", SMClock: optional.Of(1500), SMClockMax: optional.Of(1980), Power: optional.Of(600), PowerLimit: optional.Of(700),
			PowerCapped: optional.Of(0.5), ThermalThrottled: optional.Of(1), HWSlowdown: optional.Of(0),
		},
		{
			UUID: "MIG-1", SMClock: optional.Of(1500), SMClockMax: optional.Of(1980), Power: optional.Of(600), PowerLimit: optional.Of(700), Utilization: optional.Of(0.5),
			PowerCapped: optional.Of(0.5), ThermalThrottled: optional.Of(1), HWSlowdown: optional.Of(0),
			Processes: []anomaly.DeviceProcess{{PID: 7, Name: "python3", Workload: "pod ml/llm-0", Utilization: optional.Of(0.25)}},
		},
	}
	if diff := cmp.Diff(want, w.facts()); diff != "" {
		t.Error(diff)
	}
	if got := w.facts(); len(got) != 0 {
		t.Errorf("the next window starts with %d devices", len(got))
	}
}
