//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// engineMetric is a metric of an engine and what the agent calls it.
type engineMetric struct {
	theirs, ours string
	kind         metricKind
}

type metricKind int

const (
	whole    metricKind = iota // numbers of things
	fraction                   // seconds
	histogram
)

// vllmMetrics and llamaMetrics are what the engines of the tests have. llama.cpp has no histograms.
var (
	vllmMetrics = []engineMetric{
		{"vllm:time_to_first_token_seconds", "gen_ai_server_time_to_first_token_seconds", histogram},
		{"vllm:inter_token_latency_seconds", "inference_inter_token_latency_seconds", histogram},
		{"vllm:e2e_request_latency_seconds", "gen_ai_server_request_duration_seconds", histogram},
		{"vllm:request_queue_time_seconds", "inference_request_queue_duration_seconds", histogram},
		{"vllm:request_prefill_time_seconds", "inference_request_prefill_duration_seconds", histogram},
		{"vllm:request_decode_time_seconds", "inference_request_decode_duration_seconds", histogram},
		{"vllm:request_inference_time_seconds", "inference_request_inference_duration_seconds", histogram},
		{"vllm:request_prompt_tokens", `inference_request_token{gen_ai_token_type="input"}`, histogram},
		{"vllm:request_generation_tokens", `inference_request_token{gen_ai_token_type="output"}`, histogram},
		{"vllm:prompt_tokens_total", "inference_token_input_total", whole},
		{"vllm:generation_tokens_total", "inference_token_output_total", whole},
		{"vllm:request_success_total", "inference_request_finished_total", whole},
	}
	llamaMetrics = []engineMetric{
		{"llamacpp:tokens_predicted_total", "inference_token_output_total", whole},
		{"llamacpp:prompt_tokens_cached_total", "inference_prefix_cache_hits_total", whole},
		{"llamacpp:prompt_seconds_total", "inference_request_prefill_time_seconds_total", fraction},
		{"llamacpp:tokens_predicted_seconds_total", "inference_request_decode_time_seconds_total", fraction},
		{"llamacpp:requests_processing", `inference_request_count{inference_request_state="running"}`, whole},
	}
)

// Catches quantiles, counts and tokens that are not to the last digit what a Prometheus has that reads the engine
// itself, on the agent's page and in a hub, also over a restart of the engine.
//
// Rates of two databases differ, because they read at different times. Values at moments when nothing happens
// do not, and neither does what was added between two of them.
func TestInferenceQuantiles(t *testing.T) {
	t.Parallel()
	f := func(name string, open func(*testing.T) *engine) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testQuantiles(t, open(t))
		})
	}
	f("llm-d", vllmLike)
	f("llama.cpp", llama)
}

func testQuantiles(t *testing.T, e *engine) {
	b := prometheus3(t)
	binary := gpumeter(t)
	e.start()
	address := start(t, binary, "hub", "--data-dir", filepath.Join(t.TempDir(), "hub"), "--listen", "127.0.0.1:0", "--listen-grpc", "").find(t, hubAddress)
	page := start(t, binary, "agent", "--no-inference", "--inference-target", e.url("/metrics"), "--interval", "1s", "--slow-interval", "1s",
		"--listen", "127.0.0.1:0", "--socket", "", "--state-dir", t.TempDir(), "--no-standby", "--no-cloud", "--host-name", "host-a", "--otlp-endpoint", address).find(t, pageAddress)
	b.edit = func(config string) string {
		return strings.Replace(config, "  - job_name: gpus\n", fmt.Sprintf("  - job_name: engine\n    static_configs: [{targets: [%q]}]\n  - job_name: gpus\n", "127.0.0.1:"+e.port), 1)
	}
	b.up(strconv.Quote(page))
	q := &quantiles{engine: e, direct: b.server, paths: map[string]server{"the page": b.server, "the hub": {t, address}}}

	// What the engine did not say of itself, when it started, the agent does not know: it counts from here.
	q.settle(time.Now())
	e.load(40, func(i int) int { return 1 + i%13 })
	first := q.settle(time.Now())
	q.compare(at(first), at(first), true)

	e.load(24, func(i int) int { return 20 + 2*i })
	second := q.settle(time.Now())
	q.compare(at(second), at(second), true)
	q.compare(between(first, second), between(first, second), false)

	// What a new process has counted is what it has. To the agent this is the same engine: its totals go on.
	e.kill()
	e.start()
	e.load(16, func(i int) int { return 1 + 5*i })
	third := q.settle(time.Now())
	q.compare(at(third), between(second, third), false)
}

// quantiles compares what a Prometheus reads from the engine with what it reads from the agent, and with what the
// agent sends to a hub.
type quantiles struct {
	engine *engine
	direct server
	paths  map[string]server
}

const fromEngine = `{job="engine"}`

// settle waits until all have read the engine after a time, and returns a time after that.
func (q *quantiles) settle(end time.Time) time.Time {
	t, hub := q.engine.t, q.paths["the hub"]
	t.Helper()
	q.direct.wait(fmt.Sprintf("timestamp(up%s) > %s and up == 1", fromEngine, seconds(end)))
	// Points of the hub have the time of the tick, the page's that of the scrape. How long a reading took
	// identifies it.
	hub.wait(fmt.Sprintf("timestamp(inference_scrape_up) > %s and inference_scrape_up == 1", seconds(end)))
	got, err := hub.query(fmt.Sprintf("inference_scrape_duration_seconds and timestamp(inference_scrape_duration_seconds) > %s", seconds(end)))
	if err != nil || len(got) != 1 {
		t.Fatalf("%d readings, err %v", len(got), err)
	}
	took := got[0].Value[1].(string)
	eventually(t, "Prometheus scrapes the reading that took "+took+" s", func() error {
		values, err := q.paths["the page"].history(`inference_scrape_duration_seconds{job="gpus"}[5m]`)
		if err == nil && !slices.ContainsFunc(values, func(s sample) bool { return s.value == took }) {
			err = fmt.Errorf("it has %v", values)
		}
		return err
	})
	return time.Now()
}

// history returns the samples of a range of the only series that has any.
func (s server) history(selector string) ([]sample, error) {
	list, err := s.histories(selector)
	if err != nil {
		return nil, err
	}
	if n := len(list); n != 1 {
		return nil, fmt.Errorf("%d series of %s", n, selector)
	}
	return list[0], nil
}

// histories returns the samples of a range by series.
func (s server) histories(selector string) ([][]sample, error) {
	body, err := get(s.t, s.url+"/api/v1/query?"+url.Values{"query": {selector}}.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct{ Result []struct{ Values []sample } }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return nil, err
	}
	var list [][]sample
	for _, r := range answer.Data.Result {
		list = append(list, r.Values)
	}
	return list, nil
}

// total returns an expression for a sum of series.
type total func(aggregation, selector string) string

// at returns totals of the last values at a moment.
func at(when time.Time) total {
	return func(aggregation, selector string) string {
		return fmt.Sprintf("%s (last_over_time(%s[1m] @ %s))", aggregation, selector, seconds(when))
	}
}

// between returns totals of what was added between two moments. Series that were not there before began at 0.
func between(from, to time.Time) total {
	return func(aggregation, selector string) string {
		now, before := at(to)(aggregation, selector), at(from)(aggregation, selector)
		return fmt.Sprintf("(%s - (%s or 0 * %s))", now, before, now)
	}
}

// compare compares totals of the engine's own series with totals of the agent's. sums: those of seconds, too.
// What a process that has ended contributed costs them their last digit.
func (q *quantiles) compare(theirs, ours total, sums bool) {
	q.engine.t.Helper()
	for _, family := range q.engine.metrics {
		name, labels, _ := strings.Cut(family.ours, "{")
		pair := func(aggregation, suffix string) [2]string {
			return [2]string{theirs(aggregation, family.theirs+suffix+fromEngine), ours(aggregation, name+suffix+fromAgent(labels))}
		}
		if family.kind != histogram {
			if sums || family.kind == whole {
				q.same(family.theirs, pair("sum", ""))
			}
			continue
		}
		buckets := pair("sum by (le)", "_bucket")
		q.same(family.theirs+" by bucket", buckets)
		for _, quantile := range []string{"0.5", "0.95", "0.99"} {
			of := func(query string) string { return "histogram_quantile(" + quantile + ", " + query + ")" }
			q.same(family.theirs+" quantile "+quantile, [2]string{of(buckets[0]), of(buckets[1])})
		}
		q.same(family.theirs+" count", pair("sum", "_count"))
		if sums {
			q.same(family.theirs+" sum", pair("sum", "_sum"))
		}
	}
}

// fromAgent returns a selector for what the agent says, with more labels as in a}.
func fromAgent(labels string) string {
	if labels = strings.TrimSuffix(labels, "}"); labels != "" {
		labels += ", "
	}
	return "{" + labels + `job=~"gpus|gpumeter"}`
}

// same compares the answer of the direct Prometheus to one query with the answers to another.
func (q *quantiles) same(what string, queries [2]string) {
	t := q.engine.t
	t.Helper()
	want := answered(q.direct, queries[0])
	if want == "" || strings.Contains(want, "NaN") {
		t.Errorf("%s: %s is %q", what, queries[0], want)
	}
	for name, path := range q.paths {
		if diff := cmp.Diff(want, answered(path, queries[1])); diff != "" {
			t.Errorf("%s (-the engine's own +%s):\n%s%s", what, name, diff, queries[1])
		}
	}
}

// answered returns the answer to a query as text.
func answered(s server, query string) string {
	s.t.Helper()
	got, err := s.query(query)
	if err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	lines := make([]string, len(got))
	for i, x := range got {
		delete(x.Metric, "__unit__") // nobody says the unit of vLLM's
		delete(x.Metric, "__type__")
		sameBounds(x.Metric)
		lines[i] = fmt.Sprintf("%v %s", x.Metric, x.Value[1])
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
