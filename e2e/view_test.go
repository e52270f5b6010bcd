//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
)

// viewed is a small fleet: busy GPUs, a shared one, one that is held but unused, a sick one, one that changes
// owners, and a free one.
type viewed struct {
	begin, end time.Time
	service    string // distinguishes the paths by which the data arrives
}

const viewedStep = 30 * time.Second

// tenant is a holder of a device and the load it causes.
type tenant struct {
	kind, name, team, namespace, job string

	part, busy float64
}

// tenants returns the holders of a device at a moment.
func (v viewed) tenants(device int, at time.Time) []tenant {
	train := tenant{"job", "train", "vision", "ml", "", 1, 0.9375}
	switch device {
	case 1:
		return []tenant{{"deployment", "chat", "product", "web", "", 0.5, 0.25}, {"deployment", "embed", "product", "web", "", 0.5, 0.125}}
	case 2:
		return []tenant{{"statefulset", "notebook", "research", "lab", "", 1, 0}}
	case 4:
		if at.Before(v.end.Add(-45 * time.Minute)) {
			return []tenant{{"slurm_job", "md", "", "", "417", 1, 0.75}}
		}
	case 5:
		return nil
	}
	return []tenant{train}
}

// step returns the metrics of the agents n steps after the start.
func (v viewed) step(n int) pmetric.Metrics {
	at := v.begin.Add(time.Duration(n) * viewedStep)
	md := pmetric.NewMetrics()
	for device := range 6 {
		rm := md.ResourceMetrics().AppendEmpty()
		node := fmt.Sprintf("node-%d", device/3)
		for key, value := range map[string]string{
			"host.name": node, "k8s.cluster.name": "c", "gpumeter.simulated": "true", "service.name": v.service, "service.instance.id": node + v.service,
		} {
			rm.Resource().Attributes().PutStr(key, value)
		}
		w := viewWriter{list: rm.ScopeMetrics().AppendEmpty().Metrics(), at: at, device: device}
		busy, free := 0.0, 1.0
		held := v.tenants(device, at)
		for _, t := range held {
			busy += t.part * t.busy
			free -= t.part
			w.gauge("gpu.allocation", "1", t.part, t.labels()...)
			w.gauge("gpu.workload.utilization", "1", t.part*t.busy, t.labels()...)
			w.gauge("gpu.workload.memory.used", "By", t.part*40*(1<<30), t.labels()...)
			w.gauge("gpu.workload.power.draw", "W", t.part*(100+500*t.busy), t.labels()...)
		}
		health := 1.0
		if device == 3 {
			health = 0
		}
		w.gauge("gpu.unallocated", "1", free, "gpu.workload.kind", "unallocated")
		w.gauge("gpu.up", "{gpu}", 1)
		w.gauge("gpu.info", "{gpu}", 1, "gpu.driver.version", "580.95.05", "gpu.architecture", "hopper")
		w.gauge("gpu.utilization", "1", busy)
		w.gauge("gpu.memory.used", "By", float64(len(held))*20*(1<<30))
		w.gauge("gpu.memory.total", "By", 80*(1<<30))
		w.gauge("gpu.power.draw", "W", 100+500*busy)
		w.gauge("gpu.temperature", "Cel", 30+40*busy)
		w.gauge("gpu.health", "1", health)
		v.sums(w, device, n)
	}
	return md
}

// sums writes the counters up to a step, of the current holders and of those in the last minutes.
func (v viewed) sums(w viewWriter, device, n int) {
	if device == 5 {
		held := float64(n) * viewedStep.Seconds()
		w.sums(v.begin, map[string]float64{"gpu.unallocated.time": held, "gpu.workload.energy": 100 * held}, "gpu.workload.kind", "unallocated")
		return
	}
	change := int(v.end.Add(-45*time.Minute).Sub(v.begin) / viewedStep)
	if device != 4 || n < change {
		for _, t := range v.tenants(device, v.begin) {
			w.counters(v.begin, float64(n)*t.part, t.busy, t.labels()...)
		}
		return
	}
	before, now := v.tenants(4, v.begin)[0], v.tenants(4, v.end)[0]
	if n < change+10 {
		w.counters(v.begin, float64(change-1), before.busy, before.labels()...)
	}
	w.counters(v.begin.Add(time.Duration(change-1)*viewedStep), float64(n-change+1), now.busy, now.labels()...)
}

func (t tenant) labels() []string {
	out := []string{"gpu.workload.kind", t.kind, "gpu.workload.name", t.name}
	if t.job != "" {
		return append(out, "slurm.job.id", t.job, "slurm.user", "ines", "slurm.account", "chemistry", "slurm.cluster", "hpc")
	}
	return append(out, "gpu.workload.team", t.team, "k8s.namespace.name", t.namespace, "k8s.pod.name", t.name+"-0", "k8s.pod.uid", "uid-"+t.name)
}

// viewWriter adds metrics of one device.
type viewWriter struct {
	list   pmetric.MetricSlice
	at     time.Time
	device int
}

func (w viewWriter) point(p pmetric.NumberDataPoint, value float64, attributes []string) {
	p.SetTimestamp(pcommon.NewTimestampFromTime(w.at))
	p.SetDoubleValue(value)
	a := p.Attributes()
	a.PutStr("gpu.uuid", fmt.Sprintf("GPU-%d", w.device))
	a.PutStr("gpu.index", fmt.Sprint(w.device%3))
	a.PutStr("gpu.model", "NVIDIA H100")
	a.PutStr("gpu.vendor", "nvidia")
	for i := 0; i < len(attributes); i += 2 {
		a.PutStr(attributes[i], attributes[i+1])
	}
}

func (w viewWriter) gauge(name, unit string, value float64, attributes ...string) {
	m := w.list.AppendEmpty()
	m.SetName(name)
	m.SetUnit(unit)
	w.point(m.SetEmptyGauge().DataPoints().AppendEmpty(), value, attributes)
}

// counters writes the counters of one workload after a number of steps.
func (w viewWriter) counters(since time.Time, steps, busy float64, attributes ...string) {
	held := steps * viewedStep.Seconds()
	active := held * math.Ceil(busy)
	w.sums(since, map[string]float64{
		"gpu.workload.allocated.time": held, "gpu.workload.active.time": active, "gpu.workload.idle.time": held - active, "gpu.workload.energy": held * (100 + 500*busy),
	}, attributes...)
}

// sums writes counters that started at since.
func (w viewWriter) sums(since time.Time, values map[string]float64, attributes ...string) {
	for name, value := range values {
		m := w.list.AppendEmpty()
		m.SetName(name)
		m.SetUnit("s")
		if name == "gpu.workload.energy" {
			m.SetUnit("J")
		}
		sum := m.SetEmptySum()
		sum.SetIsMonotonic(true)
		sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		p := sum.DataPoints().AppendEmpty()
		p.SetStartTimestamp(pcommon.NewTimestampFromTime(since))
		w.point(p, value, attributes)
	}
}

// send writes the whole history to an OTLP address.
func (v viewed) send(t *testing.T, address string) {
	t.Helper()
	steps := int(v.end.Sub(v.begin) / viewedStep)
	batch := pmetric.NewMetrics()
	for n := range steps + 1 {
		v.step(n).ResourceMetrics().MoveAndAppendTo(batch.ResourceMetrics())
		if n%10 != 9 && n < steps {
			continue
		}
		body, err := pmetricotlp.NewExportRequestFromMetrics(batch).MarshalProto()
		if err != nil {
			t.Fatal(err)
		}
		batch = pmetric.NewMetrics()
		resp, err := http.Post(address, "application/x-protobuf", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			t.Fatalf("%s: %s: %s", address, resp.Status, text)
		}
	}
}

// viewedPages are the compared pages. The evaluation time and the period are added.
var viewedPages = map[string]url.Values{
	"fleet":     {},
	"workloads": {},
	"cost":      {},
	"waste":     {},
	"gpu":       {"uuid": {"GPU-1"}},
	"workload":  {"id": {"job/c/ml/train/"}},
	"search":    {"q": {"train"}},
	"range":     {"chart": {"fleet-use"}},
}

// answersOf returns the pages of a hub.
func answersOf(t *testing.T, base string, v viewed) map[string]any {
	t.Helper()
	out := map[string]any{}
	for page, form := range viewedPages {
		q := url.Values{"from": {fmt.Sprint(v.end.Add(-2 * time.Hour).Unix())}, "to": {fmt.Sprint(v.end.Unix())}}
		for key := range form {
			q.Set(key, form.Get(key))
		}
		body, err := get(t, base+"/api/page/"+page+"?"+q.Encode())
		if err != nil {
			t.Fatalf("%s: %v", page, err)
		}
		var answer any
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatal(err)
		}
		out[page] = answer
	}
	return out
}

// Catches a page that shows the same history differently depending on the store, or when each sample is
// stored twice, as with an agent that is both scraped and pushes.
func TestPageOfBackends(t *testing.T) {
	t.Parallel()
	binary := gpumeter(t)
	prices := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(prices, []byte(`
currency: EUR
prices: [{match: {model: "NVIDIA *"}, rates: [{from: 2020-01-01, kind: on_demand, per_hour: 3.5}]}]
power: [{rates: [{from: 2020-01-01, per_kwh: 0.21, pue: 1.3, co2_g_per_kwh: 380}]}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Truncate(time.Minute)
	v := viewed{begin: end.Add(-3 * time.Hour), end: end, service: "pushed"}
	type place struct {
		name, url, otlp string
		page            func() string // starts a hub for it, so that caches are not compared
	}
	hub := func(args ...string) string {
		args = append([]string{"hub", "--listen", "127.0.0.1:0", "--prices", prices}, args...)
		return start(t, binary, args...).find(t, hubAddress)
	}
	own := hub("--data-dir", filepath.Join(t.TempDir(), "hub"), "--listen-grpc", "")
	places := []place{{"hub", own, own + "/v1/metrics", func() string { return hub("--backend", own) }}}
	for _, open := range []func(*testing.T) *backend{prometheus3, victoriametrics} {
		b := open(t)
		b.up("")
		places = append(places, place{b.name, b.url, b.url + b.path, func() string { return hub("--backend", b.url) }})
	}
	want := map[string]any{}
	for i, service := range []string{"pushed", "scraped"} {
		v.service = service
		for _, p := range places {
			v.send(t, p.otlp)
			has := server{t, p.url}
			eventually(t, p.name+" has the last sample", func() error { // VictoriaMetrics shows it a second later
				got, err := has.query(fmt.Sprintf("count(last_over_time(gpu_health_ratio[20s] @ %d))", v.end.Unix()))
				if err == nil && (len(got) != 1 || fmt.Sprint(got[0].Value[1]) != fmt.Sprint(6*(i+1))) {
					err = fmt.Errorf("%v", got)
				}
				return err
			})
		}
		if i == 0 {
			want = answersOf(t, own, v)
			checkViewed(t, want)
		}
		for _, p := range places {
			if diff := cmp.Diff(want, answersOf(t, p.page(), v)); diff != "" {
				t.Errorf("%s, %s (-hub +its):\n%s", p.name, service, diff)
			}
		}
	}
}

// checkViewed checks that there is something to compare.
func checkViewed(t *testing.T, pages map[string]any) {
	t.Helper()
	text, err := json.Marshal(pages)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Fleet struct {
			Headline struct{ GPUs, Held, Idle, Sick, LostPerDay float64 }
		}
		Workloads struct{ Workloads []struct{ Name string } }
		Cost      struct {
			Total struct{ Time, Cost, IdleCost float64 }
		}
		Waste struct{ Findings []any }
		GPU   struct{ Holders []any }
		Range struct{ Lines [][]any }
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	h := got.Fleet.Headline
	if h.GPUs != 6 || h.Held != 5 || h.Idle != 1 || h.Sick != 1 || h.LostPerDay != 84 {
		t.Errorf("the headline is %+v", h)
	}
	if len(got.Workloads.Workloads) != 5 || len(got.GPU.Holders) != 2 || len(got.Range.Lines) != 2 || len(got.Waste.Findings) == 0 {
		t.Errorf("%d workloads, %d holders, %d lines, %d findings", len(got.Workloads.Workloads), len(got.GPU.Holders), len(got.Range.Lines), len(got.Waste.Findings))
	}
	if c := got.Cost.Total; c.Time != 6*2*3600 || math.Abs(c.Cost-42) > 1e-4 || math.Abs(c.IdleCost-7) > 1e-4 { // each row is rounded to millionths
		t.Errorf("two hours of six GPUs are %+v", c)
	}
}
