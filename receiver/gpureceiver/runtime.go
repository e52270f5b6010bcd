package gpureceiver

import (
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
)

// epoch is the start of a runtime's counters. They restart with each workload, while the other counters
// of the device continue.
type epoch struct {
	since time.Time      // zero: the runtime is older than the agent
	last  device.Runtime // last report
	at    time.Time      // time of the last report
}

// epochs has the epochs of the runtimes at a tick, by UUID.
type epochs map[string]epoch

// next returns the epochs of t, the tick after e. A runtime that restarted did so after its last reading,
// and everything it has counted is since then.
func (e epochs) next(t node.Tick) epochs {
	all := make(epochs, len(e))
	for i := range t.Readings {
		r := &t.Readings[i]
		was, known := e[r.ID.UUID]
		switch {
		case known && (!r.Up || was.last.Counts() && !r.Runtime.Counts()): // it may continue
			all[r.ID.UUID] = was
		case !r.Up:
		case !known:
			all[r.ID.UUID] = epoch{last: r.Runtime, at: t.Time}
		case r.Runtime.Restarted(&was.last):
			all[r.ID.UUID] = epoch{was.at, r.Runtime, t.Time}
		default:
			all[r.ID.UUID] = epoch{was.since, r.Runtime, t.Time}
		}
	}
	return all
}

// runtime records what the runtime reports about the programs on the device.
func (p *point) runtime(s *device.Sample) {
	for _, x := range s.Runtime.Executions {
		if v, ok := x.Count.Get(); ok {
			p.mb.RecordGpuRuntimeExecutionsDataPoint(p.ts, v, p.index, p.model, x.Type, p.uuid, p.vendor)
		}
	}
	for i := range s.Runtime.Latencies {
		l := &s.Runtime.Latencies[i]
		p.mb.RecordGpuRuntimeLatencyDataPoint(p.ts, l.Seconds, p.index, p.model, l.Detail, l.Operation, p.uuid, p.vendor)
		p.e.latencies = append(p.e.latencies, l)
	}
}

const latencyMetric = "gpu.runtime.latency"

// histograms builds the histograms of the latencies in recorded order, because mdatagen does not support
// histograms.
func histograms(md pmetric.Metrics, latencies []*device.Latency) {
	for m := range series.Metrics(md) {
		if m.Name() != latencyMetric {
			continue
		}
		sums := pmetric.NewNumberDataPointSlice()
		m.Sum().DataPoints().MoveAndAppendTo(sums)
		h := m.SetEmptyHistogram()
		h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		for i, sum := range sums.All() {
			l, dp := latencies[i], h.DataPoints().AppendEmpty()
			sum.Attributes().MoveTo(dp.Attributes())
			dp.SetTimestamp(sum.Timestamp())
			dp.SetCount(l.Count)
			dp.SetSum(l.Seconds)
			if len(l.Counts) == len(l.Bounds)+1 { // otherwise receivers reject the whole batch
				dp.ExplicitBounds().FromRaw(l.Bounds)
				dp.BucketCounts().FromRaw(l.Counts)
			}
		}
	}
}

// ofRuntime reports whether a metric starts with the runtime's counters.
func ofRuntime(m pmetric.Metric) bool {
	return strings.HasPrefix(m.Name(), "gpu.runtime.") || strings.HasPrefix(m.Name(), "gpu.partition.runtime.")
}
