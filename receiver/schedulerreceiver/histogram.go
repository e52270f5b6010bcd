package schedulerreceiver

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/scheduler/slurmctl"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// epochs are when the controller's counters began.
type epochs struct {
	since time.Time // of the statistics: each midnight, and when they are reset
	// rpcs is since when requests are counted. Midnight does not touch them: they begin anew
	// with the controller, or with a reset.
	rpcs   time.Time
	counts map[string]int64
	peaks  map[string]float64
}

// observe takes the statistics of a round.
func (e *epochs) observe(d *slurmctl.Diag) {
	if !d.Since.Equal(e.since) {
		e.since, e.peaks = d.Since, map[string]float64{}
	}
	counts := make(map[string]int64, len(d.RPCs))
	fell := e.rpcs.IsZero()
	for _, r := range d.RPCs {
		counts[r.Name] = r.Count
	}
	for name, n := range e.counts {
		fell = fell || counts[name] < n
	}
	if fell {
		e.rpcs = d.Since
	}
	e.counts = counts
}

// rising returns v, or what it was if it fell though the statistics did not begin anew: a
// product of a rounded mean does.
func (e *epochs) rising(name string, v optional.Float) optional.Float {
	f, ok := v.Get()
	if !ok {
		return v
	}
	f = max(f, e.peaks[name])
	e.peaks[name] = f
	return optional.Of(f)
}

// finish gives sums their start and adds the histograms.
func (e *emitter) finish(md pmetric.Metrics) {
	for m := range series.Metrics(md) {
		for p := range series.Points(m) {
			series.Start(m, p, e.startOf(m.Name()))
		}
	}
	if e.cfg.Slurm.Histograms {
		e.histograms(md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()) // slurm.up is always there
	}
}

func (e *emitter) startOf(name string) time.Time {
	switch {
	case name == metadata.MetricsInfo.SlurmRequests.Name, name == metadata.MetricsInfo.SlurmRefreshErrors.Name:
		return e.began
	case strings.HasPrefix(name, "slurm.rpc."):
		return e.epochs.rpcs
	}
	return e.epochs.since
}

// histograms adds how long jobs waited, ran and were suspended. They are cumulative since
// the receiver began, also in a round that failed: nothing of them is forgotten.
func (e *emitter) histograms(to pmetric.MetricSlice) {
	d := e.durations
	for _, h := range []struct {
		name, text string
		parts      map[string]*slurmctl.Histogram
	}{
		{"slurm.job.wait.duration", "How long jobs that started waited, from when they could start, each job once.", d.Wait},
		{"slurm.job.run.duration", "How long jobs that ended ran, without the time that they were suspended, each job once.", d.Run},
		{"slurm.job.suspended.duration", "How long jobs that ended were suspended, each job once.", d.Suspended},
	} {
		if len(h.parts) == 0 {
			continue
		}
		m := to.AppendEmpty()
		m.SetName(h.name)
		m.SetDescription(h.text)
		m.SetUnit("s")
		m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		for _, part := range slices.Sorted(maps.Keys(h.parts)) {
			p := m.Histogram().DataPoints().AppendEmpty()
			p.SetStartTimestamp(pcommon.NewTimestampFromTime(e.began))
			p.SetTimestamp(e.ts)
			p.ExplicitBounds().FromRaw(slurmctl.Bounds)
			p.BucketCounts().FromRaw(h.parts[part].Counts)
			p.SetCount(h.parts[part].Count)
			p.SetSum(h.parts[part].Sum)
			p.Attributes().PutStr("slurm.cluster", e.cluster)
			p.Attributes().PutStr("slurm.partition", part)
		}
	}
}
