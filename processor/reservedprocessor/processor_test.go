package reservedprocessor

import (
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/node"
)

// Catches latencies and tokens of an engine that another program has made up.
func TestEngineIsForeign(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"inference.engine.id", "inference_engine_id", "inference.engine_id"} {
		attrs := pcommon.NewMap()
		attrs.PutStr(key, "pod/1/vllm:8000")
		if !foreign(attrs, map[string]string{}) {
			t.Errorf("%s is not dropped", key)
		}
	}
}

// Catches a metric of an agent, or a series that the hub reads, that applications may forge: a
// name that was added without a namespace of ours.
func TestEveryNameIsReserved(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../receiver/*/metadata.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no metadata.yaml", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Metrics map[string]any }
		if err := yaml.Unmarshal(text, &list); err != nil {
			t.Fatal(file, err)
		}
		for name := range list.Metrics {
			// The training processor lets through what training loops may report, and nothing else below training.
			if !reserved(name, ".") && !strings.HasPrefix(name, "system.") && !strings.HasPrefix(name, "training.") {
				t.Errorf("%s: applications may send %s", file, name)
			}
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), "../../internal/fleet/names.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Series") {
			return true
		}
		name, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		if series++; !reserved(name, "_") {
			t.Errorf("the hub reads %s, which applications may send", name)
		}
		return true
	})
	if series == 0 {
		t.Error("no series found: the test is wrong")
	}
}

// Catches a spelling that the hub stores under a name of ours, and a foreign name that is
// dropped.
func TestReservedMetric(t *testing.T) {
	t.Parallel()
	f := func(name, unit string, fill func(pmetric.Metric), want bool) {
		t.Helper()
		m := pmetric.NewMetric()
		m.SetName(name)
		m.SetUnit(unit)
		fill(m)
		if got := reservedMetric(m); got != want {
			t.Errorf("%q with unit %q: %t, want %t", name, unit, got, want)
		}
	}
	gauge := func(m pmetric.Metric) { m.SetEmptyGauge() }
	f("gpu.up", "", gauge, true)
	f("gpu_up", "", gauge, true)
	f("gpu/up", "", gauge, true)
	f("gpu-workload allocated.time", "s", func(m pmetric.Metric) { m.SetEmptySum().SetIsMonotonic(true) }, true)
	f("gpu", "up", gauge, true)
	f("gpu", "", func(m pmetric.Metric) { m.SetEmptyHistogram() }, true)
	f("gpumeter.quota.used", "", gauge, true)
	f("nccl.collective.sequence", "", func(m pmetric.Metric) { m.SetEmptySum().SetIsMonotonic(true) }, true)
	f("slurm_job", "", func(m pmetric.Metric) { m.SetEmptySummary() }, true)
	f("scheduler.gpu.count", "", gauge, true)
	f("scheduler_gpu.count", "", gauge, true)
	f("scheduler", "up", gauge, true)
	f("scheduler.queue.gpu.used", "", gauge, true)
	f("scheduler_queue_gpu_used", "", gauge, true)
	f("scheduler_pending_pods", "", gauge, false) // of kube-scheduler
	f("scheduler_queue_attempt_duration", "s", gauge, true)
	f("scheduler_queue_incoming_pods", "", gauge, false) // of kube-scheduler
	f("gpu.x", "", func(pmetric.Metric) {}, true)
	f("vllm:gpu_cache_usage_perc", "", gauge, false)
	f("gpus.in.use", "", gauge, false)
	f("http.server.request.duration", "s", func(m pmetric.Metric) { m.SetEmptyHistogram() }, false)
	f("system.cpu.utilization", "1", gauge, false)
}

type clock struct {
	component.Component
	ticks chan node.Tick
}

func (c clock) Subscribe() (<-chan node.Tick, func()) { return c.ticks, func() { close(c.ticks) } }

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// Catches a local user who writes bills, findings or another machine's series with the token of
// the agent, telemetry of applications that does not pass, and drops that nobody counts.
func TestApplicationsCannotForge(t *testing.T) {
	t.Parallel()
	tel := componenttest.NewTelemetry()
	defer func() { _ = tel.Shutdown(context.Background()) }()
	f := NewFactory()
	set := processortest.NewNopSettings(f.Type())
	set.TelemetrySettings = tel.NewTelemetrySettings()
	c, d := clock{ticks: make(chan node.Tick)}, clock{ticks: make(chan node.Tick)}
	var metrics consumertest.MetricsSink
	var logs consumertest.LogsSink
	m, err := f.CreateMetrics(t.Context(), set, f.CreateDefaultConfig(), &metrics)
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.CreateLogs(t.Context(), set, f.CreateDefaultConfig(), &logs)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), host{component.MustNewID("gpu"): c}); err != nil {
		t.Fatal(err)
	}
	if err := l.Start(t.Context(), host{component.MustNewID("gpu"): d}); err != nil {
		t.Fatal(err)
	}
	sendMetrics := func(text string) error {
		md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return m.ConsumeMetrics(t.Context(), md)
	}
	sendLogs := func(text string) error {
		ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return l.ConsumeLogs(t.Context(), ld)
	}
	const app = `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"app","gauge":{"dataPoints":[{"asInt":"1"}]}}]}]}]}`
	if err := sendMetrics(app); err == nil {
		t.Error("telemetry passes before the machine is known")
	}
	if err := sendLogs(`{"resourceLogs":[]}`); err == nil {
		t.Error("logs pass before the machine is known")
	}
	tick := node.Tick{Host: "n1", Resource: map[string]string{"k8s.node.name": "n1", "service.name": "x", "rack": "r7"}}
	c.ticks <- tick
	d.ticks <- tick
	await.NoError(t, func() error { return sendMetrics(app) })
	await.NoError(t, func() error { return sendLogs(`{"resourceLogs":[]}`) })
	metrics.Reset()
	logs.Reset()

	attr := func(key, value string) string { return `{"key":"` + key + `","value":{"stringValue":"` + value + `"}}` }
	gauge := func(name string, attrs ...string) string {
		return `{"name":"` + name + `","gauge":{"dataPoints":[{"asInt":"1","attributes":[` + strings.Join(attrs, ",") + `]}]}}`
	}
	if err := sendMetrics(`{"resourceMetrics":[{"resource":{"attributes":[` +
		attr("host.name", "n2") + "," + attr("k8s.cluster.name", "other") + "," + attr("gpumeter.simulated", "true") + "," + attr("service.name", "trainer") +
		`]},"scopeMetrics":[{"metrics":[` + strings.Join([]string{
		gauge("gpu_workload_allocated_time_seconds_total", attr("gpu.uuid", "GPU-1")),
		gauge("gpumeter.attribution.status"),
		gauge("loss", attr("host_name", "n2")), gauge("loss", attr("rack", "r8")), gauge("loss", attr("cloud.region", "eu")),
		gauge("loss", attr("host.name", "n1"), attr("step", "3")),
	}, ",") + `]}]}]}`); err != nil {
		t.Fatal(err)
	}
	if err := sendMetrics(`{"resourceMetrics":[{"scopeMetrics":[{"metrics":[` + gauge("gpu.up") + `]}]}]}`); err != nil {
		t.Fatal(err)
	}
	if len(metrics.AllMetrics()) != 1 {
		t.Fatalf("%d batches passed, want 1", len(metrics.AllMetrics()))
	}
	text, err := (&pmetric.JSONMarshaler{}).MarshalMetrics(metrics.AllMetrics()[0])
	if err != nil {
		t.Fatal(err)
	}
	same(t, string(text), `{"resourceMetrics":[{"resource":{"attributes":[`+
		strings.Join([]string{attr("service.name", "trainer"), attr("host.name", "n1"), attr("k8s.node.name", "n1"), attr("rack", "r7")}, ",")+
		`]},"scopeMetrics":[{"scope":{},"metrics":[{"name":"loss","gauge":{"dataPoints":[{"asInt":"1","attributes":[`+attr("host.name", "n1")+","+attr("step", "3")+`]}]}}]}]}]}`)

	record := func(name string, attrs ...string) string {
		return `{"eventName":"` + name + `","attributes":[` + strings.Join(attrs, ",") + `]}`
	}
	if err := sendLogs(`{"resourceLogs":[{"resource":{"attributes":[` + attr("host.name", "n2") + "," + attr("host.name", "n3") + `]},"scopeLogs":[{"logRecords":[` + strings.Join([]string{
		record("gpu.finding"), record("", attr("event.name", "app"), attr("event.name", "gpu.xid")), record("slurm.job.end"), record("app.crash", attr("k8s.node.name", "n2")), record("app.crash"),
	}, ",") + `]}]},{"resource":{"attributes":[` + attr("event.name", "nccl.hang") + `]},"scopeLogs":[{"logRecords":[` + record("") + `]}]}]}`); err != nil {
		t.Fatal(err)
	}
	if len(logs.AllLogs()) != 1 {
		t.Fatalf("%d batches of logs passed, want 1", len(logs.AllLogs()))
	}
	text, err = (&plog.JSONMarshaler{}).MarshalLogs(logs.AllLogs()[0])
	if err != nil {
		t.Fatal(err)
	}
	same(t, string(text), `{"resourceLogs":[{"resource":{"attributes":[`+strings.Join([]string{attr("host.name", "n1"), attr("k8s.node.name", "n1"), attr("rack", "r7")}, ",")+
		`]},"scopeLogs":[{"scope":{},"logRecords":[{"eventName":"app.crash","body":{}}]}]}]}`)

	counted, err := tel.GetMetric("gpumeter.reserved.dropped")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, p := range counted.Data.(metricdata.Sum[int64]).DataPoints {
		signal, _ := p.Attributes.Value("signal")
		why, _ := p.Attributes.Value("reason")
		got[signal.AsString()+" "+why.AsString()] = p.Value
	}
	if diff := cmp.Diff(map[string]int64{"metrics name": 3, "metrics identity": 3, "logs name": 4, "logs identity": 1}, got); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	for _, p := range []component.Component{m, l} {
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func same(t *testing.T, got, want string) {
	t.Helper()
	var a, b any
	if err := json.Unmarshal([]byte(got), &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, a); diff != "" {
		t.Errorf("passed (-want +got):\n%s", diff)
	}
}
