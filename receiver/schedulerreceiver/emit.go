package schedulerreceiver

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/scheduler/slurmctl"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// emitter converts rounds to metrics.
type emitter struct {
	cfg       *Config
	version   string
	mb        *metadata.MetricsBuilder
	durations *slurmctl.Durations
	began     time.Time // start of this receiver
	epochs    epochs

	ts      pcommon.Timestamp // time of the round
	cluster string
	// shown remembers gauges only. The subjects of sums do not disappear.
	shown series.Memory
}

func newEmitter(cfg *Config, set receiver.Settings) *emitter {
	return &emitter{
		cfg: cfg, version: set.BuildInfo.Version, mb: metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set),
		durations: slurmctl.NewDurations(), began: time.Now(),
		shown: series.Memory{Only: func(m pmetric.Metric) bool { return !series.Cumulative(m) }},
	}
}

// emit returns the metrics of a round. A failed round has only its failure.
func (e *emitter) emit(s slurmctl.Snapshot) pmetric.Metrics {
	e.ts, e.cluster = pcommon.NewTimestampFromTime(s.Time), s.Cluster
	up := int64(0)
	if s.Up {
		up = 1
	}
	e.mb.RecordSlurmUpDataPoint(e.ts, up, e.cluster)
	w := e.words()
	w.up(s.Up)
	for _, what := range slices.Sorted(maps.Keys(s.Requests)) {
		e.mb.RecordSlurmRequestsDataPoint(e.ts, s.Requests[what], e.cluster, what)
	}
	asked := maps.Clone(s.Requests)
	maps.Copy(asked, s.Errors) // without Slurm's programs no request is made
	for _, what := range slices.Sorted(maps.Keys(asked)) {
		e.mb.RecordSlurmRefreshErrorsDataPoint(e.ts, s.Errors[what], e.cluster, what)
	}
	if s.Jobs != nil {
		e.jobs(slurmctl.CountJobs(s.Jobs, e.cfg.Slurm.MaxSeries), slurmctl.CountQueue(s.Jobs))
		e.durations.Observe(s.Time, s.Jobs, 2*e.cfg.Slurm.Interval)
		w.jobs(slurmctl.Counts(s.Jobs), e.cfg.Slurm.MaxSeries)
		w.waiting(slurmctl.Waiting(s.Jobs))
		w.queues(slurmctl.Counts(s.Jobs), e.cfg.Slurm.MaxSeries)
	}
	if s.Nodes != nil {
		all, parts := slurmctl.CountNodes(s.Nodes, slurmctl.Down(s.Partitions))
		e.nodes(all, parts)
		e.free(parts)
		w.room(slurmctl.Room(s.Nodes))
	}
	if n := s.Native; n != nil {
		e.jobs(n.Jobs, slurmctl.Queue{Loads: n.Loads})
		e.nodes(n.All, n.Parts)
	}
	if s.Diag != nil {
		e.epochs.observe(s.Diag)
		e.diag(s.Diag)
		e.rpcs(s.Diag)
	}
	e.shares(s.Shares)
	rb := metadata.NewResourceBuilder(e.cfg.ResourceAttributes)
	rb.SetServiceName("gpumeter")
	md := e.mb.Emit(metadata.WithResource(rb.Emit()))
	e.finish(md)
	e.shown.End(md, e.ts) // slurm.up is always present
	return md
}

// words returns what records the names that all schedulers share.
func (e *emitter) words() *words { return &words{e.mb, e.ts, e.cluster, slurmKind} }

func (e *emitter) jobs(counts []slurmctl.JobCount, q slurmctl.Queue) {
	for _, c := range counts {
		e.mb.RecordSlurmJobCountDataPoint(e.ts, c.Jobs, e.cluster, c.Account, c.State, c.Partition, c.User)
		if c.Held {
			e.mb.RecordSlurmJobGpuCountDataPoint(e.ts, c.GPUs, e.cluster, c.Account, c.State, c.Partition, c.User)
		}
	}
	for _, l := range q.Loads {
		e.mb.RecordSlurmJobCPUCountDataPoint(e.ts, l.CPUs, e.cluster, l.State, l.Partition)
		if l.Nodes > 0 { // absent from the controller's own metrics
			e.mb.RecordSlurmJobNodeCountDataPoint(e.ts, l.Nodes, e.cluster, l.State, l.Partition)
		}
	}
	for _, w := range q.Waits {
		e.mb.RecordSlurmJobPendingCountDataPoint(e.ts, w.Jobs, e.cluster, w.Reason, w.Partition)
		e.mb.RecordSlurmJobPendingGpuCountDataPoint(e.ts, w.GPUs, e.cluster, w.Reason, w.Partition)
	}
	for part, v := range q.Spread {
		e.mb.RecordSlurmJobMultiNodeRatioDataPoint(e.ts, v, e.cluster, part)
	}
}

func (e *emitter) nodes(all *slurmctl.Pool, parts map[string]*slurmctl.Pool) {
	for state, n := range all.Nodes {
		e.mb.RecordSlurmNodeCountDataPoint(e.ts, n, e.cluster, state)
	}
	for state, n := range all.CPUs {
		e.mb.RecordSlurmCPUCountDataPoint(e.ts, n, e.cluster, state)
	}
	for key, n := range all.GPUs {
		e.mb.RecordSlurmGpuCountDataPoint(e.ts, n, e.cluster, key.Type, key.State)
	}
	for part, p := range parts {
		for state, n := range p.Nodes {
			e.mb.RecordSlurmPartitionNodeCountDataPoint(e.ts, n, e.cluster, state, part)
		}
		for state, n := range p.CPUs {
			e.mb.RecordSlurmPartitionCPUCountDataPoint(e.ts, n, e.cluster, part, state)
		}
		for key, n := range p.GPUs {
			e.mb.RecordSlurmPartitionGpuCountDataPoint(e.ts, n, e.cluster, key.Type, part, key.State)
		}
	}
}

// free records how many jobs would fit. A partition without GPUs has no points.
func (e *emitter) free(parts map[string]*slurmctl.Pool) {
	for part, p := range parts {
		if len(p.GPUs) == 0 {
			continue
		}
		for _, size := range slurmctl.Sizes {
			if v, ok := p.Free.Fragmentation(size); ok {
				e.mb.RecordSlurmPartitionGpuFragmentationDataPoint(e.ts, v, e.cluster, size, part)
			}
			e.mb.RecordSlurmPartitionGpuPlaceableDataPoint(e.ts, p.Free.Placeable(size), e.cluster, size, part)
		}
		e.mb.RecordSlurmPartitionGpuStrandedDataPoint(e.ts, p.Stranded, e.cluster, part)
	}
}

func (e *emitter) diag(d *slurmctl.Diag) {
	mb := e.mb
	count := func(name string, record func(pcommon.Timestamp, int64, string)) {
		if v, ok := d.Value(name).Get(); ok {
			record(e.ts, int64(v), e.cluster)
		}
	}
	seconds := func(v optional.Float, record func(pcommon.Timestamp, float64, string)) {
		if v, ok := v.Get(); ok {
			record(e.ts, v, e.cluster)
		}
	}
	count("server_thread_count", mb.RecordSlurmControllerThreadCountDataPoint)
	count("agent_count", mb.RecordSlurmControllerAgentCountDataPoint)
	count("agent_queue_size", mb.RecordSlurmControllerAgentQueueSizeDataPoint)
	count("agent_thread_count", mb.RecordSlurmControllerAgentThreadCountDataPoint)
	count("dbd_agent_queue_size", mb.RecordSlurmDbdQueueSizeDataPoint)
	count("schedule_cycle_total", mb.RecordSlurmSchedulerCycleCountDataPoint)
	seconds(e.epochs.rising("scheduler", d.CycleTime("schedule_cycle_sum", "schedule_cycle_mean", "schedule_cycle_total")), mb.RecordSlurmSchedulerCycleTimeDataPoint)
	seconds(d.Seconds("schedule_cycle_last"), mb.RecordSlurmSchedulerCycleLastDataPoint)
	seconds(d.Seconds("schedule_cycle_max"), mb.RecordSlurmSchedulerCycleMaxDataPoint)
	count("schedule_queue_length", mb.RecordSlurmSchedulerQueueLengthDataPoint)
	count("bf_cycle_counter", mb.RecordSlurmBackfillCycleCountDataPoint)
	seconds(e.epochs.rising("backfill", d.CycleTime("bf_cycle_sum", "bf_cycle_mean", "bf_cycle_counter")), mb.RecordSlurmBackfillCycleTimeDataPoint)
	seconds(d.Seconds("bf_cycle_last"), mb.RecordSlurmBackfillCycleLastDataPoint)
	seconds(d.Seconds("bf_cycle_max"), mb.RecordSlurmBackfillCycleMaxDataPoint)
	count("bf_queue_len", mb.RecordSlurmBackfillQueueLengthDataPoint)
	count("bf_last_depth", mb.RecordSlurmBackfillDepthDataPoint)
	count("bf_last_backfilled_jobs", mb.RecordSlurmBackfillJobCountDataPoint)
	count("jobs_submitted", mb.RecordSlurmJobSubmittedDataPoint)
	count("jobs_started", mb.RecordSlurmJobStartedDataPoint)
	count("jobs_completed", mb.RecordSlurmJobCompletedDataPoint)
	count("jobs_canceled", mb.RecordSlurmJobCanceledDataPoint)
	count("jobs_failed", mb.RecordSlurmJobFailedDataPoint)
}

// maxUsers bounds the users whose requests are reported.
const maxUsers = 100

func (e *emitter) rpcs(d *slurmctl.Diag) {
	for _, r := range d.RPCs {
		e.mb.RecordSlurmRPCCountDataPoint(e.ts, r.Count, e.cluster, r.Name)
		e.mb.RecordSlurmRPCTimeDataPoint(e.ts, r.Time.Seconds(), e.cluster, r.Name)
	}
	users := slices.SortedFunc(slices.Values(d.Users), func(a, b slurmctl.RPC) int { return cmp.Compare(b.Count, a.Count) })
	for _, r := range users[:min(len(users), maxUsers)] {
		e.mb.RecordSlurmRPCUserCountDataPoint(e.ts, r.Count, e.cluster, r.Name)
		e.mb.RecordSlurmRPCUserTimeDataPoint(e.ts, r.Time.Seconds(), e.cluster, r.Name)
	}
}

// shares records fair shares, at most MaxSeries of accounts and as many of users.
func (e *emitter) shares(list []slurmctl.Share) {
	accounts, users := 0, 0
	for _, s := range list {
		if s.User == "" {
			if accounts++; accounts <= e.cfg.Slurm.MaxSeries {
				e.share(s.Factor, s.Account, e.mb.RecordSlurmFairshareFactorDataPoint)
				e.share(s.Usage, s.Account, e.mb.RecordSlurmFairshareUsageRatioDataPoint)
				e.share(s.Norm, s.Account, e.mb.RecordSlurmFairshareSharesRatioDataPoint)
				e.share(s.Load(), s.Account, func(ts pcommon.Timestamp, v float64, cluster, account string) {
					e.mb.RecordSchedulerQueueFairShareDataPoint(ts, v, cluster, slurmKind, "", account)
				})
			}
			continue
		}
		if users++; users > e.cfg.Slurm.MaxSeries {
			continue
		}
		of := func(record func(pcommon.Timestamp, float64, string, string, string)) func(pcommon.Timestamp, float64, string, string) {
			return func(ts pcommon.Timestamp, v float64, cluster, account string) {
				record(ts, v, cluster, account, s.User)
			}
		}
		e.share(s.Factor, s.Account, of(e.mb.RecordSlurmFairshareUserFactorDataPoint))
		e.share(s.Usage, s.Account, of(e.mb.RecordSlurmFairshareUserUsageRatioDataPoint))
		e.share(s.Norm, s.Account, of(e.mb.RecordSlurmFairshareUserSharesRatioDataPoint))
	}
}

func (e *emitter) share(v optional.Float, account string, record func(pcommon.Timestamp, float64, string, string)) {
	if f, ok := v.Get(); ok {
		record(e.ts, f, e.cluster, account)
	}
}

// wantsShares reports whether any enabled metric needs fair shares.
func wantsShares(cfg *Config) bool {
	m := &cfg.Metrics
	return m.SlurmFairshareFactor.Enabled || m.SlurmFairshareUsageRatio.Enabled || m.SlurmFairshareSharesRatio.Enabled ||
		m.SlurmFairshareUserFactor.Enabled || m.SlurmFairshareUserUsageRatio.Enabled || m.SlurmFairshareUserSharesRatio.Enabled ||
		m.SchedulerQueueFairShare.Enabled ||
		slices.Contains(cfg.Slurm.Records, "sshare")
}
