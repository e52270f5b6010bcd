package gpureceiver

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// mixedTick is a small fleet: a GPU in MIG mode, one in XCP mode, one that two workloads share by time
// slicing, one in a package with a CPU, and a lost one.
func mixedTick() node.Tick {
	of := device.Of
	sample := func(uuid string, watts float64) device.Sample {
		return device.Sample{
			ID:           device.ID{Vendor: "test", UUID: uuid, Model: "M"},
			Utilization:  device.Engines{Compute: of(0.5), Memory: of(0.9), Encoder: of(0), Decoder: of(0.1)},
			Memory:       device.Memory{Used: of(40), Total: of(80)},
			Temperatures: []device.Temperature{{Sensor: "hotspot", Value: of(85)}, {Sensor: "edge", Value: of(50)}, {Sensor: "memory", Value: of(90)}},
			Powers: []device.Power{
				{Scope: "module", Instant: of(3 * watts), Average: of(3 * watts)},
				{Scope: "gpu", Instant: of(watts), Average: of(watts - 10), Limits: []device.PowerLimit{{Type: "max", Watts: of(800)}, {Type: device.LimitEnforced, Watts: of(700)}}},
				{Scope: "memory", Average: of(watts / 4)},
			},
			Clocks:   []device.Clock{{Type: "graphics", Frequency: of(1e9)}, {Type: "sm", Frequency: of(2e9)}, {Type: "memory", Frequency: of(3e9)}},
			Voltages: []device.Voltage{{Rail: "soc", Volts: of(0.7)}, {Rail: "core", Volts: of(0.9)}},
			Profile:  device.Profile{SMActive: of(0.4), SMOccupancy: of(0.2), DRAMActive: of(0.3), Pipes: []device.Pipe{{Name: "tensor", Active: of(0.1)}, {Name: "fp32", Active: of(0.2)}}},
			ECC:      []device.ECC{{Type: "corrected", Lifetime: "volatile", Count: of(1)}, {Type: "corrected", Lifetime: "aggregate", Count: of(9)}},
		}
	}
	part := func(parent string, i int) device.Sample {
		return device.Sample{
			ID:          device.ID{Vendor: "test", UUID: fmt.Sprintf("%s-part%d", parent, i), Parent: parent, Profile: "1g", Model: "M"},
			Slice:       device.Slice{Held: 1, Of: 2},
			Utilization: device.Engines{Compute: of(1), Decoder: of(0)},
			Memory:      device.Memory{Used: of(20), Total: of(40)},
			Profile:     device.Profile{SMActive: of(1), SMOccupancy: of(1), DRAMActive: of(1), Pipes: []device.Pipe{{Name: "tensor", Active: of(1)}}},
			Resets:      []device.ErrorCount{{Type: "requested", Count: of(1)}},
			Runtime:     device.Runtime{Operations: of(5), Executions: []device.ErrorCount{{Type: "success", Count: of(3)}}},
			Processes:   []device.Process{{PID: 7, Name: "python3", MemoryUsed: of(20), Utilization: of(1), Occupancy: of(1)}},
		}
	}
	mig := sample("mig", 100)
	mig.Utilization.Compute = device.Value{}
	t := tickOf(mig, sample("xcp", 200), sample("sliced", 300), sample("gh200", 400), part("mig", 0), part("mig", 1), part("xcp", 0), part("xcp", 1))
	t.Readings[0].Busy = of(1) // see node: the partitions' activity weighted by size
	t.Readings = append(t.Readings, node.Reading{Sample: device.Sample{ID: device.ID{Vendor: "test", UUID: "lost", Model: "M"}}})
	pod := func(name string) workload.Workload { return workload.Workload{ID: name, Kind: "job", Name: name} }
	holder := func(w workload.Workload, partition string, part float64) node.Holder {
		return node.Holder{Workload: w, Partition: partition, Basis: node.ByGrant, Allocation: part, Allocated: part * 10, Utilization: of(part / 2), MemoryUsed: of(40 * part), Power: of(100 * part), Energy: of(part), Active: of(part)}
	}
	a, whole := pod("a"), pod("whole")
	t.Readings[0].Holders = []node.Holder{holder(a, "mig-part0", 0.5), holder(nobody, "", 0.5)}
	t.Readings[4].Owner = &a
	t.Readings[1].Holders = []node.Holder{holder(pod("b"), "xcp-part0", 0.5), holder(pod("c"), "xcp-part1", 0.5)}
	t.Readings[2].Holders = []node.Holder{holder(pod("d"), "", 0.25), holder(pod("e"), "", 0.25), holder(nobody, "", 0.5)}
	t.Readings[3].Holders, t.Readings[3].Owner = []node.Holder{holder(whole, "", 1)}, &whole
	return t
}

// line is one series of a metric.
type line struct {
	device    string
	partition bool
	kind      string // kind of the workload
	alone     bool   // only the identity of the device and its workload as attributes
	value     float64
}

var identityKeys = map[string]bool{"gpu.index": true, "gpu.model": true, "gpu.uuid": true, "gpu.vendor": true, "gpu.partition.id": true, "gpu.partition.profile": true}

func seriesOf(md pmetric.Metrics) map[string][]line {
	all := map[string][]line{}
	for m := range series.Metrics(md) {
		for dp := range series.Points(m) {
			get := func(key string) string {
				if v, ok := dp.Attributes().Get(key); ok {
					return v.AsString()
				}
				return ""
			}
			alone := true
			for key := range dp.Attributes().All() {
				alone = alone && (identityKeys[key] || strings.HasPrefix(key, "gpu.workload."))
			}
			all[m.Name()] = append(all[m.Name()], line{get("gpu.uuid"), get("gpu.partition.id") != "", get("gpu.workload.kind"), alone, number(dp)})
		}
	}
	return all
}

// plainNames are the default gauges that users sum and average.
var plainNames = []string{
	"gpu.utilization", "gpu.power.draw", "gpu.power.limit", "gpu.temperature", "gpu.clock.frequency", "gpu.voltage", "gpu.memory.used",
	"gpu.memory.total", "gpu.memory.utilization", "gpu.sm.active", "gpu.sm.occupancy", "gpu.dram.active", "gpu.unallocated",
}

// Catches a device with two series under a plain name: the first query a user writes, a sum, average or
// count, would be wrong by a factor.
func TestOneSeriesPerDevice(t *testing.T) {
	all := seriesOf(newEmitter(everything(t)).Emit(mixedTick()))
	for _, name := range plainNames {
		seen := map[string]int{}
		for _, s := range all[name] {
			seen[s.device]++
		}
		if diff := cmp.Diff(map[string]int{"mig": 1, "xcp": 1, "sliced": 1, "gh200": 1}, seen); diff != "" {
			t.Errorf("series of %s by device (-want +got):\n%s", name, diff)
		}
	}
	for name, list := range all {
		own := strings.HasPrefix(name, "gpu.partition.")
		owned := strings.HasPrefix(name, "gpu.workload.") || name == "gpu.allocation" || strings.HasPrefix(name, "gpu.unallocated")
		seen := map[string]int{}
		for _, s := range list {
			if own && !s.partition {
				t.Errorf("%s has a series of the whole device %s", name, s.device)
			}
			if s.partition && !own && !owned && !strings.HasPrefix(name, "gpu.process.") {
				t.Errorf("%s has a series of a partition of %s", name, s.device)
			}
			if s.kind == workload.Unallocated && (name == "gpu.allocation" || strings.HasSuffix(name, ".time") && name != "gpu.unallocated.time") {
				t.Errorf("%s has a series of kind %s", name, s.kind)
			}
			if seen[s.device]++; s.alone && !s.partition && !owned && seen[s.device] > 1 {
				t.Errorf("%s has several indistinguishable series of %s", name, s.device)
			}
		}
	}
}

// Catches plain sums that differ from the machine: every device counts once, at its own power.
func TestPlainSums(t *testing.T) {
	all := seriesOf(newEmitter(createDefaultConfig().(*Config)).Emit(mixedTick()))
	sum := func(name string) float64 {
		total := 0.0
		for _, s := range all[name] {
			total += s.value
		}
		return total
	}
	count := func(name string) float64 { return float64(len(all[name])) }
	got := map[string]float64{
		"count(gpu.up)": count("gpu.up"), "sum(gpu.up)": sum("gpu.up"),
		"sum(gpu.power.draw)": sum("gpu.power.draw"), "sum(gpu.power.limit)": sum("gpu.power.limit"),
		"sum(gpu.memory.used)": sum("gpu.memory.used"), "sum(gpu.memory.total)": sum("gpu.memory.total"),
		"avg(gpu.utilization)":     sum("gpu.utilization") / count("gpu.utilization"),
		"avg(gpu.temperature)":     sum("gpu.temperature") / count("gpu.temperature"),
		"avg(gpu.clock.frequency)": sum("gpu.clock.frequency") / count("gpu.clock.frequency"),
		"avg(gpu.voltage)":         sum("gpu.voltage") / count("gpu.voltage"),
		"avg(gpu.sm.active)":       sum("gpu.sm.active") / count("gpu.sm.active"),
		"sum(gpu.ecc.errors)":      sum("gpu.ecc.errors"), "sum(gpu.ecc.lifetime.errors)": sum("gpu.ecc.lifetime.errors"),
		"sum(gpu.allocation)": sum("gpu.allocation"), "sum(gpu.unallocated)": sum("gpu.unallocated"), "count(gpu.unallocated)": count("gpu.unallocated"),
		"sum(gpu.workload.allocated.time)": sum("gpu.workload.allocated.time"), "sum(gpu.unallocated.time)": sum("gpu.unallocated.time"),
		"count(gpu.partition.up)": count("gpu.partition.up"), "sum(gpu.partition.memory.used)": sum("gpu.partition.memory.used"),
	}
	want := map[string]float64{
		"count(gpu.up)": 5, "sum(gpu.up)": 4,
		"sum(gpu.power.draw)": 100 + 200 + 300 + 400, "sum(gpu.power.limit)": 4 * 700,
		"sum(gpu.memory.used)": 4 * 40, "sum(gpu.memory.total)": 4 * 80,
		"avg(gpu.utilization)": (1 + 3*0.5) / 4, "avg(gpu.temperature)": 50, "avg(gpu.clock.frequency)": 2e9, "avg(gpu.voltage)": 0.9, "avg(gpu.sm.active)": 0.4,
		"sum(gpu.ecc.errors)": 4, "sum(gpu.ecc.lifetime.errors)": 36,
		"sum(gpu.allocation)": 0.5 + 1 + 0.5 + 1, "sum(gpu.unallocated)": 1, "count(gpu.unallocated)": 4,
		"sum(gpu.workload.allocated.time)": 30, "sum(gpu.unallocated.time)": 10,
		"count(gpu.partition.up)": 4, "sum(gpu.partition.memory.used)": 80,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
