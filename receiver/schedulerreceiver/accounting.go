package schedulerreceiver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/scheduler/accounting"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// eventJobEnd is the event name of the record of a finished job.
const eventJobEnd = "slurm.job.end"

// longestPause is the maximum back-off while accounting fails.
const longestPause = 10 * time.Minute

// maxText bounds a text in a record, in bytes. The node list is the longest.
const maxText = 1 << 14

// accountant sends a record for each finished job.
type accountant struct {
	follower *accounting.Follower
	interval time.Duration
	set      receiver.Settings
	next     consumer.Logs
	now      func() time.Time
	counter  metric.Int64Counter

	failing bool
	said    map[string]bool  // messages logged since the last success
	saying  map[string]bool  // messages of this round
	counted accounting.Stats // already in the counter
}

// startAccounting starts to follow finished jobs. It fails only on invalid configuration: a missing
// Slurm is a normal state.
func startAccounting(_ context.Context, cfg *SlurmConfig, set receiver.Settings, next consumer.Logs) (stop func(context.Context) error, err error) {
	a, err := newAccountant(cfg, set, next)
	if err != nil {
		return nil, err
	}
	if cfg.Accounting.StateDir == "" {
		set.Logger.Warn("Accounting has no state_dir: jobs that end while the agent is down are not recorded")
	}
	// Start's own context ends when Start returns.
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { a.run(ctx) })
	return func(ctx context.Context) error {
		cancel()
		ended := make(chan struct{})
		go func() { done.Wait(); close(ended) }()
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

func newAccountant(cfg *SlurmConfig, set receiver.Settings, next consumer.Logs) (*accountant, error) {
	source, err := accounting.Open(accounting.Connection{
		Tools: cfg.Tools, Conf: cfg.Conf, Cluster: cfg.Cluster,
		REST: cfg.REST.Address, Token: cfg.REST.TokenFile, User: cfg.REST.User,
	})
	if err != nil {
		return nil, err
	}
	a := &accountant{interval: cfg.Accounting.Interval, set: set, next: next, now: time.Now, said: map[string]bool{}, saying: map[string]bool{}}
	conf := accounting.DefaultConfig()
	conf.Since = cfg.Accounting.Since
	conf.Timeout = max(conf.Timeout, cfg.Timeout)
	a.follower = &accounting.Follower{
		Config: conf, Source: source, Store: accounting.Store{Dir: cfg.Accounting.StateDir},
		Now: func() time.Time { return a.now() }, Deliver: a.deliver, Say: a.say,
	}
	if address := cfg.Accounting.Prometheus; address != "" {
		store, err := query.Open(query.Config{URL: address, Timeout: max(cfg.Timeout, 10*time.Second)})
		if err != nil {
			return nil, fmt.Errorf("accounting::prometheus: %w", err)
		}
		a.follower.Usage = accounting.NewMeter(store)
	}
	a.counter, err = set.MeterProvider.Meter(metadata.ScopeName).Int64Counter("gpumeter.slurm.accounting.records", metric.WithUnit("{record}"),
		metric.WithDescription("Rows of Slurm's accounting by outcome: delivered, refused (permanently, by a later component), no_usage (delivered without the usage of the job), unreadable (responses with skipped rows), forgotten (evicted from the state that prevents duplicates)."))
	return a, err
}

func (a *accountant) run(ctx context.Context) {
	pause := time.Duration(0)
	for {
		err := a.round(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			pause = a.interval
		} else { // back off
			pause = min(max(2*pause, a.interval), max(longestPause, a.interval))
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// round delivers new records once and logs changes.
func (a *accountant) round(ctx context.Context) error {
	clear(a.saying)
	err := a.follower.Round(ctx)
	a.count(ctx)
	if ctx.Err() != nil {
		return err
	}
	for what := range a.said {
		if !a.saying[what] {
			delete(a.said, what)
		}
	}
	if failing := err != nil; failing != a.failing {
		if a.failing = failing; failing {
			a.set.Logger.Warn("Cannot record finished jobs; will retry, no record is lost", zap.Error(err))
		} else {
			a.set.Logger.Info("Finished jobs are recorded again")
		}
	}
	return err
}

// say logs a problem once until it is over.
func (a *accountant) say(what string, err error) {
	a.saying[what] = true
	if !a.said[what] {
		a.said[what] = true
		a.set.Logger.Warn(what, zap.Error(err))
	}
}

func (a *accountant) count(ctx context.Context) {
	now, before := a.follower.Stats, a.counted
	a.counted = now
	for _, c := range []struct {
		outcome string
		n       int64
	}{
		{"delivered", now.Delivered - before.Delivered},
		{"refused", now.Refused - before.Refused},
		{"no_usage", now.NoUsage - before.NoUsage},
		{"unreadable", now.Unreadable - before.Unreadable},
		{"forgotten", now.Forgotten - before.Forgotten},
	} {
		if c.n > 0 {
			a.counter.Add(ctx, c.n, metric.WithAttributes(attribute.String("outcome", c.outcome)))
		}
	}
}

// deliver passes records on. A permanent error is not retried.
func (a *accountant) deliver(ctx context.Context, list []accounting.Record) error {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("service.name", "gpumeter")
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(metadata.ScopeName)
	sl.Scope().SetVersion(a.set.BuildInfo.Version)
	sl.LogRecords().EnsureCapacity(len(list))
	now := a.now()
	for i := range list {
		jobRecord(sl.LogRecords().AppendEmpty(), &list[i], now)
	}
	err := a.next.ConsumeLogs(ctx, ld)
	if consumererror.IsPermanent(err) {
		return fmt.Errorf("%w: %w", accounting.ErrRefused, err)
	}
	return err
}

// jobRecord fills in the record of a job. docs/accounting.md documents its attributes.
func jobRecord(rec plog.LogRecord, r *accounting.Record, now time.Time) {
	rec.SetEventName(eventJobEnd)
	rec.SetTimestamp(pcommon.NewTimestampFromTime(r.End))
	rec.SetObservedTimestamp(pcommon.NewTimestampFromTime(now))
	rec.SetSeverityNumber(plog.SeverityNumberInfo)
	rec.SetSeverityText("INFO")
	if r.Failed() {
		rec.SetSeverityNumber(plog.SeverityNumberWarn)
		rec.SetSeverityText("WARN")
	}
	state := strings.ToLower(r.State)
	rec.Body().SetStr(fmt.Sprintf("Job %s of %s ended as %s after %s with %d GPUs", r.UserID, r.User, state, r.Elapsed, r.GPUs))
	attrs := rec.Attributes()
	attrs.EnsureCapacity(40)
	attrs.PutStr("log.record.uid", r.UID())
	for _, a := range []struct{ key, value string }{
		{"slurm.cluster", r.Cluster},
		{"slurm.job.id", r.ID},
		{"slurm.job.display_id", r.UserID},
		{"slurm.array.job.id", r.ArrayJobID},
		{"slurm.array.task.id", r.ArrayTaskID},
		{"slurm.het.job.id", r.HetJobID},
		{"slurm.job.name", r.Name},
		{"slurm.user", r.User},
		{"slurm.account", r.Account},
		{"slurm.partition", r.Partition},
		{"slurm.qos", r.QOS},
		{"slurm.job.state", state},
		{"slurm.job.nodes", r.NodeList},
	} {
		if a.value != "" {
			attrs.PutStr(a.key, strings.ToValidUTF8(a.value[:min(len(a.value), maxText)], ""))
		}
	}
	if offset, err := strconv.ParseInt(r.HetOffset, 10, 32); err == nil {
		attrs.PutInt("slurm.het.offset", offset)
	}
	for _, t := range []struct {
		key string
		at  time.Time
	}{
		{"slurm.job.submit_time", r.Submit},
		{"slurm.job.eligible_time", r.Eligible},
		{"slurm.job.start_time", r.Start},
		{"slurm.job.end_time", r.End},
	} {
		if !t.at.IsZero() {
			attrs.PutInt(t.key, t.at.Unix())
		}
	}
	if r.ExitKnown {
		attrs.PutInt("slurm.job.exit_code", int64(r.Exit))
		attrs.PutInt("slurm.job.signal", int64(r.Signal))
	}
	if wait, ok := r.Wait(); ok {
		attrs.PutDouble("slurm.job.wait.duration", wait.Seconds())
	}
	attrs.PutDouble("slurm.job.run.duration", r.Elapsed.Seconds())
	attrs.PutDouble("slurm.job.suspended.duration", r.Suspended.Seconds())
	attrs.PutInt("slurm.job.node.count", r.Nodes)
	attrs.PutInt("slurm.job.cpu.count", r.CPUs)
	attrs.PutInt("slurm.job.gpu.count", r.GPUs)
	attrs.PutInt("slurm.job.gpu.requested", r.Requested)
	attrs.PutDouble("slurm.job.gpu.time", r.GPUTime().Seconds())
	if r.Shards > 0 {
		attrs.PutInt("slurm.job.shard.count", r.Shards)
	}
	if len(r.GPUTypes) > 0 {
		types := attrs.PutEmptySlice("slurm.job.gpu.types")
		for _, t := range r.GPUTypes {
			types.AppendEmpty().SetStr(t)
		}
	}
	usageAttributes(attrs, r)
}

// usageAttributes adds the usage of the job to its record. Unknown values are absent.
func usageAttributes(attrs pcommon.Map, r *accounting.Record) {
	u := &r.Usage
	if u.Status != "" {
		attrs.PutStr("slurm.job.usage.status", u.Status)
	}
	if u.Status != accounting.UsageOK {
		return
	}
	attrs.PutDouble("gpu.workload.allocated.time", u.Allocated)
	for _, m := range []struct {
		key   string
		value optional.Float
	}{
		{"gpu.workload.active.time", u.Active},
		{"gpu.workload.idle.time", u.Idle},
		{"gpu.workload.energy", u.Energy},
		{"gpu.workload.efficiency", u.Efficiency()},
	} {
		if v, ok := m.value.Get(); ok {
			attrs.PutDouble(m.key, v)
		}
	}
	if v, ok := u.Peak.Get(); ok {
		attrs.PutInt("gpu.workload.memory.peak", int64(v))
	}
	if charged := r.GPUTime().Seconds(); charged > 0 {
		attrs.PutDouble("slurm.job.usage.coverage", u.Allocated/charged)
	}
	if u.Unseen > 0 {
		attrs.PutDouble("slurm.job.usage.unseen", u.Unseen)
	}
}
