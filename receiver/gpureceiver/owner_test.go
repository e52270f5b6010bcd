package gpureceiver

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// lines returns each point as metric, attributes other than the common ones, and value.
func lines(md pmetric.Metrics) []string {
	var list []string
	for m := range series.Metrics(md) {
		if strings.HasPrefix(m.Name(), "gpumeter.") {
			continue
		}
		for dp := range series.Points(m) {
			var attrs []string
			for key, v := range dp.Attributes().All() {
				if key != "gpu.index" && key != "gpu.model" && key != "gpu.vendor" {
					attrs = append(attrs, key+"="+v.AsString())
				}
			}
			slices.Sort(attrs)
			value := fmt.Sprint(number(dp))
			if h, ok := dp.(pmetric.HistogramDataPoint); ok {
				value = fmt.Sprint(h.Count(), h.Sum(), h.ExplicitBounds().AsRaw(), h.BucketCounts().AsRaw())
			}
			if dp.Flags().NoRecordedValue() {
				value = "ends"
			}
			if m.Type() == pmetric.MetricTypeHistogram && m.Histogram().AggregationTemporality() != pmetric.AggregationTemporalityCumulative {
				value += " without temporality"
			}
			if series.Cumulative(m) && dp.StartTimestamp() != 0 {
				value += " since " + dp.StartTimestamp().AsTime().Format("05")
			}
			list = append(list, m.Name()+" "+strings.Join(attrs, " ")+": "+value)
		}
	}
	slices.Sort(list)
	return list
}

func ownedTick(at time.Time, s device.Sample, owner *workload.Workload, holders ...node.Holder) node.Tick {
	t := tickOf(s)
	t.Time = at
	t.Readings[0].Owner, t.Readings[0].Holders = owner, holders
	return t
}

// Catches owner labels on a counter of the device, which would end with each pod, and series of a former
// owner shown for minutes beside those of the next.
func TestOwner(t *testing.T) {
	s := device.Sample{
		ID: device.ID{Vendor: "nvidia", UUID: "GPU-0", Model: "H200"}, Info: device.Info{Driver: "580"},
		Energy: device.Of(100), Memory: device.Memory{Used: device.Of(7)},
	}
	pod := func(name string) workload.Workload {
		return workload.Workload{ID: name, Kind: "job", Name: name, Team: "red", Attributes: map[string]string{"k8s.pod.name": name + "-x", "k8s.pod.label.tier": "gold"}}
	}
	const labels = "gpu.uuid=GPU-0 gpu.workload.kind=job gpu.workload.name=%s gpu.workload.team=red k8s.pod.label.tier=gold k8s.pod.name=%s-x: "
	of := func(metric, name, value string) string { return metric + fmt.Sprintf(labels, name, name) + value }
	a, b := pod("a"), pod("b")
	began := start.Add(-10 * time.Second)
	holder := func(w workload.Workload, energy float64, ended bool) node.Holder {
		h := node.Holder{Workload: w, Since: began, Energy: device.Of(energy), Allocated: 9, Active: device.Of(4), Ended: ended}
		if !ended {
			h.Basis, h.Allocation, h.Utilization = node.Exclusive, 1, device.Of(0.5)
		}
		return h
	}
	since := " since " + began.Format("05")
	device := func(owner string) []string {
		return []string{
			"gpu.energy gpu.uuid=GPU-0: 100", // see tickOf
			of("gpu.health ", owner, "1"),
			"gpu.info gpu.driver.version=580 gpu.uuid=GPU-0: 1",
			of("gpu.memory.used ", owner, "7"),
			"gpu.unallocated gpu.uuid=GPU-0 gpu.workload.kind=unallocated: 0",
			of("gpu.up ", owner, "1"),
		}
	}
	sums := func(name, energy string) []string {
		return []string{
			of("gpu.workload.active.time ", name, "4"+since), of("gpu.workload.allocated.time ", name, "9"+since),
			of("gpu.workload.energy ", name, energy+since), of("gpu.workload.idle.time ", name, "5"+since),
		}
	}
	gauges := func(name, one, half string) []string {
		return []string{of("gpu.allocation gpu.share.basis=exclusive ", name, one), of("gpu.workload.utilization gpu.share.basis=exclusive ", name, half)}
	}
	e := newEmitter(createDefaultConfig().(*Config))
	f := func(tick node.Tick, want ...[]string) {
		t.Helper()
		all := slices.Concat(want...)
		slices.Sort(all)
		if diff := cmp.Diff(all, lines(e.Emit(tick))); diff != "" {
			t.Errorf("points (-want +got):\n%s", diff)
		}
	}
	f(ownedTick(start, s, &a, holder(a, 11, false)), device("a"), sums("a", "11"), gauges("a", "1", "0.5"))
	f(ownedTick(start, s, &b, holder(a, 12, true), holder(b, 0, false)),
		device("b"), sums("a", "12"), sums("b", "0"), gauges("b", "1", "0.5"),
		gauges("a", "ends", "ends"), []string{of("gpu.health ", "a", "ends"), of("gpu.memory.used ", "a", "ends"), of("gpu.up ", "a", "ends")})
	f(ownedTick(start, s, &b, holder(a, 12, true), holder(b, 1, false)),
		device("b"), sums("a", "12"), sums("b", "1"), gauges("b", "1", "0.5"))
	// Five minutes later nothing is left of a.
	ends := []string{}
	for _, line := range sums("a", "12") {
		i := strings.LastIndex(line, ": ")
		ends = append(ends, line[:i]+": ends"+since)
	}
	f(ownedTick(start, s, &b, holder(b, 2, false)), device("b"), sums("b", "2"), gauges("b", "1", "0.5"), ends)
}

// Catches a workload on a partition without the partition's ID and profile.
func TestPartitionHolder(t *testing.T) {
	gpu := device.Sample{ID: device.ID{UUID: "GPU-0"}}
	part := device.Sample{ID: device.ID{UUID: "MIG-1", Parent: "GPU-0", Profile: "1g.18gb"}, Memory: device.Memory{Used: device.Of(3)}}
	tick := tickOf(gpu, part)
	w := workload.Workload{ID: "a", Kind: "pod", Name: "a"}
	tick.Readings[0].Holders = []node.Holder{{Workload: w, Partition: "MIG-1", Profile: "1g.18gb", Basis: node.ByActivity, Allocation: 0.5, Since: start}, {Workload: nobody, Basis: node.ByGrant, Allocation: 0.5, Allocated: 4, Since: start}}
	tick.Readings[1].Owner = &w
	const identity = "gpu.partition.id=MIG-1 gpu.partition.profile=1g.18gb "
	const owner = "gpu.uuid=GPU-0 gpu.workload.kind=pod gpu.workload.name=a: "
	want := []string{
		"gpu.allocation " + identity + "gpu.share.basis=partition " + owner + "0.5",
		"gpu.health gpu.uuid=GPU-0: 1",
		"gpu.info gpu.uuid=GPU-0: 1",
		"gpu.partition.memory.used " + identity + owner + "3",
		"gpu.partition.up " + identity + owner + "1",
		"gpu.unallocated gpu.uuid=GPU-0 gpu.workload.kind=unallocated: 0.5",
		"gpu.unallocated.time gpu.uuid=GPU-0 gpu.workload.kind=unallocated: 4 since " + start.Format("05"),
		"gpu.up gpu.uuid=GPU-0: 1",
		"gpu.workload.allocated.time " + identity + owner + "0 since " + start.Format("05"),
	}
	if diff := cmp.Diff(want, lines(newEmitter(createDefaultConfig().(*Config)).Emit(tick))); diff != "" {
		t.Errorf("points (-want +got):\n%s", diff)
	}
}
