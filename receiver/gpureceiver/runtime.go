package gpureceiver

import (
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
)

// epoch is since when a runtime counts. It begins anew with each workload, while the
// other counters of its device go on.
type epoch struct {
	since time.Time
	last  device.Runtime // what it said last
	at    time.Time      // when
}

// epochs are those of the runtimes of a tick, by UUID.
type epochs map[string]epoch

// next returns the epochs of t, which follows those of e. A runtime that began anew did so
// after it was looked at last, and all that it counted is from then on.
func (e epochs) next(t node.Tick) epochs {
	all := make(epochs, len(e))
	for i := range t.Readings {
		r := &t.Readings[i]
		was, known := e[r.ID.UUID]
		switch {
		case known && (!r.Up || was.last.Counts() && !r.Runtime.Counts()): // it may go on
			all[r.ID.UUID] = was
		case !r.Up:
		case !known: // as the other counters, which have it from the state file
			all[r.ID.UUID] = epoch{r.Since, r.Runtime, t.Time}
		case r.Runtime.Restarted(&was.last):
			all[r.ID.UUID] = epoch{was.at, r.Runtime, t.Time}
		default:
			all[r.ID.UUID] = epoch{was.since, r.Runtime, t.Time}
		}
	}
	return all
}

// runtime records what the runtime says of the programs on the device.
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

// histograms makes histograms of the latencies, in the order in which they were recorded:
// mdatagen has none.
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
			if len(l.Counts) == len(l.Bounds)+1 { // or receivers refuse all that is sent with it
				dp.ExplicitBounds().FromRaw(l.Bounds)
				dp.BucketCounts().FromRaw(l.Counts)
			}
		}
	}
}

// ofRuntime reports whether a metric has the beginning of the runtime's counters.
func ofRuntime(m pmetric.Metric) bool {
	return strings.HasPrefix(m.Name(), "gpu.runtime.") || strings.HasPrefix(m.Name(), "gpu.partition.runtime.")
}
