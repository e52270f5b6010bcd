package schedulerreceiver

import (
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/internal/scheduler/slurmctl"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// epochs has the start times of the controller's counters.
type epochs struct {
	since time.Time // of the statistics: every midnight and every reset
	// rpcs is the start of the request counters. Midnight does not affect them: they restart with
	// the controller or with a reset. It is zero, unknown, until they did.
	rpcs   time.Time
	counts map[string]int64
	peaks  map[string]float64
}

// observe updates the epochs from the statistics of a round.
func (e *epochs) observe(d *slurmctl.Diag) {
	if !d.Since.Equal(e.since) {
		e.since, e.peaks = d.Since, map[string]float64{}
	}
	counts := make(map[string]int64, len(d.RPCs))
	fell := false
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

// rising returns v, or the previous value if v fell without a restart of the statistics: the product of a
// rounded mean may fall.
func (e *epochs) rising(name string, v optional.Float) optional.Float {
	f, ok := v.Get()
	if !ok {
		return v
	}
	f = max(f, e.peaks[name])
	e.peaks[name] = f
	return optional.Of(f)
}

// finish adds start times to sums, and the histograms.
func (e *emitter) finish(md pmetric.Metrics) {
	for m := range series.Metrics(md) {
		for p := range series.Points(m) {
			series.Start(m, p, e.startOf(m.Name()))
		}
	}
	if e.cfg.Slurm.Histograms {
		e.histograms(md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()) // slurm.up is always present
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

// histograms adds how long jobs waited, ran and were suspended. The histograms are cumulative since the
// start of the receiver and continue through failed rounds.
func (e *emitter) histograms(to pmetric.MetricSlice) {
	d, labels := e.durations, map[string]string{"slurm.cluster": e.cluster}
	put(to, append([]histogram{
		{"slurm.job.wait.duration", "Time that started jobs had waited since they became eligible, each job once.", d.Wait, []string{"slurm.partition"}, labels},
		{"slurm.job.run.duration", "Run time of finished jobs, excluding time suspended, each job once.", d.Run, []string{"slurm.partition"}, labels},
		{"slurm.job.suspended.duration", "Time that finished jobs were suspended, each job once.", d.Suspended, []string{"slurm.partition"}, labels},
	}, e.words().waits(kube.Totals{Scheduled: d.GPUWait})...), e.began, e.ts)
}
