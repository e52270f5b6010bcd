package schedulerreceiver

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/programtest"
	"github.com/gpumeter/gpumeter/internal/scheduler/slurmctl"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// points returns the value of every point by name and attributes.
func points(md pmetric.Metrics) map[string]float64 {
	out := map[string]float64{}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				switch m.Type() {
				case pmetric.MetricTypeGauge:
					numbers(out, m.Name(), m.Gauge().DataPoints())
				case pmetric.MetricTypeSum:
					numbers(out, m.Name(), m.Sum().DataPoints())
				case pmetric.MetricTypeHistogram:
					for _, p := range m.Histogram().DataPoints().All() {
						out[m.Name()+labels(p.Attributes())] = float64(p.Count())
					}
				}
			}
		}
	}
	return out
}

func numbers(out map[string]float64, name string, list pmetric.NumberDataPointSlice) {
	for _, p := range list.All() {
		if p.Flags().NoRecordedValue() {
			continue // see TestEnds
		}
		v := p.DoubleValue()
		if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
			v = float64(p.IntValue())
		}
		out[name+labels(p.Attributes())] = v
	}
}

// labels returns the sorted attributes without the cluster, which all must have.
func labels(attrs pcommon.Map) string {
	raw := attrs.AsRaw()
	if raw["slurm.cluster"] != "c" && (raw["scheduler.cluster"] != "c" || raw["scheduler.type"] == "") {
		return " WITHOUT ITS CLUSTER"
	}
	for _, key := range []string{"slurm.cluster", "scheduler.cluster", "scheduler.type"} {
		delete(raw, key)
	}
	s := ""
	for _, k := range slices.Sorted(maps.Keys(raw)) {
		s += fmt.Sprintf(" %v", raw[k])
	}
	return s
}

var began = time.Unix(1_800_000_000, 0)

func round(s int) slurmctl.Snapshot {
	at := began.Add(time.Duration(s) * time.Second)
	return slurmctl.Snapshot{
		Time: at, Cluster: "c", Up: true,
		Jobs: []slurm.Job{
			{ID: "1", Tasks: 1, State: "RUNNING", Partition: "gpu", Account: "ml", User: "ann", CPUs: 4, Nodes: 2, GPUs: 8, NodeList: "a,b", Submit: began, Start: began},
			{ID: "2", Tasks: 3, State: "PENDING", Reason: "Resources", Partition: "gpu", Account: "ml", User: "bob", CPUs: 2, Nodes: 1, GPUs: 2, Submit: began},
			{ID: "3", Tasks: 1, State: "COMPLETED", Partition: "gpu", Account: "ml", User: "bob", CPUs: 2, Nodes: 1, GPUs: 1, NodeList: "a", Submit: began, Start: began, End: at},
		},
		Nodes: []slurmctl.Node{{
			Name: "a", State: "mixed", Partitions: []string{"gpu", "all"}, CPUs: 16, CPUsAllocated: 6, Memory: 100,
			GPUs: []slurmctl.GPUs{{Type: "h100", Total: 8, Allocated: 5}},
		}},
		Diag: &slurmctl.Diag{
			Since:  began.Add(-time.Hour),
			Values: map[string]float64{"server_thread_count": 3, "jobs_submitted": 40, "schedule_cycle_total": 10, "schedule_cycle_mean": 150, "bf_last_depth": 7, "schedule_cycle_max": 2_500_000},
			RPCs:   []slurmctl.RPC{{Name: "REQUEST_PING", Count: 5, Time: 250 * time.Microsecond}},
			Users:  []slurmctl.RPC{{Name: "root", Count: 5}},
		},
		Shares:   []slurmctl.Share{{Account: "ml", Norm: optional.Of(0.5), Usage: optional.Of(0.7)}, {Account: "ml", User: "ann", Factor: optional.Of(0.25)}},
		Requests: map[string]int64{"jobs": 2, "diag": 2}, Errors: map[string]int64{"jobs": 1},
	}
}

func testEmitter() *emitter {
	return newEmitter(createDefaultConfig().(*Config), receivertest.NewNopSettings(component.MustNewType("scheduler")))
}

// Catches a metric that is not recorded, has another unit, or counts something twice.
func TestEmit(t *testing.T) {
	e := testEmitter()
	md := e.emit(round(0))
	want := map[string]float64{
		"scheduler.up": 1, "scheduler.job.count running gpu ml": 1, "scheduler.job.count pending gpu ml": 3, "scheduler.job.count finished gpu ml": 1,
		"scheduler.job.pending.count resources gpu ml": 3, "scheduler.gpu.allocated  gpu ml": 8, "scheduler.gpu.pending  resources gpu ml": 6,
		"scheduler.waiting.gpu  2  resources gpu ml": 6, "scheduler.waiting.time  2  resources gpu ml": 0,
		"scheduler.gpu.count allocated h100": 5, "scheduler.gpu.count free h100": 3, "scheduler.gpu.count drained h100": 0, "scheduler.gpu.count down h100": 0,
		"scheduler.gpu.placeable 1 h100": 3, "scheduler.gpu.placeable 2 h100": 1, "scheduler.gpu.placeable 4 h100": 0, "scheduler.gpu.placeable 8 h100": 0, "scheduler.gpu.placeable 16 h100": 0,
		"scheduler.gpu.fragmentation 1 h100": 0, "scheduler.gpu.fragmentation 2 h100": 1 - 2./3, "scheduler.gpu.fragmentation 4 h100": 1, "scheduler.gpu.fragmentation 8 h100": 1, "scheduler.gpu.fragmentation 16 h100": 1,
		"scheduler.gpu.stranded cpu h100": 0, "scheduler.gpu.stranded memory h100": 0, "scheduler.gpu.stranded cordoned h100": 0, "scheduler.gpu.stranded not_ready h100": 0,
		"scheduler.queue.gpu.used  gpu ml": 8, "scheduler.queue.gpu.pending  gpu ml": 6, "scheduler.queue.fair_share  ml": 1.4,
		"slurm.up":                           1,
		"slurm.job.count ml running gpu ann": 1, "slurm.job.count ml pending gpu bob": 3, "slurm.job.count ml completed gpu bob": 1,
		"slurm.job.gpu.count ml running gpu ann": 8, "slurm.job.gpu.count ml pending gpu bob": 6,
		"slurm.job.cpu.count running gpu": 4, "slurm.job.cpu.count pending gpu": 6, "slurm.job.node.count running gpu": 2, "slurm.job.node.count pending gpu": 3,
		"slurm.job.pending.count Resources gpu": 3, "slurm.job.pending.gpu.count Resources gpu": 6, "slurm.job.multi_node.ratio gpu": 1,
		"slurm.node.count mixed": 1, "slurm.cpu.count allocated": 6, "slurm.cpu.count idle": 10, "slurm.gpu.count h100 allocated": 5, "slurm.gpu.count h100 idle": 3,
		"slurm.controller.thread.count": 3, "slurm.scheduler.cycle.count": 10, "slurm.scheduler.cycle.time": 0.0015, "slurm.scheduler.cycle.max": 2.5,
		"slurm.backfill.depth": 7, "slurm.job.submitted": 40, "slurm.rpc.count REQUEST_PING": 5, "slurm.rpc.time REQUEST_PING": 0.00025,
		"slurm.fairshare.shares.ratio ml": 0.5, "slurm.fairshare.usage.ratio ml": 0.7,
		"slurm.requests jobs": 2, "slurm.requests diag": 2, "slurm.refresh.errors jobs": 1, "slurm.refresh.errors diag": 0,
	}
	for _, part := range []string{"gpu", "all"} {
		maps.Copy(want, map[string]float64{
			"slurm.partition.node.count mixed " + part: 1, "slurm.partition.cpu.count " + part + " allocated": 6, "slurm.partition.cpu.count " + part + " idle": 10,
			"slurm.partition.gpu.count h100 " + part + " allocated": 5, "slurm.partition.gpu.count h100 " + part + " idle": 3, "slurm.partition.gpu.stranded " + part: 0,
		})
		for size, frag := range map[string]float64{"1": 0, "2": 1 - 2./3.0, "4": 1, "8": 1} {
			want["slurm.partition.gpu.fragmentation "+size+" "+part] = frag
			want["slurm.partition.gpu.placeable "+size+" "+part] = map[string]float64{"1": 3, "2": 1}[size]
		}
	}
	approx := cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })
	if diff := cmp.Diff(want, points(md), approx); diff != "" {
		t.Errorf("points (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{"service.name": "gpumeter"}, md.ResourceMetrics().At(0).Resource().Attributes().AsRaw()); diff != "" {
		t.Errorf("resource (-want +got):\n%s", diff)
	}
}

// startsOf returns the start time of each sum and histogram.
func startsOf(md pmetric.Metrics) map[string]time.Time {
	out := map[string]time.Time{}
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		switch m.Type() {
		case pmetric.MetricTypeSum:
			out[m.Name()] = m.Sum().DataPoints().At(0).StartTimestamp().AsTime()
		case pmetric.MetricTypeHistogram:
			out[m.Name()] = m.Histogram().DataPoints().At(0).StartTimestamp().AsTime()
		case pmetric.MetricTypeGauge:
			if m.Gauge().DataPoints().At(0).StartTimestamp() != 0 {
				out[m.Name()] = m.Gauge().DataPoints().At(0).StartTimestamp().AsTime()
			}
		}
	}
	return out
}

// Catches counters that restart at midnight without a new start time, and request counters, which do not
// restart then, with a start time at which they were not 0: both would be counted wrongly.
func TestEpochs(t *testing.T) {
	e := testEmitter()
	e.emit(round(0))
	midnight := round(60)
	midnight.Diag.Since = began.Add(30 * time.Second)
	midnight.Diag.Values["jobs_submitted"] = 0
	got := startsOf(e.emit(midnight))
	if !got["slurm.job.submitted"].Equal(midnight.Diag.Since) || !got["slurm.scheduler.cycle.count"].Equal(midnight.Diag.Since) {
		t.Errorf("jobs are counted since %v", got["slurm.job.submitted"])
	}
	if at := got["slurm.rpc.count"]; at.Unix() != 0 {
		t.Errorf("requests are counted since %v, which is unknown", at)
	}
	for name, at := range got {
		if strings.HasPrefix(name, "slurm.request") || strings.HasPrefix(name, "slurm.refresh") {
			if !at.Equal(e.began) {
				t.Errorf("%s began %v", name, at)
			}
		}
	}
	reset := round(120)
	reset.Diag.Since = began.Add(90 * time.Second)
	reset.Diag.RPCs[0].Count = 1
	if got := startsOf(e.emit(reset)); !got["slurm.rpc.count"].Equal(reset.Diag.Since) {
		t.Errorf("after a reset requests are counted since %v", got["slurm.rpc.count"])
	}
}

// Catches a rounded mean times a count that falls now and then, which reads as a counter reset.
func TestCycleTimeRises(t *testing.T) {
	e := testEmitter()
	last := -1.0
	for i, v := range [][2]float64{{3, 3}, {2, 4}, {2, 5}, {1, 6}, {2, 7}} { // 11 us in total, then empty cycles
		s := round(i)
		s.Diag.Values["schedule_cycle_mean"], s.Diag.Values["schedule_cycle_total"] = v[0], v[1]
		got := points(e.emit(s))["slurm.scheduler.cycle.time"]
		if got < last {
			t.Errorf("fell from %v to %v", last, got)
		}
		last = got
	}
	s := round(9)
	s.Diag.Since = began
	s.Diag.Values["schedule_cycle_mean"], s.Diag.Values["schedule_cycle_total"] = 1, 1
	if got := points(e.emit(s))["slurm.scheduler.cycle.time"]; got != 1e-6 {
		t.Errorf("after midnight it is %v", got)
	}
}

// Catches a series that ends without a final point, or with several: a database would show nodes as idle
// for minutes beside their current state.
func TestEnds(t *testing.T) {
	e := testEmitter()
	ends := func(s slurmctl.Snapshot) (out []string) {
		for _, m := range e.emit(s).ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			if m.Type() != pmetric.MetricTypeGauge {
				continue
			}
			for _, p := range m.Gauge().DataPoints().All() {
				if p.Flags().NoRecordedValue() {
					out = append(out, m.Name()+labels(p.Attributes()))
				}
			}
		}
		slices.Sort(out)
		return out
	}
	if got := ends(round(0)); len(got) > 0 {
		t.Errorf("at first: %v", got)
	}
	s := round(60)
	s.Nodes[0].State = "drained"
	for i, want := range [][]string{{"slurm.node.count mixed", "slurm.partition.node.count mixed all", "slurm.partition.node.count mixed gpu"}, nil} {
		var got []string
		for _, line := range ends(s) {
			if strings.Contains(line, "node.count mixed") {
				got = append(got, line)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("round %d (-want +got):\n%s", i, diff)
		}
	}
	down := slurmctl.Snapshot{Time: began.Add(2 * time.Minute), Cluster: "c", Err: errors.New("x")}
	if got := ends(down); !slices.Contains(got, "slurm.node.count drained") || slices.Contains(got, "slurm.up") {
		t.Errorf("away: %v", got)
	}
}

// Catches the last values of an unreachable controller reported as current.
func TestDown(t *testing.T) {
	e := testEmitter()
	e.emit(round(0))
	s := round(60)
	s.Jobs[0].State, s.Jobs[0].End = "completed", began.Add(50*time.Second)
	e.emit(s)
	down := slurmctl.Snapshot{Time: began.Add(2 * time.Minute), Cluster: "c", Requests: map[string]int64{"jobs": 3}, Errors: map[string]int64{"jobs": 1}, Err: errors.New("x")}
	got := points(e.emit(down))
	want := map[string]float64{"scheduler.up": 0, "slurm.up": 0, "slurm.requests jobs": 3, "slurm.refresh.errors jobs": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	none := slurmctl.Snapshot{Time: began, Cluster: "c", Requests: map[string]int64{}, Errors: map[string]int64{"jobs": 4}, Err: errors.New("no Slurm")}
	if diff := cmp.Diff(map[string]float64{"scheduler.up": 0, "slurm.up": 0, "slurm.refresh.errors jobs": 4}, points(testEmitter().emit(none))); diff != "" {
		t.Errorf("without Slurm (-want +got):\n%s", diff)
	}
}

func TestHistograms(t *testing.T) {
	e := testEmitter()
	first := round(0)
	first.Jobs = nil
	first.Jobs = []slurm.Job{}
	e.emit(first)
	e.emit(round(90))
	md := e.emit(round(120))
	got := points(md)
	if got["slurm.job.wait.duration gpu"] != 2 || got["scheduler.job.wait.duration gpu"] != 2 || got["slurm.job.run.duration gpu"] != 1 || got["slurm.job.suspended.duration gpu"] != 1 {
		t.Errorf("%v waited, %v ran, %v were suspended", got["slurm.job.wait.duration gpu"], got["slurm.job.run.duration gpu"], got["slurm.job.suspended.duration gpu"])
	}
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if m.Name() == "slurm.job.run.duration" {
			p := m.Histogram().DataPoints().At(0)
			if p.Sum() != 90 || p.BucketCounts().Len() != p.ExplicitBounds().Len()+1 || p.BucketCounts().At(4) != 1 || !p.StartTimestamp().AsTime().Equal(e.began) {
				t.Errorf("sum %v, buckets %v of %v", p.Sum(), p.BucketCounts().AsRaw(), p.ExplicitBounds().AsRaw())
			}
		}
	}
	e.cfg.Slurm.Histograms = false
	if _, ok := points(e.emit(round(150)))["slurm.job.run.duration gpu"]; ok {
		t.Error("histograms cannot be disabled")
	}
}

// tools creates programs that answer like Slurm 22.05 and log each run.
func tools(t *testing.T) (dir string) {
	t.Helper()
	data, err := filepath.Abs("../../internal/scheduler/slurmctl/testdata/22.05")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, script := range map[string]string{
		"squeue":   "cat " + data + "/jobs.json",
		"scontrol": `case "$*" in *--json*) echo "unrecognized option" >&2; exit 1;; *partitions*) cat ` + data + `/partitions.txt;; esac; cat ` + data + "/nodes.txt",
		"sdiag":    `case "$*" in *--json*) echo "unrecognized option" >&2; exit 1;; esac; cat ` + data + "/diag.txt",
		"sshare":   "cat " + data + "/shares.txt",
	} {
		text := "#!/bin/sh\nPATH=/usr/bin:/bin\necho " + name + ` "$@" >>` + dir + "/log\n" + script + "\n"
		programtest.Write(t, filepath.Join(dir, name), text)
	}
	return dir
}

// Catches a receiver in two pipelines that queries twice, a shutdown blocked by a hanging program, and
// records that were not requested.
func TestReceiver(t *testing.T) {
	dir := tools(t)
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.Slurm.Tools, cfg.Slurm.Conf, cfg.Slurm.Cluster = dir, "/nonexistent", "c"
	cfg.Slurm.Interval = 2 * time.Second
	cfg.Slurm.Records = []string{"squeue", "partitions"}
	if err := confmap.Validate(cfg); err != nil {
		t.Fatal(err)
	}
	var metrics consumertest.MetricsSink
	var logs consumertest.LogsSink
	set := receivertest.NewNopSettings(f.Type())
	m, err := f.CreateMetrics(t.Context(), set, cfg, &metrics)
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.CreateLogs(t.Context(), set, cfg, &logs)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []component.Component{m, l} {
		if err := c.Start(t.Context(), componenttest.NewNopHost()); err != nil {
			t.Fatal(err)
		}
	}
	await.True(t, "records", func() bool { return logs.LogRecordCount() > 0 })
	ran := func() string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	asked, _, _ := strings.Cut(ran(), "sshare") // the last request of a round
	if n := strings.Count(asked, "squeue"); n != 1 {
		t.Errorf("the jobs were queried %d times in one round:\n%s", n, asked)
	}
	// From now on the controller hangs.
	programtest.Write(t, filepath.Join(dir, "new"), "#!/bin/sh\necho hangs >>"+dir+"/log\nexec /bin/sleep 100000\n")
	if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "squeue")); err != nil {
		t.Fatal(err)
	}
	await.True(t, "a round that hangs", func() bool { return strings.Contains(ran(), "hangs") })
	for _, c := range []component.Component{m, l} {
		if err := c.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// The aborted round emits nothing.
	if n, want := len(metrics.AllMetrics()), strings.Count(ran(), "sshare"); n != want {
		t.Errorf("%d batches for %d rounds", n, want)
	}
	if got := points(metrics.AllMetrics()[0])["slurm.up"]; got != 1 {
		t.Errorf("up is %v", got)
	}
	events := map[string]int{}
	for _, rec := range logs.AllLogs()[0].ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
		events[rec.EventName()]++
		if c, _ := rec.Attributes().Get("slurm.cluster"); c.Str() != "c" || rec.Timestamp() == 0 {
			t.Errorf("%v", rec.Attributes().AsRaw())
		}
	}
	if diff := cmp.Diff(map[string]int{"slurm.job": 16, "slurm.partition": 2}, events); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// Catches a shutdown that hangs without a start.
func TestNeverStarted(t *testing.T) {
	f := NewFactory()
	m, err := f.CreateMetrics(t.Context(), receivertest.NewNopSettings(f.Type()), f.CreateDefaultConfig(), &consumertest.MetricsSink{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// Catches a typo that would silently query nothing, or too often.
func TestValidate(t *testing.T) {
	f := func(want string, conf map[string]any) {
		t.Helper()
		cfg := createDefaultConfig()
		err := confmap.NewFromStringMap(conf).Unmarshal(cfg)
		if err == nil {
			err = confmap.Validate(cfg)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v gives %v, want %q", conf, err, want)
		}
	}
	slurm := func(key string, value any) map[string]any { return map[string]any{"slurm": map[string]any{key: value}} }
	f("", nil)
	f("interval must be at least 1s", slurm("interval", "10ms"))
	f("timeout must be", slurm("timeout", "0s"))
	f("max_series must be at least 10", slurm("max_series", 1))
	f(`records: unknown kind "sque"`, slurm("records", []any{"sque"}))
	f("", slurm("records", []any{"squeue", "sprio", "sshare", "qos", "users", "partitions", "config"}))
	f("slurmrestd", slurm("rest", map[string]any{"address": "host:6820"}))
	f("", slurm("rest", map[string]any{"address": "unix:/run/s", "token_file": "/t", "user": "u"}))
	f("OpenMetrics address must be http", slurm("openmetrics", "host:6817"))
	f("", slurm("openmetrics", "http://host:6817"))
	f("accounting::prometheus", slurm("accounting", map[string]any{"prometheus": "x"}))
	f("", slurm("accounting", map[string]any{"enabled": true, "interval": "1m", "since": "720h", "state_dir": "/s", "prometheus": "http://p:9090"}))
	f("invalid keys", slurm("intervall", "1m"))
}
