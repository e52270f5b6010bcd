package schedulerreceiver

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// words records what all schedulers report under the same names.
type words struct {
	mb            *metadata.MetricsBuilder
	ts            pcommon.Timestamp
	cluster, kind string // kind is the name of the scheduler
}

func (w *words) up(complete bool) {
	v := int64(0)
	if complete {
		v = 1
	}
	w.mb.RecordSchedulerUpDataPoint(w.ts, v, w.cluster, w.kind)
}

// jobs records the jobs with GPUs, with about limit groups.
func (w *words) jobs(all scheduler.Counts, limit int) {
	all = all.Fold(limit)
	for _, c := range all.By(func(g *scheduler.Group) bool { g.Model, g.Reason = "", ""; return true }) {
		w.mb.RecordSchedulerJobCountDataPoint(w.ts, c.Jobs, w.cluster, w.kind, c.Queue, c.Team, string(c.State))
	}
	for _, c := range all.By(func(g *scheduler.Group) bool { waits := g.State.Waits(); g.Model, g.State = "", ""; return waits }) {
		w.mb.RecordSchedulerJobPendingCountDataPoint(w.ts, c.Jobs, w.cluster, w.kind, c.Queue, c.Team, string(c.Reason))
	}
	for _, c := range all.By(func(g *scheduler.Group) bool { waits := g.State.Waits(); g.State = ""; return waits }) {
		w.mb.RecordSchedulerGpuPendingDataPoint(w.ts, c.Devices, w.cluster, w.kind, c.Queue, c.Team, c.Model, string(c.Reason))
	}
	for _, c := range all.By(func(g *scheduler.Group) bool { has := g.State.Has(); g.State = ""; return has }) {
		w.mb.RecordSchedulerGpuAllocatedDataPoint(w.ts, c.Devices, w.cluster, w.kind, c.Queue, c.Team, c.Model)
	}
	for _, c := range all.By(func(g *scheduler.Group) bool {
		gone := g.State == scheduler.Finished
		g.State, g.Reason = "", ""
		return !gone
	}) {
		w.mb.RecordSchedulerGpuRequestedDataPoint(w.ts, c.Devices, w.cluster, w.kind, c.Queue, c.Team, c.Model)
	}
}

// maxWaiting bounds the waiting jobs that have series of their own, and maxName the bytes of a name, which users choose.
const maxWaiting, maxName = 100, 100

// waiting records the waiting jobs one by one.
func (w *words) waiting(list []scheduler.Waiting) {
	now := w.ts.AsTime()
	for _, j := range scheduler.Longest(list, maxWaiting) {
		name := strings.ToValidUTF8(j.Name[:min(len(j.Name), maxName)], "")
		w.mb.RecordSchedulerWaitingGpuDataPoint(w.ts, j.Devices, w.cluster, w.kind, j.Queue, j.Team, j.Model, string(j.Reason), j.ID, name)
		if !j.Since.IsZero() {
			w.mb.RecordSchedulerWaitingTimeDataPoint(w.ts, max(0, now.Sub(j.Since).Seconds()), w.cluster, w.kind, j.Queue, j.Team, j.Model, string(j.Reason), j.ID, name)
		}
	}
}

// queues records what queues have and wait for, of a scheduler whose queues are known only from their jobs.
func (w *words) queues(all scheduler.Counts, limit int) {
	all = all.Fold(limit)
	for _, c := range all.By(func(g *scheduler.Group) bool { has := g.State.Has(); g.State = ""; return has }) {
		w.mb.RecordSchedulerQueueGpuUsedDataPoint(w.ts, float64(c.Devices), w.cluster, w.kind, c.Queue, c.Team, c.Model)
	}
	for _, c := range all.By(func(g *scheduler.Group) bool { waits := g.State.Waits(); g.State, g.Reason = "", ""; return waits }) {
		w.mb.RecordSchedulerQueueGpuPendingDataPoint(w.ts, float64(c.Devices), w.cluster, w.kind, c.Queue, c.Team, c.Model)
	}
}

// room records the GPUs of the cluster.
func (w *words) room(r scheduler.Room) {
	for model, pool := range r.Pools {
		for state, n := range pool.Devices {
			w.mb.RecordSchedulerGpuCountDataPoint(w.ts, n, w.cluster, w.kind, model, string(state))
		}
		for _, size := range scheduler.Sizes() {
			if v, ok := pool.Free.Fragmentation(size); ok {
				w.mb.RecordSchedulerGpuFragmentationDataPoint(w.ts, v, w.cluster, w.kind, model, size)
			}
			w.mb.RecordSchedulerGpuPlaceableDataPoint(w.ts, pool.Free.Placeable(size), w.cluster, w.kind, model, size)
		}
		for cause, n := range pool.Stranded {
			w.mb.RecordSchedulerGpuStrandedDataPoint(w.ts, n, w.cluster, w.kind, model, string(cause))
		}
	}
	if v, ok := r.Unusable.Get(); ok {
		w.mb.RecordSchedulerGpuUnusableRatioDataPoint(w.ts, v, w.cluster, w.kind)
	}
}

// histogram is a histogram by queue.
type histogram struct {
	name, text string
	queues     scheduler.Histograms
	label      []string          // that name the queue; several: of its words
	labels     map[string]string // of all queues
}

const phaseText = "Time that a job with GPUs spent in one phase until it ran, each job once per phase, by the number of GPUs that it asked for. As far as they are known, the phases of a job add up to the time from its creation to its first work."

// waits are the histograms that all schedulers report.
func (w *words) waits(t kube.Totals) []histogram {
	labels := map[string]string{"scheduler.cluster": w.cluster, "scheduler.type": w.kind}
	return []histogram{
		{"scheduler.job.wait.duration", "Time that jobs with GPUs had waited when they got them, each job once.", t.Scheduled, []string{"scheduler.queue"}, labels},
		{"scheduler.job.startup.duration", "Time from getting the GPUs until the first container of a job ran, each job once.", t.Started, []string{"scheduler.queue"}, labels},
		{"scheduler.job.phase.duration", phaseText, t.Phases, []string{"scheduler.job.phase", "scheduler.job.size"}, labels},
		{"scheduler.workload.admission.duration", "Time from the creation of a Workload of Kueue with GPUs until it was admitted the first time, each Workload once. It is the wait of Jobs whose pods are created only then.", t.Admitted, []string{"scheduler.queue"}, labels},
	}
}

// put adds histograms that are cumulative since began.
func put(to pmetric.MetricSlice, list []histogram, began time.Time, ts pcommon.Timestamp) {
	for _, h := range list {
		if len(h.queues) == 0 {
			continue
		}
		m := to.AppendEmpty()
		m.SetName(h.name)
		m.SetDescription(h.text)
		m.SetUnit("s")
		m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		for _, queue := range slices.Sorted(maps.Keys(h.queues)) {
			p := m.Histogram().DataPoints().AppendEmpty()
			p.SetStartTimestamp(pcommon.NewTimestampFromTime(began))
			p.SetTimestamp(ts)
			p.ExplicitBounds().FromRaw(scheduler.Bounds())
			p.BucketCounts().FromRaw(h.queues[queue].Counts)
			p.SetCount(h.queues[queue].Count)
			p.SetSum(h.queues[queue].Sum)
			for key, v := range h.labels {
				p.Attributes().PutStr(key, v)
			}
			for i, value := range strings.SplitN(queue, " ", len(h.label)) {
				p.Attributes().PutStr(h.label[i], value)
			}
		}
	}
}
