package device

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A memory temperature reported as that of the device, or the power of a whole module as
// that of the GPU, would be wrong in every aggregate over a fleet.
func TestChoice(t *testing.T) {
	power := func(scope string, watts float64) Power { return Power{Scope: scope, Instant: Of(watts)} }
	limited := Power{Scope: "gpu", Limits: []PowerLimit{{Type: LimitEnforced, Watts: Of(600)}}}
	heat := func(sensor string, celsius float64) Temperature {
		return Temperature{Sensor: sensor, Value: Of(celsius)}
	}
	clock := func(kind string, hertz float64) Clock {
		return Clock{Type: kind, Frequency: Of(hertz), Limit: Of(2e9)}
	}
	type chosen struct {
		Power       Power
		Temperature Value
		Clock       Clock
		Voltage     Value
	}
	for _, c := range []struct {
		name string
		s    Sample
		want chosen
	}{
		{"a GH200 is not its module", Sample{Powers: []Power{power("module", 900), power("gpu", 300), power("memory", 60)}}, chosen{Power: power("gpu", 300)}},
		{"only the module has a meter", Sample{Powers: []Power{limited, power("module", 900)}}, chosen{Power: power("module", 900)}},
		{"memory is contained in the other scopes", Sample{Powers: []Power{power("memory", 60)}}, chosen{}},
		{"a limit and no reading", Sample{Powers: []Power{limited}}, chosen{Power: limited}},
		{"a ratio and no watts", Sample{Powers: []Power{{Scope: "gpu", Utilization: Of(0.4)}}}, chosen{Power: Power{Scope: "gpu", Utilization: Of(0.4)}}},
		{"instant before average", Sample{Powers: []Power{{Scope: "gpu", Instant: Of(1), Average: Of(2)}}}, chosen{Power: Power{Scope: "gpu", Instant: Of(1), Average: Of(2)}}},

		{"NVIDIA", Sample{
			Temperatures: []Temperature{heat("edge", 50), heat("memory", 70)},
			Clocks:       []Clock{clock("graphics", 1e9), clock("sm", 1.9e9), clock("memory", 3e9)},
		}, chosen{Temperature: Of(50), Clock: clock("sm", 1.9e9)}},
		{"Radeon", Sample{
			Temperatures: []Temperature{heat("hotspot", 85), heat("edge", 50), heat("memory", 60)},
			Clocks:       []Clock{clock("memory", 3e9), clock("soc", 1e9), clock("graphics", 2e9)},
			Voltages:     []Voltage{{"soc", Of(0.7)}, {"core", Of(0.9)}, {"memory", Of(1.1)}},
		}, chosen{Temperature: Of(50), Clock: clock("graphics", 2e9), Voltage: Of(0.9)}},
		{"MI300X", Sample{Temperatures: []Temperature{heat("memory", 40), heat("hotspot", 61), heat("vr_gfx", 80)}}, chosen{Temperature: Of(61)}},
		{"Intel with two tiles", Sample{
			Temperatures: []Temperature{heat("hotspot", 54), heat("memory", 50)},
			Clocks:       []Clock{clock("graphics", 1.6e9), clock("graphics_tile1", 1.5e9), clock("media", 1e9)},
			Voltages:     []Voltage{{"core", Of(0.8)}},
		}, chosen{Temperature: Of(54), Clock: clock("graphics", 1.6e9), Voltage: Of(0.8)}},
		{"Gaudi", Sample{
			Temperatures: []Temperature{heat("board", 31), heat("edge", 45)},
			Clocks:       []Clock{clock("soc", 1.5e9), {Type: "tpc", Limit: Of(1.9e9)}},
		}, chosen{Temperature: Of(45), Clock: clock("soc", 1.5e9)}},
		{"Tenstorrent", Sample{Clocks: []Clock{clock("axi", 9e8), clock("ai", 1.3e9), clock("arc", 8e8)}}, chosen{Clock: clock("ai", 1.3e9)}},
		{"an edge sensor that does not answer", Sample{Temperatures: []Temperature{{Sensor: "edge"}, heat("hotspot", 70)}}, chosen{Temperature: Of(70)}},
		{"no sensor on the die", Sample{Temperatures: []Temperature{heat("memory", 70), heat("board", 40), heat("vreg", 60)}}, chosen{}},
		{"only other rails and clocks", Sample{Clocks: []Clock{clock("memory", 3e9)}, Voltages: []Voltage{{"memory", Of(1.1)}}}, chosen{}},
	} {
		got := chosen{c.s.Power(), c.s.Temperature(), c.s.ComputeClock(), c.s.Voltage()}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if c.s.Clock() != c.want.Clock.Frequency {
			t.Errorf("%s: the clock is %v", c.name, c.s.Clock())
		}
	}
}
