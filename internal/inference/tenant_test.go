package inference

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// Catches tokens of tenants that are mixed up, lost or counted twice, "None" as a tenant, latencies that fall apart by
// tenant, and labels of people that leave the machine unasked.
func TestTenants(t *testing.T) {
	t.Parallel()
	sglang := `# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m",tenant="red",user="ann"} 5
sglang:prompt_tokens_total{model_name="m",tenant="red",user="bob"} 7
sglang:prompt_tokens_total{model_name="m",tenant="blue"} 11
sglang:prompt_tokens_total{model_name="m"} 1
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{model_name="m",tenant="red",le="1"} 1
sglang:time_to_first_token_seconds_bucket{model_name="m",tenant="red",le="+Inf"} 1
sglang:time_to_first_token_seconds_bucket{model_name="m",tenant="blue",le="1"} 2
sglang:time_to_first_token_seconds_bucket{model_name="m",tenant="blue",le="+Inf"} 2
`
	litellm := `# TYPE litellm_input_tokens_metric_total counter
litellm_input_tokens_metric_total{model="hosted_vllm/m",team="7f3a",team_alias="red",api_key_alias="k1",end_user="ann"} 5
litellm_input_tokens_metric_total{model="hosted_vllm/m",team="7f3a",team_alias="red",api_key_alias="k2",end_user="bob"} 6
litellm_input_tokens_metric_total{model="hosted_vllm/m",team="None",team_alias="None",api_key_alias="batch",end_user="None"} 9
litellm_input_tokens_metric_total{model="hosted_vllm/m",team="None",team_alias="None",api_key_alias="None",end_user="eve"} 2
`
	f := func(page string, labels, want []string) {
		t.Helper()
		if diff := cmp.Diff(want, lines(Read(promtext.Scan([]byte(page)), "", labels...))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	first := "gen_ai.server.time_to_first_token{name=sglang model=m} count 3 sum NaN bounds 1 1 to 1"
	f(sglang, Tenants(), []string{
		first,
		"inference.token.input{name=sglang model=m tenant=blue} 11", "inference.token.input{name=sglang model=m tenant=red} 12", "inference.token.input{name=sglang model=m} 1",
	})
	f(sglang, nil, []string{first, "inference.token.input{name=sglang model=m} 24"})
	f(litellm, Tenants(), []string{
		"inference.frontend.token{name=litellm model=hosted_vllm/m type=input tenant=batch} 9",
		"inference.frontend.token{name=litellm model=hosted_vllm/m type=input tenant=red} 11",
		"inference.frontend.token{name=litellm model=hosted_vllm/m type=input} 2",
	})
}

// Catches requests that count as finished well and as aborted, because SGLang does not say whose requests were aborted,
// and requests of hours that count as those of the last reading once that is known.
func TestAbortedOfTenants(t *testing.T) {
	t.Parallel()
	const all = "sglang:num_requests_total{tenant=\"a\"} %d\nsglang:num_requests_total{tenant=\"b\"} 4\n"
	for _, tt := range []struct {
		name, aborted string
		want          []string
	}{
		{"nobody's", "sglang:num_aborted_requests_total{tenant=\"\"} 2\n", []string{
			"0: {name=sglang outcome=success tenant=a} 7 since 0", "0: {name=sglang outcome=success tenant=b} 4 since 0",
			"1: {name=sglang tenant=a} 9 since 0", "1: {name=sglang tenant=b} 4 since 0",
		}},
		{"of a tenant", "sglang:num_aborted_requests_total{tenant=\"a\"} 2\n", []string{
			"0: {name=sglang outcome=success tenant=a} 7 since 0", "0: {name=sglang outcome=success tenant=b} 4 since 0",
			"1: {name=sglang outcome=success tenant=a} 7 since 0", "1: {name=sglang outcome=success tenant=b} 4 since 0", "1: {name=sglang outcome=abort tenant=a} 2 since 10",
		}},
	} {
		g := &Growth{Watched: second(-1)}
		var got []string
		for i, page := range []string{fmt.Sprintf(all, 7), fmt.Sprintf(all, 9) + tt.aborted} {
			r := Read(promtext.Scan([]byte(page)), "", Tenants()...)
			if err := g.Follow(r, second(10+10*i), second(0)); err != nil {
				t.Fatal(err)
			}
			for _, p := range r.Points {
				line := strings.TrimPrefix(lines(&Reading{Points: []Point{p}})[0], p.Metric.Name)
				got = append(got, fmt.Sprintf("%d: %s since %v", i, line, p.Since.Sub(second(0)).Seconds()))
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
