//go:build linux

package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
		out = append(out, reportSeries{name, l, rate, reportStart.Add(time.Hour)})
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

A token of a prompt counts as 0.2 of a token of output, and nothing if the prefix cache had it.
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

A token of a prompt counts as 1 of a token of output, and nothing if the prefix cache had it.
Costs are absent because there are no prices: use --prices.
`
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("without prices: %v (-want +got):\n%s", err, diff)
	}
}

// Catches GPUs of the time before engines were counted in the cost of their tokens, and a report about
// nothing that is an empty table or an error.
func TestReportServingPeriod(t *testing.T) {
	t.Parallel()
	url := fakePrometheus(t, servingFleet())
	got, err := reportOutput(t, "serving", "--url", url, "--from", "2026-10-01", "--to", "2026-10-01T02:00:00Z", "--by", "engine", "--prices", reportPrices(t))
	want := `serving by engine, 2026-10-01 01:00 to 2026-10-01 02:00 UTC, EUR

ENGINE  GPU-HOURS  COST  IDLE  TOKENS IN  TOKENS OUT  REQUESTS  COST/M  COST/M OUT  COST/M WEIGHTED  TOKENS/J
vllm         1.00  2.00  0.50    7200000     1800000     14400  0.2222      1.1111           0.6173     5.000
total        1.00  2.00  0.50    7200000     1800000     14400  0.2222      1.1111           0.6173     5.000

The store has no inference engine before about 2026-10-01 01:00 UTC: the report begins there.
A token of a prompt counts as 0.2 of a token of output, and nothing if the prefix cache had it.
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
		"--findings": "no --findings", "--explain=llama": "--explain is about", "--input-weight=2": "between 0 and 1", "--by=color": "one of model, engine", "--match=gpu_uuid=g1": "whatever its GPUs",
		"--match=gen_ai_request_model=llama": "GPUs do not have it", "--columns=cost": "--columns",
	} {
		if _, err := reportOutput(t, "serving", "--url", url, flag); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
