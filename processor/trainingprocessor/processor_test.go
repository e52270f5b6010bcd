package trainingprocessor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processorhelper"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// view is a gpu extension.
type view struct {
	component.StartFunc
	component.ShutdownFunc
	node.Fanout
	workload.Reports
}

var job = workload.Workload{ID: "slurm/7", Kind: "slurm_job", Name: "train", Team: "search", Attributes: map[string]string{"slurm.job.id": "7"}}

func (*view) Process(pid uint32) (workload.Workload, bool) { return job, pid == 42 }

func (*view) Container(id string) (workload.Workload, bool) { return job, id == "c0ffee" }

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

func started(t *testing.T) (*translator, *view) {
	t.Helper()
	set := processortest.NewNopSettings(component.MustNewType("training"))
	x, err := newTranslator(&set)
	if err != nil {
		t.Fatal(err)
	}
	v := &view{}
	if err := x.start(context.Background(), host{component.MustNewID("gpu"): v}); err != nil {
		t.Fatal(err)
	}
	pod := workload.Workload{ID: "pod/u1/train", Kind: "job", Name: "llm", Attributes: map[string]string{"k8s.pod.name": "llm-0", "k8s.namespace.name": "ml"}}
	same := workload.Workload{ID: "pod/u2/train", Kind: "job", Name: "other", Attributes: map[string]string{"k8s.pod.name": "twice-0", "k8s.namespace.name": "a"}}
	too := workload.Workload{ID: "pod/u3/train", Kind: "job", Name: "another", Attributes: map[string]string{"k8s.pod.name": "twice-0", "k8s.namespace.name": "b"}}
	x.learn(&node.Tick{Host: "host1", Readings: []node.Reading{{Holders: []node.Holder{{Workload: pod}, {Workload: same}, {Workload: too}, {Workload: job}}}}})
	t.Cleanup(func() { _ = x.shutdown(context.Background()) })
	return x, v
}

// pass sends a request in JSON through a processor, and renders what comes out.
func pass(t *testing.T, x *translator, request string) []string {
	t.Helper()
	md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics([]byte(request))
	if err != nil {
		t.Fatal(err)
	}
	md, err = x.metrics(context.Background(), md)
	if err != nil && !errors.Is(err, processorhelper.ErrSkipProcessingData) {
		t.Fatal(err)
	}
	var list []string
	add := func(m pmetric.Metric, attrs pcommon.Map, value any, start pcommon.Timestamp) {
		var words []string
		for k, v := range attrs.All() {
			words = append(words, k+"="+v.AsString())
		}
		slices.Sort(words)
		list = append(list, fmt.Sprintf("%s [%s] %s{%s} %v start=%d", m.Name(), m.Unit(), m.Type(), strings.Join(words, ","), value, start/1e9))
	}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				switch m.Type() {
				case pmetric.MetricTypeGauge:
					for _, p := range m.Gauge().DataPoints().All() {
						add(m, p.Attributes(), number(p), p.StartTimestamp())
					}
				case pmetric.MetricTypeSum:
					for _, p := range m.Sum().DataPoints().All() {
						add(m, p.Attributes(), number(p), p.StartTimestamp())
					}
				case pmetric.MetricTypeHistogram:
					for _, p := range m.Histogram().DataPoints().All() {
						add(m, p.Attributes(), fmt.Sprintf("n=%d sum=%.6g bounds=%.6g", p.Count(), p.Sum(), p.ExplicitBounds().AsRaw()), p.StartTimestamp())
					}
				}
			}
		}
	}
	return list
}

func number(p pmetric.NumberDataPoint) float64 {
	if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
		return float64(p.IntValue())
	}
	return p.DoubleValue()
}

const resource = `{"resourceMetrics":[{"resource":{"attributes":[{"key":"host.name","value":{"stringValue":"host1"}},{"key":"process.pid","value":{"intValue":"42"}}]},"scopeMetrics":[{"scope":{"name":"training"},"metrics":[%s]}]}]}`

const owned = "gpu.workload.kind=slurm_job,gpu.workload.name=train,gpu.workload.team=search,slurm.job.id=7,training.rank=0,training.run=42,training.source=reported"

func gauge(name, unit, value, attrs string) string {
	return fmt.Sprintf(`{"name":%q,"unit":%q,"gauge":{"dataPoints":[{"timeUnixNano":"1000000000","startTimeUnixNano":"1000000000",%s,"attributes":[%s]}]}}`, name, unit, value, attrs)
}

func attr(key, value string) string {
	return fmt.Sprintf(`{"key":%q,"value":{"stringValue":%q}}`, key, value)
}

// Catches a name, unit or kind that is not that of the vocabulary, and an owner that the sender chooses.
func TestTranslate(t *testing.T) {
	f := func(name, metric string, want ...string) {
		t.Helper()
		x, _ := started(t)
		if diff := cmp.Diff(want, pass(t, x, fmt.Sprintf(resource, metric))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	f("loss", gauge("train/loss", "", `"asDouble":2.5`, ""), "training.loss [{loss}] Gauge{"+owned+"} 2.5 start=1")
	f("the name itself", gauge("training.loss", "{loss}", `"asDouble":-2.5`, ""), "training.loss [{loss}] Gauge{"+owned+"} -2.5 start=1")
	f("a global step", gauge("global_step", "", `"asInt":"1200"`, ""), "training.steps [{step}] Sum{"+owned+"} 1200 start=0")
	f("percent", gauge("mfu", "%", `"asDouble":50`, ""), "training.mfu [1] Gauge{"+owned+"} 0.5 start=1")
	f("milliseconds", `{"name":"step_time","unit":"ms","histogram":{"aggregationTemporality":2,"dataPoints":[{"timeUnixNano":"2000000000","startTimeUnixNano":"1000000000","count":"4","sum":1000,"explicitBounds":[100,1000],"bucketCounts":["0","4","0"]}]}}`,
		"training.step.duration [s] Histogram{"+owned+"} n=4 sum=1 bounds=[0.1 1] start=1")
	f("another owner", gauge("loss", "", `"asDouble":1`, attr("gpu.workload.name", "payroll")+","+attr("gpu.uuid", "GPU-1")+","+attr("training.source", "observed")+","+attr("head", "value")),
		"training.loss [{loss}] Gauge{"+strings.Replace(owned, "slurm.job.id", "head=value,slurm.job.id", 1)+"} 1 start=1")
	f("another metric of the loop", gauge("learning_rate", "", `"asDouble":1`, ""), "learning_rate [] Gauge{} 1 start=1")
	f("no number", gauge("loss", "", `"asDouble":"NaN"`, ""))
	f("infinite", gauge("loss", "", `"asDouble":"Infinity"`, ""))
	f("absurd", gauge("mfu", "", `"asDouble":41`, ""))
	f("negative", gauge("global_step", "", `"asInt":"-1"`, ""))
	f("another rank", gauge("loss", "", `"asDouble":1`, attr("rank", "3")))
	f("each rank", gauge("mfu", "", `"asDouble":0.5`, attr("rank", "3")), "training.mfu [1] Gauge{"+strings.Replace(owned, "rank=0", "rank=3", 1)+"} 0.5 start=1")
	f("unknown", gauge("training.happiness", "", `"asDouble":1`, ""))
	f("unknown in Prometheus", gauge("training_steps_total", "", `"asDouble":1`, ""))
	f("in disguise", gauge("_training::steps/total", "", `"asDouble":1`, ""))
	f("another word", gauge("trainings", "", `"asDouble":1`, ""), "trainings [] Gauge{} 1 start=1")
	f("another unit", gauge("training.mfu", "W", `"asDouble":0.5`, ""))
	f("deltas", `{"name":"steps","sum":{"isMonotonic":true,"aggregationTemporality":1,"dataPoints":[{"timeUnixNano":"1","asInt":"5"}]}}`)
	f("not a counter", `{"name":"tokens","sum":{"aggregationTemporality":2,"dataPoints":[{"timeUnixNano":"1","asInt":"5"}]}}`)
}

// A name such as loss belongs to no training, unless the meter says so.
func TestOtherScopes(t *testing.T) {
	x, _ := started(t)
	request := strings.Replace(fmt.Sprintf(resource, gauge("loss", "", `"asDouble":1`, attr("gpu.workload.name", "payroll"))), `"name":"training"`, `"name":"insurance"`, 1)
	if diff := cmp.Diff([]string{"loss [] Gauge{gpu.workload.name=payroll} 1 start=1"}, pass(t, x, request)); diff != "" {
		t.Error(diff)
	}
}

// What a workload reports is not observed as well, and what has been observed of it is not counted again.
func TestReports(t *testing.T) {
	x, v := started(t)
	steps := fmt.Sprintf(resource, `{"name":"steps","sum":{"isMonotonic":true,"aggregationTemporality":2,"dataPoints":[{"timeUnixNano":"9000000000","startTimeUnixNano":"1000000000","asInt":"5"}]}}`)
	if v.Reported(job.JobKey(), "training.steps", time.Now()) {
		t.Error("reported before")
	}
	if diff := cmp.Diff([]string{"training.steps [{step}] Sum{" + owned + "} 5 start=1"}, pass(t, x, steps)); diff != "" {
		t.Error(diff)
	}
	if !v.Reported(job.JobKey(), "training.steps", time.Now()) || v.Reported(job.JobKey(), "training.time", time.Now()) || v.Reported("slurm_job\x00other", "training.steps", time.Now()) {
		t.Error("the steps of this job, and nothing else, are reported")
	}
	if v.Reported(job.JobKey(), "training.steps", time.Now().Add(workload.ReportedFor+time.Second)) {
		t.Error("it has stopped to report, and still does")
	}
	v.Watch(job.JobKey(), time.Now())
	if diff := cmp.Diff([]string{"training.steps [{step}] Sum{" + owned + "} 5 start=0"}, pass(t, x, steps)); diff != "" {
		t.Error(diff)
	}
}

// A sender without a workload is accepted, with nobody's name. A number of a process elsewhere is nobody's.
func TestSender(t *testing.T) {
	x, _ := started(t)
	f := func(attributes string, want string) {
		t.Helper()
		got := pass(t, x, `{"resourceMetrics":[{"resource":{"attributes":[`+attributes+`]},"scopeMetrics":[{"scope":{"name":"training"},"metrics":[`+gauge("loss", "", `"asDouble":1`, "")+`]}]}]}`)
		if diff := cmp.Diff([]string{"training.loss [{loss}] Gauge{" + want + "} 1 start=1"}, got); diff != "" {
			t.Error(diff)
		}
	}
	f("", "training.rank=0,training.source=reported")
	f(attr("container.id", "c0ffee")+","+attr("service.instance.id", "a"), strings.Replace(owned, "run=42", "run=a", 1))
	f(attr("k8s.pod.name", "llm-0")+`,{"key":"process.pid","value":{"intValue":"42"}}`, "gpu.workload.kind=job,gpu.workload.name=llm,k8s.namespace.name=ml,k8s.pod.name=llm-0,training.rank=0,training.run=42,training.source=reported")
	f(attr("k8s.pod.name", "twice-0")+","+attr("host.name", "host1")+`,{"key":"process.pid","value":{"intValue":"42"}}`, "training.rank=0,training.run=42,training.source=reported")
	f(attr("slurm.job.id", "7"), strings.Replace(owned, "training.run=42,", "", 1))
	f(attr("host.name", "host2")+`,{"key":"process.pid","value":{"intValue":"42"}}`, "training.rank=0,training.run=42,training.source=reported")
	f(attr("container.id", "unknown")+","+attr("host.name", "host1")+`,{"key":"process.pid","value":{"intValue":"42"}}`, "training.rank=0,training.run=42,training.source=reported")
}

// The requests of the snippets of docs/training.md, as they sent them, byte for byte.
func TestSnippets(t *testing.T) {
	for name, want := range map[string][]string{
		"pytorch":     {"training.steps [{step}] Sum 50", "training.loss [{loss}] Gauge 2.5", "training.samples [{sample}] Sum 1600"},
		"lightning":   {"training.steps [{step}] Sum 100", "training.loss [{loss}] Gauge 1.5"},
		"huggingface": {"training.steps [{step}] Sum 500", "training.tokens [{token}] Sum 1.048576e+06", "training.loss [{loss}] Gauge 1.25", "training.gradient.norm [{norm}] Gauge 0.5"},
		"jax":         {"training.steps [{step}] Sum 50", "training.loss [{loss}] Gauge 0.75", "training.tokens [{token}] Sum 204800"},
		"megatron":    {"training.steps [{step}] Sum 300", "training.samples [{sample}] Sum 76800", "training.gradient.norm [{norm}] Gauge 1.125", "training.loss [{loss}] Gauge 2"},
	} {
		b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		x, _ := started(t)
		var got []string
		for _, line := range pass(t, x, string(b)) {
			head, rest, _ := strings.Cut(line, "{gpu.workload.kind=slurm_job,gpu.workload.name=train,gpu.workload.team=search,slurm.job.id=7,training.rank=0,training.run=")
			_, value, _ := strings.Cut(rest, ",training.source=reported} ")
			value, _, _ = strings.Cut(value, " start=0")
			got = append(got, head+" "+value)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func FuzzMetrics(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(resource, gauge("loss", "", `"asDouble":1`, ""))))
	set := processortest.NewNopSettings(component.MustNewType("training"))
	x, err := newTranslator(&set)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(b)
		if err != nil {
			return
		}
		if md, err = x.metrics(context.Background(), md); err != nil {
			return
		}
		for _, rm := range md.ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					if _, known := wordOf(m.Name(), false); ours(m.Name()) && !known {
						t.Errorf("%q passed", m.Name())
					}
				}
			}
		}
	})
}

func TestNeedsTheExtension(t *testing.T) {
	set := processortest.NewNopSettings(component.MustNewType("training"))
	x, err := newTranslator(&set)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.start(context.Background(), componenttest.NewNopHost()); err == nil {
		t.Error("it starts without the gpu extension")
	}
}
