package schedulerreceiver

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/scheduler/queueing"
	"github.com/gpumeter/gpumeter/internal/scheduler/queueing/pages"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// queues reports what queueing systems say on their pages. They are read apart from everything else, so that a page that
// hangs delays only other pages.
type queues struct {
	set     receiver.Settings
	next    consumer.Metrics
	cfg     *Config
	cluster string
	reader  *pages.Reader
	mb      *metadata.MetricsBuilder
	// shown remembers gauges only. The subjects of sums do not disappear.
	shown series.Memory
	// due has whether this process is the one that reads, and ends with it.
	due chan bool

	// What was logged last.
	trouble  string
	refusing bool // series were refused
	refused  bool // the pipeline refused the last batch
}

// newQueues returns a reader of pages. api is nil without a cluster.
func newQueues(cfg *Config, cluster string, set receiver.Settings, next consumer.Metrics, api pages.API) *queues {
	q := &cfg.Queueing
	conf := pages.Config{Targets: q.targets(), Vendors: local.Vendors(), Timeout: q.Timeout}
	if q.Discover {
		conf.API = api
		conf.Trust = pages.Trust{CAFile: q.CAFile, TokenFile: q.TokenFile, Insecure: q.InsecureSkipVerify}
	}
	return &queues{
		set: set, next: next, cfg: cfg, cluster: cluster, reader: pages.NewReader(conf, time.Now()),
		mb:    metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set),
		shown: series.Memory{Only: func(m pmetric.Metric) bool { return !series.Cumulative(m) }},
		due:   make(chan bool, 1),
	}
}

// run reads the pages whenever it is due, until ctx is done.
func (q *queues) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case reads := <-q.due:
			var round pages.Round
			if reads {
				round = q.reader.Read(ctx, time.Now())
			}
			if ctx.Err() != nil { // shutting down: an aborted request says nothing
				return
			}
			q.say(round)
			q.send(ctx, q.emit(round, time.Now()))
		}
	}
}

// remind lets run read, unless it still does.
func (q *queues) remind(reads bool) {
	select {
	case q.due <- reads:
	default:
	}
}

func (q *queues) send(ctx context.Context, md pmetric.Metrics) {
	if md.DataPointCount() == 0 {
		return
	}
	err := q.next.ConsumeMetrics(ctx, md)
	if refused := err != nil; refused != q.refused && ctx.Err() == nil {
		if q.refused = refused; refused {
			q.set.Logger.Error("The pipeline refuses metrics of queueing systems", zap.Error(err))
		} else {
			q.set.Logger.Info("The pipeline accepts metrics of queueing systems again")
		}
	}
}

// say logs what has changed.
func (q *queues) say(round pages.Round) {
	if text := errText(round.Err); text != q.trouble {
		if q.trouble = text; text == "" {
			q.set.Logger.Info("All pages of queueing systems are read again")
		} else {
			q.set.Logger.Warn("Some pages of queueing systems cannot be read", zap.String("reason", text))
		}
	}
	if refusing := round.Refused > 0; refusing != q.refusing {
		if q.refusing = refusing; refusing {
			q.set.Logger.Warn("Left out series of queueing systems that make no sense or are beyond a limit", zap.Int("left_out", round.Refused))
		}
	}
}

// emit returns the metrics of a round, which are none if it was the turn of another process.
func (q *queues) emit(round pages.Round, now time.Time) pmetric.Metrics {
	ts := pcommon.NewTimestampFromTime(now)
	began := map[string][]time.Time{} // of the points of sums, in their order
	for _, s := range round.Systems {
		w := &words{q.mb, ts, q.cluster, s.Kind}
		w.up(s.Up)
		if s.Report == nil {
			continue
		}
		for _, v := range s.Report.Values {
			w.queue(v)
		}
		for _, sum := range s.Report.Sums {
			name := w.sum(sum)
			began[name] = append(began[name], sum.Since)
		}
	}
	rb := metadata.NewResourceBuilder(q.cfg.ResourceAttributes)
	rb.SetServiceName("gpumeter")
	md := q.mb.Emit(metadata.WithResource(rb.Emit()))
	for m := range series.Metrics(md) {
		i := 0
		for p := range series.Points(m) {
			since := time.Time{}
			if i < len(began[m.Name()]) {
				since = began[m.Name()][i]
			}
			series.Start(m, p, since)
			i++
		}
	}
	h := histograms{to: scope(md, rb), at: map[queueing.Name]pmetric.Histogram{}}
	for _, s := range round.Systems {
		if s.Report != nil {
			h.add(s.Report.Durations, q.cluster, s.Kind, ts)
		}
	}
	q.shown.End(md, ts)
	return md
}

// queuesScope is the scope of what pages say. Who keeps the last batch of each scope, as the metrics page does, would else keep
// either this or what the watch of the cluster says.
var queuesScope = metadata.ScopeName + "/queueing"

// scope returns the metrics of a batch, which may have none so far: the last series may have to end.
func scope(md pmetric.Metrics, rb *metadata.ResourceBuilder) pmetric.MetricSlice {
	if md.ResourceMetrics().Len() == 0 {
		rb.SetServiceName("gpumeter")
		rm := md.ResourceMetrics().AppendEmpty()
		rb.Emit().MoveTo(rm.Resource())
		rm.ScopeMetrics().AppendEmpty()
	}
	sm := md.ResourceMetrics().At(0).ScopeMetrics().At(0)
	sm.Scope().SetName(queuesScope)
	return sm.Metrics()
}

// queue records what a queueing system says of a queue.
func (w *words) queue(v queueing.Value) {
	const team = "" // no system knows it
	switch v.Name {
	case queueing.Limit:
		w.mb.RecordSchedulerQueueGpuLimitDataPoint(w.ts, v.N, w.cluster, w.kind, v.Queue, team, v.Model)
	case queueing.Nominal:
		w.mb.RecordSchedulerQueueGpuNominalDataPoint(w.ts, v.N, w.cluster, w.kind, v.Queue, team, v.Model)
	case queueing.Used:
		w.mb.RecordSchedulerQueueGpuUsedDataPoint(w.ts, v.N, w.cluster, w.kind, v.Queue, team, v.Model)
	case queueing.Borrowed:
		w.mb.RecordSchedulerQueueGpuBorrowedDataPoint(w.ts, v.N, w.cluster, w.kind, v.Queue, team, v.Model)
	case queueing.Pending:
		w.mb.RecordSchedulerQueueGpuPendingDataPoint(w.ts, v.N, w.cluster, w.kind, v.Queue, team, v.Model)
	case queueing.Capacity:
		w.mb.RecordSchedulerQueueGpuCapacityDataPoint(w.ts, v.N, w.cluster, w.kind, v.Model)
	case queueing.FairShare:
		w.mb.RecordSchedulerQueueFairShareDataPoint(w.ts, v.N, w.cluster, w.kind, v.Queue, team)
	case queueing.Jobs:
		w.mb.RecordSchedulerQueueJobCountDataPoint(w.ts, int64(v.N), w.cluster, w.kind, v.Queue, team, v.Word)
	}
}

// sum records what grows, and returns its name.
func (w *words) sum(s queueing.Sum) string {
	const team = ""
	if s.Name == queueing.Evicted {
		w.mb.RecordSchedulerQueueEvictedDataPoint(w.ts, int64(s.N), w.cluster, w.kind, s.Queue, team, s.Word, s.Instance)
		return metadata.MetricsInfo.SchedulerQueueEvicted.Name
	}
	w.mb.RecordSchedulerQueueAttemptsDataPoint(w.ts, int64(s.N), w.cluster, w.kind, s.Word, s.Instance)
	return metadata.MetricsInfo.SchedulerQueueAttempts.Name
}

// waited describes the histograms of queueing systems, which have the bounds of each system.
var waited = map[queueing.Name]struct{ name, text string }{
	queueing.Wait:    {"scheduler.queue.wait.duration", "Time that jobs had waited in a queue when they were placed, as their scheduler counts them; also jobs without GPUs."},
	queueing.Attempt: {"scheduler.queue.attempt.duration", "Time that a scheduler spent on an attempt to place jobs, or on a cycle."},
}

// histograms are those of queueing systems in a batch.
type histograms struct {
	to pmetric.MetricSlice
	at map[queueing.Name]pmetric.Histogram
}

// add adds those of one system.
func (h *histograms) add(list []queueing.Durations, cluster, kind string, ts pcommon.Timestamp) {
	for _, d := range list {
		if _, ok := h.at[d.Name]; !ok {
			m := h.to.AppendEmpty()
			m.SetName(waited[d.Name].name)
			m.SetDescription(waited[d.Name].text)
			m.SetUnit("s")
			h.at[d.Name] = m.SetEmptyHistogram()
			h.at[d.Name].SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		}
		p := h.at[d.Name].DataPoints().AppendEmpty()
		p.SetTimestamp(ts)
		if !d.Since.IsZero() {
			p.SetStartTimestamp(pcommon.NewTimestampFromTime(d.Since))
		}
		p.ExplicitBounds().FromRaw(d.Bounds)
		p.BucketCounts().FromRaw(d.Counts)
		p.SetCount(d.Count)
		p.SetSum(d.Sum)
		p.Attributes().PutStr("scheduler.cluster", cluster)
		p.Attributes().PutStr("scheduler.type", kind)
		p.Attributes().PutStr("scheduler.queue", d.Queue)
		p.Attributes().PutStr("scheduler.instance", d.Instance)
	}
}

// queueingReceiver reports only what queueing systems say.
type queueingReceiver struct {
	*queues
	interval time.Duration
	cancel   context.CancelFunc
	done     sync.WaitGroup
}

func newQueueing(cfg *Config, set receiver.Settings, next consumer.Metrics) *queueingReceiver {
	return &queueingReceiver{queues: newQueues(cfg, cfg.Queueing.Cluster, set, next, nil), interval: cfg.Queueing.Interval}
}

// Start implements component.Component.
func (r *queueingReceiver) Start(context.Context, component.Host) error {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.done.Go(func() { r.run(ctx) })
	r.done.Go(func() {
		clock := time.NewTicker(r.interval)
		defer clock.Stop()
		for {
			r.remind(true)
			select {
			case <-ctx.Done():
				return
			case <-clock.C:
			}
		}
	})
	return nil
}

// Shutdown implements component.Component.
func (r *queueingReceiver) Shutdown(context.Context) error {
	if r.cancel != nil {
		r.cancel()
		r.done.Wait()
	}
	return nil
}

// noLogs is the receiver in a logs pipeline: pages have no records.
type noLogs struct{}

// Start implements component.Component.
func (noLogs) Start(context.Context, component.Host) error { return nil }

// Shutdown implements component.Component.
func (noLogs) Shutdown(context.Context) error { return nil }
