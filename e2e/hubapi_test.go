//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
)

var hubAddress = regexp.MustCompile(`The hub is serving.*"url": ?"([^"]+)/"`)

// hubQueries are typical of dashboards, the page and reports.
var hubQueries = []string{
	`gpu_power_draw_watts`,
	`sum(gpu_power_draw_watts)`,
	`sum by (host_name) (gpu_power_draw_watts)`,
	`avg by (gpu_model) (gpu_utilization_ratio)`,
	`topk(3, gpu_power_draw_watts)`,
	`quantile(0.9, gpu_power_draw_watts)`,
	`gpu_power_draw_watts > 150 and on (gpu_uuid) gpu_utilization_ratio > 0.2`,
	`gpu_energy_joules_total`,
	`gpu_energy_joules_total[5m]`,
	`increase(gpu_energy_joules_total[5m])`,
	`rate(gpu_energy_joules_total[1m])`,
	`sum by (gpu_workload_team) (increase(gpu_workload_energy_joules_total[10m]))`,
	`resets(gpu_workload_energy_joules_total[10m])`,
	`changes(gpu_power_draw_watts[5m])`,
	`avg_over_time(gpu_power_draw_watts[2m])`,
	`max_over_time(sum(gpu_power_draw_watts)[5m:30s])`,
	`histogram_quantile(0.9, sum by (le) (rate(op_duration_seconds_bucket[5m])))`,
	`op_duration_seconds_sum / op_duration_seconds_count`,
	`histogram_quantile(0.5, exp_duration_seconds)`,
	`histogram_count(increase(exp_duration_seconds[5m]))`,
	`exp_duration_seconds`,
	`gpu_power_draw_watts * on (job, instance) group_left (os_type) target_info`,
	`target_info`,
	`absent(nothing)`,
	`count_values("v", gpu_power_draw_watts)`,
	`label_replace(gpu_power_draw_watts, "short", "$1", "gpu_uuid", "GPU-(.*)")`,
	`time() - timestamp(gpu_power_draw_watts)`,
	`gpu_power_draw_watts offset 1m`,
	`ended`,
	`ended[10m]`,
	`count({__name__=~"gpu_.+"})`,
	`1 + 1`,
	`vector(time())`,
	`"text"`,
	`predict_linear(gpu_energy_joules_total[5m], 60)`,
}

// Catches a hub that answers differently from Prometheus for the same OTLP input.
func TestHubAnswersAsPrometheus(t *testing.T) {
	t.Parallel()
	b := prometheus3(t)
	// The hub always does this: the value before the first sample of a counter is not lost.
	b.args = slices.DeleteFunc(b.args, func(a string) bool { return strings.HasPrefix(a, "--enable-feature") })
	b.args = append(b.args, "--enable-feature=created-timestamp-zero-ingestion")
	b.up("")
	h := start(t, gpumeter(t), "hub", "--data-dir", filepath.Join(t.TempDir(), "hub"), "--listen", "127.0.0.1:0", "--listen-grpc", "")
	address := h.find(t, hubAddress)

	end := time.Now().Truncate(time.Second)
	const steps, step = 40, 15 * time.Second
	for i := range steps {
		body, err := pmetricotlp.NewExportRequestFromMetrics(hubInput(end.Add(time.Duration(i-steps+1)*step), end.Add(-steps*step), i)).MarshalProto()
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{b.url + b.path, address + "/v1/metrics"} {
			resp, err := http.Post(to, "application/x-protobuf", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s %s", to, resp.Status, text)
			}
		}
	}
	at := url.Values{"time": {seconds(end)}}
	span := url.Values{"start": {seconds(end.Add(-10 * time.Minute))}, "end": {seconds(end)}, "step": {"20"}}
	for _, expr := range hubQueries {
		same(t, b.url, address, "/api/v1/query", at, url.Values{"query": {expr}})
		if !strings.HasSuffix(expr, "]") && expr != `"text"` {
			same(t, b.url, address, "/api/v1/query_range", span, url.Values{"query": {expr}})
		}
	}
	times := url.Values{"start": {seconds(end.Add(-time.Hour))}, "end": {seconds(end)}}
	gpus := url.Values{"match[]": {`{__name__=~"gpu_.+"}`}}
	for path, form := range map[string]url.Values{
		"/api/v1/series": gpus, "/api/v1/labels": gpus, "/api/v1/label/gpu_uuid/values": gpus, "/api/v1/label/__name__/values": {}, "/api/v1/label/host_name/values": {},
	} {
		same(t, b.url, address, path, times, form)
	}
	for _, bad := range []string{"sum(", "gpu_power_draw_watts + on() group_left() gpu_power_draw_watts", "foo{", ""} {
		same(t, b.url, address, "/api/v1/query", at, url.Values{"query": {bad}})
	}
}

// same sends the same request to two servers by GET and by POST.
func same(t *testing.T, prometheus, hub, path string, forms ...url.Values) {
	t.Helper()
	form := url.Values{}
	for _, f := range forms {
		maps.Copy(form, f)
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if method == http.MethodPost && strings.Contains(path, "/label/") {
			continue // not in Prometheus
		}
		want, got := hubAnswer(t, method, prometheus+path, form), hubAnswer(t, method, hub+path, form)
		if text := brief(want); strings.Contains(text, `"result":[]`) && form.Get("query") != "ended" {
			t.Errorf("%s returns nothing: there is no such data", form["query"])
		}
		if !alike(want, got) {
			t.Errorf("%s %s %s\nPrometheus: %s\n       hub: %s", method, path, form["query"], brief(want), brief(got))
		}
	}
}

func brief(v any) string {
	text, _ := json.Marshal(v)
	if len(text) > 1500 {
		text = text[:1500]
	}
	return string(text)
}

// hubAnswer returns a response in a comparable form: results are unordered.
func hubAnswer(t *testing.T, method, target string, form url.Values) any {
	t.Helper()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader(form.Encode())
	} else {
		target += "?" + form.Encode()
	}
	r, err := http.NewRequestWithContext(t.Context(), method, target, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var all map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	all["code"] = float64(resp.StatusCode)
	delete(all, "warnings")
	delete(all, "infos")
	if all["status"] == "error" {
		delete(all, "error") // the wording may differ
	}
	list, _ := all["data"].([]any)
	if data, ok := all["data"].(map[string]any); ok {
		list, _ = data["result"].([]any)
	}
	slices.SortFunc(list, func(a, b any) int { return strings.Compare(brief(labelsOf(a)), brief(labelsOf(b))) })
	return all
}

func labelsOf(v any) any {
	if m, ok := v.(map[string]any); ok && m["metric"] != nil {
		return m["metric"]
	}
	return v
}

// alike compares JSON. The last digit of a sum depends on the order of the series.
func alike(a, b any) bool {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k := range x {
			if !alike(x[k], y[k]) {
				return false
			}
		}
		return true
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !alike(x[i], y[i]) {
				return false
			}
		}
		return true
	case string:
		y, ok := b.(string)
		if ok && x != y {
			var f, g float64
			if _, err := fmt.Sscan(x, &f); err == nil {
				if _, err := fmt.Sscan(y, &g); err == nil {
					return math.Abs(f-g) <= 1e-12*math.Abs(f)
				}
			}
		}
		return ok && x == y
	default:
		return a == b
	}
}

// hubInput returns the metrics of a small fleet at step i.
func hubInput(at, start time.Time, i int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	now, began := pcommon.NewTimestampFromTime(at), pcommon.NewTimestampFromTime(start)
	for node := range 2 {
		rm := md.ResourceMetrics().AppendEmpty()
		name := fmt.Sprintf("node-%d", node)
		for k, v := range map[string]string{"host.name": name, "service.name": "gpumeter", "service.instance.id": name, "os.type": "linux"} {
			rm.Resource().Attributes().PutStr(k, v)
		}
		ms := rm.ScopeMetrics().AppendEmpty().Metrics()
		metric := func(name, unit string) pmetric.Metric {
			m := ms.AppendEmpty()
			m.SetName(name)
			m.SetUnit(unit)
			return m
		}
		gauge := func(m pmetric.Metric) pmetric.NumberDataPointSlice { return m.SetEmptyGauge().DataPoints() }
		sum := func(m pmetric.Metric) pmetric.NumberDataPointSlice {
			s := m.SetEmptySum()
			s.SetIsMonotonic(true)
			s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			return s.DataPoints()
		}
		power, use := gauge(metric("gpu.power.draw", "W")), gauge(metric("gpu.utilization", "1"))
		energy, work := sum(metric("gpu.energy", "J")), sum(metric("gpu.workload.energy", "J"))
		put := func(to pmetric.NumberDataPointSlice, gpu int, began pcommon.Timestamp, v float64, attrs ...string) {
			p := to.AppendEmpty()
			p.SetTimestamp(now)
			p.SetStartTimestamp(began)
			p.SetDoubleValue(v)
			p.Attributes().PutStr("gpu.uuid", fmt.Sprintf("GPU-%d%d", node, gpu))
			p.Attributes().PutStr("gpu.model", "H100")
			for k := 0; k < len(attrs); k += 2 {
				p.Attributes().PutStr(attrs[k], attrs[k+1])
			}
		}
		for gpu := range 3 {
			v := 100 + 10*float64(gpu) + 50*math.Sin(float64(i+node))
			put(power, gpu, 0, v)
			put(use, gpu, 0, v/200)
			put(energy, gpu, began, float64(i+1)*v)
			if i >= 10 { // a workload that starts in between
				put(work, gpu, pcommon.NewTimestampFromTime(start.Add(10*15*time.Second+7*time.Second)), float64(i-9)*v/3, "gpu.workload.team", fmt.Sprintf("team-%d", gpu))
			}
		}
		ended := gauge(metric("ended", "")).AppendEmpty()
		ended.SetTimestamp(now)
		ended.SetDoubleValue(1)
		ended.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(i >= 30))
		hm := metric("op.duration", "s").SetEmptyHistogram()
		hm.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		h := hm.DataPoints().AppendEmpty()
		h.SetTimestamp(now)
		h.SetStartTimestamp(began)
		h.SetCount(uint64(6 * i))
		h.SetSum(float64(i) * 1.5)
		h.ExplicitBounds().FromRaw([]float64{0.001, 0.1, 10})
		h.BucketCounts().FromRaw([]uint64{uint64(i), uint64(2 * i), uint64(2 * i), uint64(i)})
		em := metric("exp.duration", "s").SetEmptyExponentialHistogram()
		em.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		e := em.DataPoints().AppendEmpty()
		e.SetTimestamp(now)
		e.SetStartTimestamp(began)
		e.SetScale(10)
		e.SetCount(uint64(8 * i))
		e.SetSum(float64(i) * 9)
		e.SetZeroCount(uint64(i))
		e.Positive().SetOffset(-5)
		e.Positive().BucketCounts().FromRaw([]uint64{uint64(i), 0, uint64(2 * i), 0, 0, 0, 0, 0, 0, 0, 0, 0, uint64(4 * i)})
	}
	return md
}
