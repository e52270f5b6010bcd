//go:build linux

package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/view"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// servingFleet is reportFleet with an engine of red on its GPU, from an hour into the month on, and a
// second one that shares it.
func servingFleet() []reportSeries {
	out := reportFleet()
	add := func(name, engine, model string, rate float64, more ...string) {
		l := map[string]string{
			"inference_engine_id": engine, "gen_ai_provider_name": "vllm", "gen_ai_request_model": model, "host_name": "n1",
			"gpu_workload_kind": "job", "gpu_workload_name": "job-red<b>", "gpu_workload_team": "red<b>", "k8s_pod_uid": "red<b>",
		}
		for i := 0; i < len(more); i += 2 {
			l[more[i]] = more[i+1]
		}
		out = append(out, reportSeries{name, l, rate, reportStart.Add(time.Hour + 210*time.Second)})
	}
	for engine, model := range map[string]string{"a": "llama", "b": "=qwen"} {
		add("inference_engine_device", engine, model, 1, "gpu_uuid", "g1", "gpu_model", "H100")
		add("inference_token_input_total", engine, model, 1000)
		add("inference_token_output_total", engine, model, map[string]float64{"a": 100, "b": 400}[engine])
		add("inference_request_finished_total", engine, model, 2, "inference_outcome", "success")
	}
	return out
}

// Catches a report on serving that divides a GPU otherwise than by weighted tokens, that says GPUs without
// tokens are a model's cost, or that shows 0 for what is not known.
func TestReportServing(t *testing.T) {
	t.Parallel()
	url := fakePrometheus(t, servingFleet())
	prices := reportPrices(t)
	// 48 EUR by 0.2*1000+100 : 0.2*1000+400.
	got, err := reportOutput(t, "serving", "--url", url, "--day", "2026-10-14", "--prices", prices)
	want := `serving by model, 2026-10-14 00:00 to 2026-10-15 00:00 UTC, EUR

MODEL  ENGINE  GPU-HOURS   COST   IDLE  TOKENS IN  TOKENS OUT  REQUESTS  COST/M  COST/M OUT  COST/M WEIGHTED  TOKENS/J
=qwen  vllm        16.00  32.00   8.00   86400000    34560000    172800  0.2646      0.9259           0.6173     4.200
llama  vllm         8.00  16.00   4.00   86400000     8640000    172800  0.1684      1.8519           0.6173     6.600
total  vllm        24.00  48.00  12.00  172800000    43200000    345600  0.2222      1.1111           0.6173     5.000

as served in the 5 minutes up to 2026-10-15 00:00 UTC; latencies are p50/p95/p99 in seconds

MODEL  WORKLOAD    GPUS  REQ/S  IN/S  OUT/S  TTFT  TPOT  E2E  RUNNING  WAITING  KV  BUSY  SM  TENSOR  MEMORY  POWER
=qwen  job-red<b>     1      2  1000    400     -     -    -        -        -   -     -   -       -       -      -
llama  job-red<b>     1      2  1000    100     -     -    -        -        -   -     -   -       -       -      -

Weighted, a token of a prompt counts as 0.2 of a token of output, and nothing if the prefix cache had it.
`
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	got, err = reportOutput(t, "serving", "--url", url, "--day", "2026-10-14", "--by", "team,model,gpu", "--input-weight", "1")
	want = `serving by team,model,gpu, 2026-10-14 00:00 to 2026-10-15 00:00 UTC

TEAM    MODEL  GPU   ENGINE  GPU-HOURS  COST  IDLE  TOKENS IN  TOKENS OUT  REQUESTS  COST/M  COST/M OUT  COST/M WEIGHTED  TOKENS/J
red<b>  =qwen  H100  vllm        13.44     -     -   86400000    34560000    172800       -           -                -     5.000
red<b>  llama  H100  vllm        10.56     -     -   86400000     8640000    172800       -           -                -     5.000
total                vllm        24.00     -     -  172800000    43200000    345600       -           -                -     5.000

as served in the 5 minutes up to 2026-10-15 00:00 UTC; latencies are p50/p95/p99 in seconds

MODEL  WORKLOAD    GPUS  REQ/S  IN/S  OUT/S  TTFT  TPOT  E2E  RUNNING  WAITING  KV  BUSY  SM  TENSOR  MEMORY  POWER
=qwen  job-red<b>     1      2  1000    400     -     -    -        -        -   -     -   -       -       -      -
llama  job-red<b>     1      2  1000    100     -     -    -        -        -   -     -   -       -       -      -

Weighted, a token of a prompt counts as 1 of a token of output, and nothing if the prefix cache had it.
Costs are absent because there are no prices: use --prices.
`
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("without prices: %v (-want +got):\n%s", err, diff)
	}
}

// Catches GPUs of the time before an engine in the cost of its tokens or in nothing at all, and a report about
// nothing that is an empty table or an error.
func TestReportServingPeriod(t *testing.T) {
	t.Parallel()
	url := fakePrometheus(t, servingFleet())
	got, err := reportOutput(t, "serving", "--url", url, "--from", "2026-10-01", "--to", "2026-10-01T02:00:00Z", "--by", "engine", "--prices", reportPrices(t))
	want := `serving by engine, 2026-10-01 00:00 to 2026-10-01 02:00 UTC, EUR

ENGINE       GPU-HOURS  COST  IDLE  TOKENS IN  TOKENS OUT  REQUESTS  COST/M  COST/M OUT  COST/M WEIGHTED  TOKENS/J
vllm              1.00  2.00  0.50    6780000     1695000     13560  0.2360      1.1799           0.6555     4.708
total             1.00  2.00  0.50    6780000     1695000     13560  0.2360      1.1799           0.6555     4.708
(no engine)       1.00  2.00  0.50          -           -         -       -           -                -         -

as served in the 5 minutes up to 2026-10-01 02:00 UTC; latencies are p50/p95/p99 in seconds

MODEL  WORKLOAD    GPUS  REQ/S  IN/S  OUT/S  TTFT  TPOT  E2E  RUNNING  WAITING  KV  BUSY  SM  TENSOR  MEMORY  POWER
=qwen  job-red<b>     1      2  1000    400     -     -    -        -        -   -     -   -       -       -      -
llama  job-red<b>     1      2  1000    100     -     -    -        -        -   -     -   -       -       -      -

Weighted, a token of a prompt counts as 0.2 of a token of output, and nothing if the prefix cache had it.
These workloads also held GPUs for 1.0 GPU-hours, for 2.00 EUR, while no engine worked on them: in no model's cost.
`
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	none := fakePrometheus(t, reportFleet())
	got, err = reportOutput(t, "serving", "--url", none, "--day", "2026-10-14")
	want = `serving by model, 2026-10-14 00:00 to 2026-10-15 00:00 UTC

The store has no inference engine in this period.
`
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("nothing: %v (-want +got):\n%s", err, diff)
	}
}

// Catches a formula in CSV, markup in HTML, an absent number that is 0 in JSON, and flags that are ignored.
func TestReportServingFormats(t *testing.T) {
	t.Parallel()
	url := fakePrometheus(t, servingFleet())
	output := func(format string, more ...string) string {
		t.Helper()
		got, err := reportOutput(t, append([]string{"serving", "--url", url, "--day", "2026-10-14", "-o", format}, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := `model,engine,gpu_hours,cost,idle_cost,tokens_in,tokens_out,requests,cost_per_million,cost_per_million_output,cost_per_million_weighted,tokens_per_joule,tokens_cached,tokens_unbilled,unpriced_hours,input_weight,currency,from,to,simulated
'=qwen,vllm,16.000000000,32.000000,8.000000,86400000,34560000,172800,0.264550265,0.925925926,0.617283951,4.200000000,,0,0.000000000,0.2,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z,none
llama,vllm,8.000000000,16.000000,4.000000,86400000,8640000,172800,0.168350168,1.851851852,0.617283951,6.600000000,,0,0.000000000,0.2,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z,none
`
	if diff := cmp.Diff(want, output("csv", "--prices", reportPrices(t))); diff != "" {
		t.Errorf("csv (-want +got):\n%s", diff)
	}
	type group struct {
		Name      string
		Providers []string
		In        json.Number `json:"tokens_in"`
		Cached    *int64      `json:"tokens_cached"`
		PerM      *float64    `json:"cost_per_million"`
	}
	var d struct {
		Kind   string
		Weight float64 `json:"input_weight"`
		Groups []group
		Total  group
	}
	if err := json.Unmarshal([]byte(output("json")), &d); err != nil {
		t.Fatal(err)
	}
	vllm := []string{"vllm"}
	if diff := cmp.Diff([]group{{"=qwen", vllm, "86400000", nil, nil}, {"llama", vllm, "86400000", nil, nil}}, d.Groups); diff != "" || d.Kind != "serving" || d.Weight != 0.2 || d.Total.In != "172800000" {
		t.Errorf("json: %+v (-want +got):\n%s", d, diff)
	}
	page := output("html", "--by", "team,model", "--prices", reportPrices(t))
	for _, good := range []string{"red&lt;b&gt; / llama", "EUR per million tokens", "0.2222", `style="--p: 66.7%"`} {
		if !strings.Contains(page, good) {
			t.Errorf("the page lacks %s:\n%s", good, page)
		}
	}
	for flag, why := range map[string]string{
		"--findings": "does not take --findings", "--explain=llama": "--explain is about", "--input-weight=2": "between 0 and 1", "--by=color": "one of model, engine", "--match=gpu_uuid=g1": "whatever its GPUs",
		"--match=gen_ai_request_model=llama": "GPUs do not have it", "--columns=cost": "--columns", "--now": "-o csv",
	} {
		if _, err := reportOutput(t, "serving", "--url", url, flag); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// Catches a report whose numbers are not those of the page, in any format, and one without latencies, queue and cache
// beside the GPUs of the same minutes.
func TestReportServedNow(t *testing.T) {
	t.Parallel()
	store := querytest.NewMemory()
	begin, end := reportStart, reportStart.Add(3*time.Hour)
	put := func(name string, v, perSecond float64, more ...string) {
		l := query.Labels{fleet.LabelName: name, "gpu_workload_kind": "deployment", "gpu_workload_name": "chat", "gpu_workload_team": "red", "k8s_namespace_name": "ml", "k8s_pod_uid": "p", "host_name": "n1"}
		for i := 0; i < len(more); i += 2 {
			l[more[i]] = more[i+1]
		}
		for at := begin; !at.After(end); at = at.Add(time.Minute) {
			store.Add(l, at, v+perSecond*at.Sub(begin).Seconds())
		}
	}
	gpu := []string{"gpu_uuid", "g1", "gpu_model", "H100", "gpu_vendor", "nvidia"}
	engine := []string{"inference_engine_id", "e", "gen_ai_provider_name", "vllm", "gen_ai_request_model", "llama"}
	for name, v := range map[string]float64{fleet.SeriesSMActive: 0.6, fleet.SeriesUtilization: 0.9, fleet.SeriesPower: 512.4, fleet.SeriesMemoryUsed: 70 << 30} {
		put(name, v, 0, gpu...)
	}
	put(fleet.SeriesPipeActive, 0.3, 0, append(gpu, "gpu_pipe", "tensor")...)
	put(fleet.SeriesAllocatedTime, 0, 1, gpu...)
	put(fleet.SeriesActiveTime, 0, 0.5, gpu...)
	put(fleet.SeriesEnergy, 0, 500, gpu...)
	put(fleet.SeriesEngineDevice, 1, 0, append(gpu, engine...)...)
	put(fleet.SeriesEngineUp, 1, 0, engine...)
	put(fleet.SeriesTokensIn, 0, 1000, engine...)
	put(fleet.SeriesTokensOut, 0, 100, engine...)
	put(fleet.SeriesFinished, 0, 1.5, append(engine, "inference_outcome", "success")...)
	put(fleet.SeriesFinished, 0, 0.5, append(engine, "inference_outcome", "error")...)
	put(fleet.SeriesRequests, 7, 0, append(engine, "inference_request_state", "running")...)
	put(fleet.SeriesRequests, 12, 0, append(engine, "inference_request_state", "waiting")...)
	put(fleet.SeriesKVCache, 0.97, 0, append(engine, "inference_cache_tier", "gpu")...)
	for name, scale := range map[string]float64{fleet.HistogramFirstToken: 1, fleet.HistogramPerToken: 0.1, fleet.HistogramRequest: 10} {
		for le, n := range map[float64]float64{0.5: 1, 2: 2} {
			put(fleet.Buckets(name), 0, n, append(engine, "le", fmt.Sprint(scale*le))...)
		}
		put(fleet.Buckets(name), 0, 2, append(engine, "le", "+Inf")...)
	}
	server := httptest.NewServer(hub.NewHandler(store, nil, hub.HandlerOptions{}))
	t.Cleanup(server.Close)
	file := reportPrices(t)
	args := []string{"serving", "--url", server.URL, "--from", begin.Format(time.RFC3339), "--to", end.Format(time.RFC3339), "--prices", file}
	output := func(more ...string) string {
		t.Helper()
		got, err := reportOutput(t, append(args, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	row := "llama  ml/chat      1      2  1000    100  0.5/1.85/1.97  0.05/0.185/0.197  5/18.5/19.7        7       12  97 %  90 %  60 %    30 %  70 GiB  512 W\n"
	if got := output(); !strings.Contains(got, row) {
		t.Errorf("the table lacks\n%s\n%s", row, got)
	}
	page := output("-o", "html")
	for _, good := range []string{"<td>0.5/1.85/1.97</td>", "<td>70 GiB</td>", "as served in the 5 minutes up to 2026-10-01 03:00 UTC"} {
		if !strings.Contains(page, good) {
			t.Errorf("the page lacks %s:\n%s", good, page)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(output("-o", "csv", "--now"))).ReadAll()
	if err != nil || len(rows) != 2 {
		t.Fatalf("%v, %d rows", err, len(rows))
	}
	cells := map[string]string{}
	for i, name := range rows[0] {
		cells[name] = rows[1][i]
	}
	for name, want := range map[string]string{
		"model": "llama", "workload": "ml/chat", "team": "red", "engine": "vllm", "engines_up": "1", "requests_failed_per_second": "0.5", "requests_aborted_per_second": "", "requests_waiting": "12",
		"time_to_first_token_p99_seconds": "1.97", "queue_p50_seconds": "", "kv_cache_ratio": "0.97", "tensor_active_ratio": "0.3", "memory_used_bytes": "75161927680", "power_watts": "512.4", "at": "2026-10-01T03:00:00Z", "window_seconds": "300",
	} {
		if cells[name] != want {
			t.Errorf("%s is %q, want %q", name, cells[name], want)
		}
	}

	// The page of the same store at the same time.
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	prices, err := cost.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	h := view.Handler(store, view.Cost(store, prices, nil), nil, view.Options{Now: func() time.Time { return end }})
	h.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/serving?from=%d", begin.Unix()), nil))
	type percents struct{ P50, P95, P99 float64 }
	type numbers struct {
		PerMillion, PerOutput, PerWeighted, PerJoule, Cost, Idle float64
		In, Out, Requests                                        float64
		TTFT, TPOT, E2E                                          percents
		TokensOut, Waiting, Cache, SM, Tensor, Memory, Power     float64
	}
	var shown struct {
		Serving []struct {
			TTFT, TPOT, E2E                                        percents
			TokensOut, Waiting, KVCache, SM, Tensor, Memory, Watts float64
			Period                                                 struct {
				PerMillion, PerMillionOutput, PerMillionWeighted, TokensPerJoule, Cost, IdleCost, TokensIn, TokensOut, Requests float64
			}
		}
	}
	if err := json.Unmarshal(recorder.Body.Bytes(), &shown); err != nil || len(shown.Serving) != 1 {
		t.Fatalf("%v: %s", err, recorder.Body)
	}
	var told struct {
		Groups []struct {
			PerMillion  float64 `json:"cost_per_million"`
			PerOutput   float64 `json:"cost_per_million_output"`
			PerWeighted float64 `json:"cost_per_million_weighted"`
			PerJoule    float64 `json:"tokens_per_joule"`
			Used        float64 `json:"used_cost"`
			Idle        float64 `json:"idle_cost"`
			In          float64 `json:"tokens_in"`
			Out         float64 `json:"tokens_out"`
			Requests    float64 `json:"requests"`
		}
		Now struct {
			Rows []struct {
				TTFT    percents `json:"time_to_first_token_seconds"`
				TPOT    percents `json:"time_per_output_token_seconds"`
				E2E     percents `json:"request_seconds"`
				Out     float64  `json:"tokens_out_per_second"`
				Waiting float64  `json:"requests_waiting"`
				Cache   float64  `json:"kv_cache_ratio"`
				SM      float64  `json:"sm_active_ratio"`
				Tensor  float64  `json:"tensor_active_ratio"`
				Memory  float64  `json:"memory_used_bytes"`
				Power   float64  `json:"power_watts"`
			}
		}
	}
	if err := json.Unmarshal([]byte(output("-o", "json")), &told); err != nil || len(told.Groups) != 1 || len(told.Now.Rows) != 1 {
		t.Fatalf("%v: %+v", err, told)
	}
	s, p, g, n := shown.Serving[0], shown.Serving[0].Period, told.Groups[0], told.Now.Rows[0]
	onPage := numbers{p.PerMillion, p.PerMillionOutput, p.PerMillionWeighted, p.TokensPerJoule, p.Cost, p.IdleCost, p.TokensIn, p.TokensOut, p.Requests, s.TTFT, s.TPOT, s.E2E, s.TokensOut, s.Waiting, s.KVCache, s.SM, s.Tensor, s.Memory, s.Watts}
	inReport := numbers{g.PerMillion, g.PerOutput, g.PerWeighted, g.PerJoule, g.Used + g.Idle, g.Idle, g.In, g.Out, g.Requests, n.TTFT, n.TPOT, n.E2E, n.Out, n.Waiting, n.Cache, n.SM, n.Tensor, n.Memory, n.Power}
	if diff := cmp.Diff(onPage, inReport); diff != "" || p.Cost != 6 || p.TokensOut != 1080000 {
		t.Errorf("(-page +report):\n%s\n%+v", diff, onPage)
	}
}
