package gpureceiver

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// runtimeOf returns the report of a runtime after n programs.
func runtimeOf(n uint64) device.Runtime {
	return device.Runtime{
		Queue: device.Of(3), Idle: device.Of(0.5), Operations: device.Of(float64(1000 * n)),
		Executions: []device.ErrorCount{{Type: "success", Count: device.Of(float64(n))}},
		Latencies: []device.Latency{
			{Operation: "program", Count: n, Seconds: 0.25 * float64(n), Bounds: []float64{0.1, 1}, Counts: []uint64{0, n, 0}},
			{Operation: "host_to_device", Detail: "4096", Count: 1, Seconds: 2, Bounds: []float64{1}, Counts: []uint64{0, 1}},
		},
	}
}

// Catches a runtime restart that resets the device's counters or goes unnoticed: each job would add or
// lose what the previous one counted.
func TestRuntime(t *testing.T) {
	cfg := everything(t)
	e := newEmitter(cfg)
	second := 0
	const energy = "gpu.energy gpu.uuid=TPU-0: 7"
	f := func(r *device.Runtime, want ...string) {
		t.Helper()
		second += 7
		tick := tickOf(device.Sample{ID: device.ID{UUID: "TPU-0"}, Energy: device.Of(7)})
		if r == nil {
			tick.Readings[0] = node.Reading{Sample: device.Sample{ID: tick.Readings[0].ID}, Since: tick.Readings[0].Since}
		} else {
			tick.Readings[0].Runtime = *r
			want = append(want, energy)
		}
		tick.Time = start.Add(time.Duration(second) * time.Second)
		var got []string
		for _, line := range lines(e.Emit(tick)) {
			if !strings.HasPrefix(line, "gpu.up") && !strings.HasPrefix(line, "gpu.health") && !strings.HasPrefix(line, "gpu.info") && !strings.HasPrefix(line, "gpu.energy gpu.uuid=TPU-0: ends") {
				got = append(got, line)
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("second %d (-want +got):\n%s", second, diff)
		}
	}
	said := func(since, executions, program, operations string) []string {
		if since != "" {
			since = " since " + since
		}
		return []string{
			"gpu.runtime.executions gpu.runtime.result=success gpu.uuid=TPU-0: " + executions + since,
			"gpu.runtime.idle.time gpu.uuid=TPU-0: 0.5",
			"gpu.runtime.latency gpu.runtime.detail=4096 gpu.runtime.operation=host_to_device gpu.uuid=TPU-0: 1 2 [1] [0 1]" + since,
			"gpu.runtime.latency gpu.runtime.operation=program gpu.uuid=TPU-0: " + program + since,
			"gpu.runtime.operations gpu.uuid=TPU-0: " + operations + since,
			"gpu.runtime.queue.size gpu.uuid=TPU-0: 3",
		}
	}
	ends := func(since string) []string {
		list := said(since, "ends", "ends", "ends")
		for i, line := range list {
			name, value, _ := strings.Cut(line, ": ")
			if _, beginning, counts := strings.Cut(value, " since "); counts {
				list[i] = name + ": ends since " + beginning
			} else {
				list[i] = name + ": ends"
			}
		}
		return list
	}
	none, four, six, two := device.Runtime{}, runtimeOf(4), runtimeOf(6), runtimeOf(2)
	f(&four, said("", "4", "4 1 [0.1 1] [0 4 0]", "4000")...) // older than the agent
	f(&six, said("", "6", "6 1.5 [0.1 1] [0 6 0]", "6000")...)
	f(&two, said("14", "2", "2 0.5 [0.1 1] [0 2 0]", "2000")...) // starts after the last reading
	f(&none, ends("14")...)                                      // no workload
	f(&none)
	f(&six, said("14", "6", "6 1.5 [0.1 1] [0 6 0]", "6000")...) // the runtime did not answer for a while
	f(nil, ends("14")...)                                        // the device is down
	f(&six, said("14", "6", "6 1.5 [0.1 1] [0 6 0]", "6000")...)
	f(&two, said("56", "2", "2 0.5 [0.1 1] [0 2 0]", "2000")...)
	// What the next workload does not report ends with that workload's start time.
	rest := ends("56")[1:]
	f(&device.Runtime{Executions: []device.ErrorCount{{Type: "success", Count: device.Of(1)}}},
		append(rest, "gpu.runtime.executions gpu.runtime.result=success gpu.uuid=TPU-0: 1 since 03")...)
}

// Catches the first workload of a known device whose counters start before the workload.
func TestFirstRuntime(t *testing.T) {
	var e epochs
	tick := tickOf(device.Sample{ID: device.ID{UUID: "TPU-0"}})
	for second, r := range []device.Runtime{{}, {}, {}, runtimeOf(4)} {
		tick.Time = start.Add(time.Duration(10*second) * time.Second)
		tick.Readings[0].Runtime, tick.Readings[0].Up = r, second != 2 // down once
		e = e.next(tick)
	}
	if want := start.Add(10 * time.Second); !e["TPU-0"].since.Equal(want) {
		t.Errorf("start time %v, want %v", e["TPU-0"].since, want)
	}
	if e = e.next(tickOf()); len(e) != 0 {
		t.Errorf("a device that is gone is remembered: %v", e)
	}
}

// Catches an owner on the counters of a runtime, which would be a second start of the same series; owners
// belong only on its gauges.
func TestRuntimeOwner(t *testing.T) {
	tick := tickOf(device.Sample{ID: device.ID{UUID: "TPU-0"}, Runtime: runtimeOf(4)})
	tick.Readings[0].Owner = &workload.Workload{ID: "a", Kind: "job", Name: "a"}
	for m := range series.Metrics(newEmitter(everything(t)).Emit(tick)) {
		for dp := range series.Points(m) {
			_, owned := dp.Attributes().Get("gpu.workload.name")
			if strings.HasPrefix(m.Name(), "gpu.runtime.") && owned == series.Cumulative(m) {
				t.Errorf("%s has an owner: %v", m.Name(), owned)
			}
		}
	}
}

// Catches inconsistent buckets, for which a backend rejects the whole batch: only count and sum remain.
func TestBadBuckets(t *testing.T) {
	s := device.Sample{ID: device.ID{UUID: "TPU-0"}, Runtime: device.Runtime{Latencies: []device.Latency{
		{Operation: "program", Count: 1, Seconds: 2, Bounds: []float64{1}, Counts: []uint64{1}},
	}}}
	const want = "gpu.runtime.latency gpu.runtime.operation=program gpu.uuid=TPU-0: 1 2 [] []"
	if got := lines(newEmitter(everything(t)).Emit(tickOf(s))); !slices.Contains(got, want) {
		t.Errorf("points are %q", got)
	}
}

// Catches a limit that ignores histograms or counts their points as one.
func TestHistogramCap(t *testing.T) {
	s := device.Sample{ID: device.ID{UUID: "TPU-0"}}
	for range 100 {
		s.Runtime.Latencies = append(s.Runtime.Latencies, device.Latency{Operation: "program", Detail: strings.Repeat("x", len(s.Runtime.Latencies))})
	}
	cfg := everything(t)
	cfg.MaxSeries = 40
	if n := newEmitter(cfg).Emit(tickOf(s)).DataPointCount(); n != 40 {
		t.Errorf("%d points over a cap of 40", n)
	}
}
