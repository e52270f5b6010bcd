package schedulerreceiver

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/programtest"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
	"github.com/gpumeter/gpumeter/internal/scheduler/accounting"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// fakeSacct returns a folder with a sacct that replays captured output.
func fakeSacct(t *testing.T) string {
	t.Helper()
	answer, err := filepath.Abs("../../internal/scheduler/accounting/testdata/22.05/sacct.txt")
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`#!/bin/sh
for a in "$@"; do case $a in --delimiter=*) d=${a#--delimiter=};; esac; done
[ "$SLURM_TIME_FORMAT" = %%s ] || exit 3
exec /bin/sed "s,|~|,$d,g" %s
`, answer)
	dir := t.TempDir()
	programtest.Write(t, filepath.Join(dir, "sacct"), script)
	return dir
}

// recorded is a time shortly after the jobs in testdata.
var recorded = time.Unix(1794734900, 0)

func accountantFor(t *testing.T, cfg *SlurmConfig, next consumer.Logs) (*accountant, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	set := receivertest.NewNopSettings(metadata.Type)
	set.Logger = zap.New(core)
	set.BuildInfo.Version = "1.2.3"
	a, err := newAccountant(cfg, set, next)
	if err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return recorded }
	a.follower.Pause = 0
	return a, logs
}

func accountingConfig(t *testing.T) *SlurmConfig {
	cfg := createDefaultConfig().(*Config).Slurm
	cfg.Tools = fakeSacct(t)
	cfg.Accounting = AccountingConfig{Enabled: true, Interval: time.Minute, Since: 12 * time.Hour, StateDir: t.TempDir()}
	return &cfg
}

func recordsOf(list []plog.Logs) map[string]plog.LogRecord {
	out := map[string]plog.LogRecord{}
	for _, ld := range list {
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, rec := range sl.LogRecords().All() {
					id, _ := rec.Attributes().Get("slurm.job.display_id")
					state, _ := rec.Attributes().Get("slurm.job.state")
					out[id.Str()+" "+state.Str()] = rec
				}
			}
		}
	}
	return out
}

// Catches a wrong attribute or type in the record of a job: a number as text cannot be added up.
func TestJobRecord(t *testing.T) {
	sink := &consumertest.LogsSink{}
	a, logs := accountantFor(t, accountingConfig(t), sink)
	if err := a.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := recordsOf(sink.AllLogs())
	if len(got) != 27 || sink.LogRecordCount() != 27 {
		t.Errorf("%d records of %d jobs", sink.LogRecordCount(), len(got))
	}
	rec := got["6_2 completed"]
	want := map[string]any{
		"log.record.uid": "", "slurm.cluster": "e2e", "slurm.job.id": "22", "slurm.job.display_id": "6_2",
		"slurm.array.job.id": "6", "slurm.array.task.id": "2", "slurm.job.name": "sweep", "slurm.user": "gpu_bob", "slurm.account": "bio",
		"slurm.partition": "gpu", "slurm.qos": "normal", "slurm.job.state": "completed", "slurm.job.nodes": "gn2",
		"slurm.job.submit_time": int64(1794734232), "slurm.job.eligible_time": int64(1794734238), "slurm.job.start_time": int64(1794734238), "slurm.job.end_time": int64(1794734241),
		"slurm.job.exit_code": int64(0), "slurm.job.signal": int64(0), "slurm.job.wait.duration": 0.0, "slurm.job.run.duration": 3.0, "slurm.job.suspended.duration": 0.0,
		"slurm.job.node.count": int64(1), "slurm.job.cpu.count": int64(1), "slurm.job.gpu.count": int64(1), "slurm.job.gpu.requested": int64(1), "slurm.job.gpu.time": 3.0,
		"slurm.job.gpu.types": []any{"h100"},
	}
	attrs := rec.Attributes().AsRaw()
	want["log.record.uid"] = attrs["log.record.uid"]
	if diff := cmp.Diff(want, attrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if rec.EventName() != "slurm.job.end" || rec.Timestamp().AsTime().Unix() != 1794734241 || !rec.ObservedTimestamp().AsTime().Equal(recorded) || rec.SeverityText() != "INFO" {
		t.Errorf("%s at %s, observed at %s, %s", rec.EventName(), rec.Timestamp(), rec.ObservedTimestamp(), rec.SeverityText())
	}
	if body := rec.Body().Str(); body != "Job 6_2 of gpu_bob ended as completed after 3s with 1 GPUs" {
		t.Error(body)
	}
	for id, severity := range map[string]plog.SeverityNumber{
		"2 failed": plog.SeverityNumberWarn, "3 timeout": plog.SeverityNumberWarn, "4 cancelled": plog.SeverityNumberWarn, "25 node_fail": plog.SeverityNumberWarn,
		"14 requeued": plog.SeverityNumberInfo, "1 completed": plog.SeverityNumberInfo, "24 resizing": plog.SeverityNumberInfo,
	} {
		if rec, ok := got[id]; !ok || rec.SeverityNumber() != severity {
			t.Errorf("%s: %v", id, ok)
		}
	}
	if offset, ok := got["15+1 completed"].Attributes().Get("slurm.het.offset"); !ok || offset.Int() != 1 {
		t.Error("the component of a heterogeneous job has no offset")
	}
	scope := sink.AllLogs()[0].ResourceLogs().At(0).ScopeLogs().At(0).Scope()
	if scope.Name() != metadata.ScopeName || scope.Version() != "1.2.3" {
		t.Errorf("scope %s %s", scope.Name(), scope.Version())
	}
	if diff := cmp.Diff(map[string]any{"service.name": "gpumeter"}, sink.AllLogs()[0].ResourceLogs().At(0).Resource().Attributes().AsRaw()); diff != "" {
		t.Error(diff)
	}
	if logs.Len() != 0 {
		t.Errorf("logged %v", logs.All())
	}
	// Another process continues where this one stopped.
	sink.Reset()
	cfg := accountingConfig(t)
	cfg.Accounting.StateDir = a.follower.Store.Dir
	b, _ := accountantFor(t, cfg, sink)
	if err := b.round(t.Context()); err != nil || sink.LogRecordCount() != 0 {
		t.Errorf("%v, %d records again", err, sink.LogRecordCount())
	}
}

// Catches records lost because the pipeline is full, and permanently rejected records that are retried
// forever.
func TestAccountingRefused(t *testing.T) {
	sink := &consumertest.LogsSink{}
	fail := errors.New("queue is full")
	next, err := consumer.NewLogs(func(ctx context.Context, ld plog.Logs) error {
		if fail != nil {
			return fail
		}
		return sink.ConsumeLogs(ctx, ld)
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := accountingConfig(t)
	a, logs := accountantFor(t, cfg, next)
	for range 3 {
		if err := a.round(t.Context()); !errors.Is(err, fail) {
			t.Fatal(err)
		}
	}
	if logs.Len() != 1 {
		t.Errorf("logged %d times", logs.Len())
	}
	fail = nil
	if err := a.round(t.Context()); err != nil || sink.LogRecordCount() != 27 {
		t.Errorf("%v, %d records", err, sink.LogRecordCount())
	}
	sink.Reset()
	fail = consumererror.NewPermanent(errors.New("no"))
	cfg.Accounting.StateDir = t.TempDir()
	a, _ = accountantFor(t, cfg, next)
	if err := a.round(t.Context()); err != nil || a.follower.Stats.Refused != 27 {
		t.Errorf("%v, %+v", err, a.follower.Stats)
	}
	fail = nil
	if err := a.round(t.Context()); err != nil || sink.LogRecordCount() != 0 {
		t.Errorf("%v, %d records", err, sink.LogRecordCount())
	}
}

// Catches usage that is missing from the record, or unknown usage that is not absent and logged.
func TestAccountingUsage(t *testing.T) {
	store := querytest.NewMemory()
	for series, points := range map[string]map[int64]float64{
		fleet.SeriesAllocatedTime:  {1794734241: 6, 1794734271: 14},
		fleet.SeriesActiveTime:     {1794734271: 7},
		fleet.SeriesEnergy:         {1794734271: 1400},
		fleet.SeriesWorkloadMemory: {1794734240: 5e9},
	} {
		for at, v := range points {
			store.Add(query.Labels{fleet.LabelName: series, "slurm_job_id": "1", "slurm_cluster": "e2e", "gpu_uuid": "G"}, time.Unix(at, 0), v)
		}
	}
	api := httptest.NewServer(hub.NewHandler(store, nil, hub.HandlerOptions{}))
	defer api.Close()
	cfg := accountingConfig(t)
	cfg.Accounting.Prometheus = api.URL
	sink := &consumertest.LogsSink{}
	a, _ := accountantFor(t, cfg, sink)
	if err := a.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := recordsOf(sink.AllLogs())
	usage := func(id string) map[string]any {
		out := map[string]any{}
		for key, v := range got[id].Attributes().AsRaw() {
			if strings.HasPrefix(key, "gpu.") || strings.HasPrefix(key, "slurm.job.usage") {
				out[key] = v
			}
		}
		return out
	}
	want := map[string]any{
		"slurm.job.usage.status": "ok", "slurm.job.usage.coverage": 14.0 / 16, "gpu.workload.allocated.time": 14.0, "gpu.workload.active.time": 7.0,
		"gpu.workload.idle.time": 7.0, "gpu.workload.energy": 1400.0, "gpu.workload.efficiency": 0.5, "gpu.workload.memory.peak": int64(5e9),
	}
	if diff := cmp.Diff(want, usage("1 completed")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{"slurm.job.usage.status": "missing"}, usage("2 failed")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{}, usage("9 completed")); diff != "" {
		t.Errorf("a job without GPUs (-want +got):\n%s", diff)
	}
}

// Catches a missing Slurm that is fatal, logged more than once, or delays the shutdown.
func TestAccountingWithoutSlurm(t *testing.T) {
	cfg := accountingConfig(t)
	cfg.Tools = t.TempDir()
	a, logs := accountantFor(t, cfg, consumertest.NewNop())
	for range 3 {
		if err := a.round(t.Context()); err == nil || !strings.Contains(err.Error(), "no sacct") {
			t.Fatal(err)
		}
	}
	if logs.Len() != 1 {
		t.Errorf("logged %v", logs.All())
	}
	stop, err := startAccounting(t.Context(), cfg, receivertest.NewNopSettings(metadata.Type), consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg.Accounting.Prometheus = "prometheus:9090"
	if _, err := startAccounting(t.Context(), cfg, receivertest.NewNopSettings(metadata.Type), consumertest.NewNop()); err == nil {
		t.Error("an invalid address is accepted")
	}
}

// Catches outcomes of rows that are not counted.
func TestAccountingCounts(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer tel.Shutdown(context.Background())
	set := receiver.Settings{TelemetrySettings: tel.NewTelemetrySettings()}
	var once sync.Once
	next, _ := consumer.NewLogs(func(context.Context, plog.Logs) (err error) {
		once.Do(func() { err = consumererror.NewPermanent(errors.New("no")) })
		return err
	})
	a, err := newAccountant(accountingConfig(t), set, next)
	if err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return recorded }
	a.follower.Batch, a.follower.Pause = 20, 0
	if err := a.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := tel.GetMetric("gpumeter.slurm.accounting.records")
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(m.Data); !strings.Contains(text, "refused") || !strings.Contains(text, "delivered") {
		t.Error(text)
	}
	if got, want := a.follower.Stats, (accounting.Stats{Delivered: 7, Refused: 20}); got != want {
		t.Errorf("%+v", got)
	}
}
