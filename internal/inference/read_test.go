package inference

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

var update = flag.Bool("update", false, "write the golden files")

// lines writes points for people: attributes without their namespaces.
func lines(r *Reading) []string {
	out := make([]string, 0, len(r.Points))
	for i := range r.Points {
		p := &r.Points[i]
		var attrs []string
		for _, a := range p.Attrs {
			attrs = append(attrs, a.Name[strings.LastIndexByte(a.Name, '.')+1:]+"="+a.Value)
		}
		text := fmt.Sprintf("%s{%s} ", p.Metric.Name, strings.Join(attrs, " "))
		if p.Buckets != nil {
			text += fmt.Sprintf("count %d sum %v bounds %d", p.Count, p.Sum, len(p.Bounds))
			if n := len(p.Bounds); n > 0 {
				text += fmt.Sprintf(" %v to %v", p.Bounds[0], p.Bounds[n-1])
			}
		} else {
			text += fmt.Sprint(p.Value)
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// fixtures are real pages, and excerpts of them, with the file that has our points of each and the engine that must be
// among its providers. The points were compared with the page and with what the engine documents, by hand.
var fixtures = map[string]struct{ golden, engine string }{
	"bentoml/bentoml_datadog.txt":                      {"bentoml", ""},
	"dynamo/dynamo_docs_sglang_excerpt.txt":            {"dynamo_sglang", "sglang"},
	"dynamo/dynamo_docs_tensorrt-llm_excerpt.txt":      {"dynamo_tensorrt_llm", "tensorrt_llm"},
	"dynamo/dynamo_docs_vllm_excerpt.txt":              {"dynamo_vllm", "vllm"},
	"dynamo/dynamo_system_metrics_readme.txt":          {"dynamo_worker", "dynamo"},
	"litellm/litellm_datadog.txt":                      {"litellm", "litellm"},
	"litellm/litellm_renamed_datadog.txt":              {"litellm_renamed", "litellm"},
	"llamacpp/llamacpp_2025-08_kvcache_gauges.txt":     {"llama_cpp_2025", "llama_cpp"},
	"llamacpp/llamacpp_2026_b10298_head_excerpt.txt":   {"llama_cpp_2026", "llama_cpp"},
	"llamacpp/llamacpp_idle_values_only.txt":           {"llama_cpp_idle", "llama_cpp"},
	"lmdeploy/synthetic_lmdeploy_v0.16.0.txt":          {"lmdeploy_0.16.0", "lmdeploy"},
	"nim/nim_llm_datadog_2024-11.txt":                  {"nim_1", "nvidia_nim"},
	"ray/ray_head_datadog.txt":                         {"ray_serve", "ray_serve"},
	"ray/ray_vllm_v0_ray2.32_datadog.txt":              {"vllm_ray_2.32", "vllm"},
	"sglang/sglang_docs_sample_high_load.txt":          {"sglang_0.4", "sglang"},
	"sglang/sglang_v0.3.5.post1_docs_sample.txt":       {"sglang_0.3.5", "sglang"},
	"sglang/synthetic_sglang_v0.5.18.txt":              {"sglang_0.5.18", "sglang"},
	"tei/tei_cpu_2026-07_excerpt.txt":                  {"tei", "tei"},
	"tei/tei_opea_docs_excerpt.txt":                    {"tei_cut_off", "tei"},
	"tgi/tgi_datadog_payload.txt":                      {"tgi", "tgi"},
	"torchserve/torchserve_datadog.txt":                {"torchserve", ""},
	"triton/triton_datadog_docker_metrics.txt":         {"triton", "triton"},
	"triton/triton_docs_histogram_summary_excerpt.txt": {"triton_summaries", "triton"},
	"triton/triton_vllm_backend_readme.txt":            {"triton_vllm", "vllm"},
	"triton/trtllm_backend_inflight_excerpt.txt":       {"triton_tensorrt_llm", "tensorrt_llm"},
	"triton/trtllm_backend_v1_excerpt.txt":             {"triton_tensorrt_llm_v1", "tensorrt_llm"},
	"trtllm/synthetic_trtllm_serve_prometheus.txt":     {"trtllm_serve", "tensorrt_llm"},
	"vllm/vllm_design_doc_excerpt.txt":                 {"vllm_design", "vllm"},
	"vllm/vllm_v0.26.0_family_names_types.txt":         {"vllm_0.26.0", "vllm"},
	"vllm/vllm_v0.5.0_opt125m_datadog.txt":             {"vllm_0.5.0", "vllm"},
	"ollama/ollama_api_ps.json":                        {"ollama", "ollama"},
}

// others are fixtures without a page: answers at other paths.
var others = []string{
	"llamacpp/llamacpp_props.json", "nim/nim_version_endpoint.json", "ollama/ollama_api_tags.json", "triton/triton_v2_metadata_endpoint.json",
	"trtllm/trtllm_serve_metrics_json.json", "vllm/vllm_v1_models_endpoint.json", "vllm/vllm_version_endpoint_datadog.json",
}

// readFixture reads a page. The list of the families of vLLM 0.26.0 becomes a page with one sample of each.
func readFixture(t *testing.T, name string, b []byte) *Reading {
	t.Helper()
	switch {
	case strings.HasSuffix(name, ".json"):
		r, err := ReadOllama(b)
		if err != nil {
			t.Fatal(err)
		}
		return r
	case strings.HasSuffix(name, "_family_names_types.txt"):
		var page strings.Builder
		for line := range strings.Lines(string(b)) {
			switch f := strings.Fields(line); {
			case f[0] == "#":
			case f[1] == "histogram":
				fmt.Fprintf(&page, "%[1]s_bucket{le=\"+Inf\"} 2\n%[1]s_sum 3\n%[1]s_count 2\n", f[0])
			default:
				fmt.Fprintf(&page, "%s 1\n", f[0])
			}
		}
		b = []byte(page.String())
	}
	return Read(promtext.Scan(b), "", Tenants()...)
}

// Catches a name of an engine that is lost, or taken for another, and a real page that nobody has looked at: it
// needs a line in fixtures and a list of its points.
func TestRealPages(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..", "shared", "fixtures", "inference")
	if _, err := os.Stat(root); err != nil {
		t.Skip("the shared fixtures are absent:", err)
	}
	seen := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "SOURCE.txt" {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		seen[name] = true
		f, ok := fixtures[name]
		if !ok {
			if !slices.Contains(others, name) {
				t.Errorf("%s has no list of points", name)
			}
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		r := readFixture(t, name, b)
		got := fmt.Sprintf("providers %v, unmapped %d, rejected %d\n%s\n", r.Providers, r.Unmapped, r.Rejected, strings.Join(lines(r), "\n"))
		if f.engine != "" && !slices.Contains(r.Providers, f.engine) || f.engine == "" && len(r.Providers) > 0 {
			t.Errorf("%s is of %v", name, r.Providers)
		}
		golden := filepath.Join("testdata", f.golden+".golden")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
				return err
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return nil
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range fixtures {
		if !seen[name] {
			t.Errorf("%s is gone, and its list of points is not", name)
		}
	}
}

// Catches a list of points that was rewritten together with the mistake that it should show. These numbers were taken
// from the pages by hand, by the names that each engine documents: the sum of all points of a metric, of histograms
// their counts and sums.
func TestByHand(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..", "shared", "fixtures", "inference")
	if _, err := os.Stat(root); err != nil {
		t.Skip("the shared fixtures are absent:", err)
	}
	for page, want := range map[string]string{
		"vllm/vllm_v0.5.0_opt125m_datadog.txt": `
gen_ai.server.request.duration 1 0.503
gen_ai.server.time_to_first_token 1 0.313
inference.inter_token.latency 6 0.190
inference.kv_cache.limit 116496
inference.request.finished 1
inference.request.token 2 12
inference.token.input 5
inference.token.output 7`,
		"ray/ray_vllm_v0_ray2.32_datadog.txt": `
gen_ai.server.request.duration 1 16.450
gen_ai.server.time_to_first_token 1 0.271
inference.inter_token.latency 299 16.179
inference.request.finished 1
inference.token.input 58
inference.token.output 300`,
		"vllm/vllm_design_doc_excerpt.txt": `
inference.request.count 8
inference.request.finished 132
inference.token.output 27453`,
		"sglang/sglang_v0.3.5.post1_docs_sample.txt": `
gen_ai.server.request.duration 2104 70517.999
gen_ai.server.time_to_first_token 2124 656.078
inference.inter_token.latency 422425 29846.539
inference.kv_cache.limit 161721
inference.kv_cache.utilization 0.01
inference.token.input 506780
inference.token.output 424549`,
		"sglang/sglang_docs_sample_high_load.txt": `
gen_ai.server.request.duration 11228 3116093.850
gen_ai.server.time_to_first_token 11008 2351897.947
inference.inter_token.latency 7400757 866964.579
inference.kv_cache.usage 123859
inference.kv_cache.utilization 0.28
inference.request.count 2988
inference.token.input 8128902
inference.token.output 7557572`,
		"sglang/synthetic_sglang_v0.5.18.txt": `
gen_ai.server.time_to_first_token 600 269.673
inference.kv_cache.limit 160556
inference.kv_cache.usage 101233
inference.prefix_cache.hits 551002
inference.request.count 15
inference.request.finished 2216
inference.request.preemptions 4
inference.request.queue.duration 400 38.829
inference.spec_decode.acceptance_ratio 0.57
inference.token.input 1352235
inference.token.output 1210077`,
		"tgi/tgi_datadog_payload.txt": `
gen_ai.server.request.duration 109 541.214
inference.batch.size 16 109.000
inference.request.finished 111
inference.request.inference.duration 109 245.917
inference.request.queue.duration 109 295.276
inference.token.input 662
inference.token.output 3423`,
		"tei/tei_cpu_2026-07_excerpt.txt": `
inference.request.count 3
inference.request.finished 1`,
		"triton/triton_datadog_docker_metrics.txt": `
inference.request.finished 3
inference.request.queue.time 0.000145
inference.request.time 1.327965`,
		"triton/triton_vllm_backend_readme.txt": `
gen_ai.server.request.duration 1 0.087
gen_ai.server.time_to_first_token 1 0.032
inference.inter_token.latency 15 0.045
inference.token.input 10
inference.token.output 16`,
		"triton/trtllm_backend_inflight_excerpt.txt": `
inference.kv_cache.limit 399296
inference.request.count 2`,
		"trtllm/synthetic_trtllm_serve_prometheus.txt": `
gen_ai.server.time_per_output_token 400 5.910
gen_ai.server.time_to_first_token 400 28.749
inference.prefix_cache.hits 88004
inference.prefix_cache.queries 212004
inference.request.count 7
inference.request.finished 400
inference.token.output 101188`,
		"nim/nim_llm_datadog_2024-11.txt": `
gen_ai.server.request.duration 5 2.469
gen_ai.server.time_to_first_token 5 0.612
inference.request.count 1
inference.request.finished 5
inference.token.input 109
inference.token.output 174`,
		"llamacpp/llamacpp_2025-08_kvcache_gauges.txt": `
inference.kv_cache.usage 31428
inference.kv_cache.utilization 0.491063
inference.request.decode.time 3544.27
inference.request.prefill.time 2903.63
inference.token.input 6886
inference.token.output 3469`,
		"llamacpp/llamacpp_2026_b10298_head_excerpt.txt": `
inference.token.input 73163
inference.token.output 7637`,
		"lmdeploy/synthetic_lmdeploy_v0.16.0.txt": `
gen_ai.server.time_per_output_token 200 4.968
gen_ai.server.time_to_first_token 200 54.954
inference.kv_cache.utilization 0.42
inference.request.finished 200
inference.spec_decode.accepted_tokens.by_position 160
inference.token.output 20123`,
		"ray/ray_head_datadog.txt": `
inference.frontend.request.duration 726 43.027
inference.frontend.request.finished 765`,
		"ollama/ollama_api_ps.json": `
inference.model.loaded 1
inference.model.memory.usage 4811340143`,
	} {
		b, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		values, counts, sums := map[string]float64{}, map[string]uint64{}, map[string]float64{}
		for _, p := range readFixture(t, page, b).Points {
			name := p.Metric.Name
			if p.Buckets != nil {
				counts[name], sums[name] = counts[name]+p.Count, sums[name]+p.Sum
			} else {
				values[name] += p.Value
			}
		}
		var got []string
		for line := range strings.SplitSeq(strings.TrimSpace(want), "\n") {
			name, _, _ := strings.Cut(line, " ")
			switch v, ok := values[name]; {
			case counts[name] > 0 && name == requestTokens.Name:
				got = append(got, fmt.Sprint(name, " ", counts[name], " ", sums[name]))
			case counts[name] > 0:
				got = append(got, fmt.Sprintf("%s %d %.3f", name, counts[name], sums[name]))
			case ok:
				got = append(got, name+" "+strconv.FormatFloat(v, 'f', -1, 64))
			}
		}
		if diff := cmp.Diff(strings.Split(strings.TrimSpace(want), "\n"), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", page, diff)
		}
	}
}

// Catches the ways in which pages of engines mislead, one by one.
func TestTraps(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, page string
		want       []string
	}{
		{"ratios whose names say percent, and percentages whose names say ratio", `
vllm:kv_cache_usage_perc{model_name="m"} 0.5
sglang:token_usage{model_name="m"} 0.25
sglang:cache_hit_rate{model_name="m"} 10.61
sglang:fwd_occupancy{model_name="m"} 87
ray_serve_deployment_replica_healthy 1
ray_node_gpus_utilization{GpuIndex="0"} 87
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.87
`, []string{
			"inference.kv_cache.utilization{name=sglang model=m tier=gpu} 0.25",
			"inference.kv_cache.utilization{name=vllm model=m tier=gpu} 0.5",
		}},
		{"a ratio of a Dynamo worker whose name says percent", `
dynamo_component_gpu_cache_usage_percent{model="m",dynamo_component="w",dp_rank="0"} 0.42
`, []string{"inference.kv_cache.utilization{name=dynamo model=m tier=gpu} 0.42"}},
		{"both names of a migration", `
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 7
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 7
`, []string{
			"inference.kv_cache.utilization{name=vllm model=m tier=gpu} 0.5",
			"inference.prefix_cache.hits{name=vllm model=m tier=gpu} 7",
		}},
		{"a histogram whose name ends in _total, and a mean whose type is counter", `
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{le="1.0",model_name="m"} 1.0
vllm:iteration_tokens_total_bucket{le="+Inf",model_name="m"} 3.0
vllm:iteration_tokens_total_sum{model_name="m"} 40.0
vllm:iteration_tokens_total_count{model_name="m"} 3.0
vllm:iteration_tokens_total_created{model_name="m"} 1.7e9
# TYPE llamacpp:n_busy_slots_per_decode counter
llamacpp:n_busy_slots_per_decode 1.5
`, []string{
			"inference.batch.size.mean{name=llama_cpp} 1.5",
			"inference.batch.token{name=vllm model=m} count 3 sum 40 bounds 1 1 to 1",
		}},
		{"milliseconds and microseconds", `
nv_inference_request_duration_us{model="m",version="1"} 1500000
nv_inference_first_response_histogram_ms_bucket{model="m",le="100"} 1
nv_inference_first_response_histogram_ms_bucket{model="m",le="+Inf"} 2
nv_inference_first_response_histogram_ms_sum{model="m"} 250
nv_inference_first_response_histogram_ms_count{model="m"} 2
`, []string{
			"gen_ai.server.time_to_first_token{name=triton model=m} count 2 sum 0.25 bounds 1 0.1 to 0.1",
			"inference.request.time{name=triton model=m} 1.5",
		}},
		{"milliseconds of Ray", `
ray_serve_http_request_latency_ms_bucket{route="/",le="500"} 1
ray_serve_http_request_latency_ms_bucket{route="/",le="+Inf"} 2
ray_serve_http_request_latency_ms_sum{route="/"} 2500
ray_serve_http_request_latency_ms_count{route="/"} 2
`, []string{"inference.frontend.request.duration{name=ray_serve} count 2 sum 2.5 bounds 1 0.5 to 0.5"}},
		{"summaries in the place of counters", `
nv_inference_queue_summary_us{model="m",quantile="0.5"} 55
nv_inference_queue_summary_us_sum{model="m"} 11110
nv_inference_queue_summary_us_count{model="m"} 161
`, []string{"inference.request.queue.time{name=triton model=m} 0.01111"}},
		{"no time to the first token is not zero", `
tgi_request_duration_bucket{le="1"} 3
tgi_request_duration_bucket{le="+Inf"} 3
tgi_request_duration_sum 2
tgi_request_duration_count 3
`, []string{"gen_ai.server.request.duration{name=tgi} count 3 sum 2 bounds 1 1 to 1"}},
		{"what an engine says of itself", `
trtllm_model_config_info{model="/models/x",served_model_name="m",dtype="float16",quantization="FP8",max_model_len="4096",gpu_type="x",model_name="m"} 1
trtllm_parallel_config_info{tensor_parallel_size="4",pipeline_parallel_size="2",gpu_count="8",model_name="m"} 1
trtllm_cache_config_info{page_size="32",cache_dtype="None",model_name="m"} 1
sglang:context_len{model_name="s"} 131072
`, []string{
			"inference.engine.info{name=sglang model=s limit=131072} 1",
			"inference.engine.info{name=tensorrt_llm model=m limit=4096 size=2 quantization=FP8 size=4} 1",
		}},
		{"a total beside its parts, ranks that are copies, and halves that add up", `
sglang:num_running_reqs{model_name="m",tp_rank="0",priority=""} 5
sglang:num_running_reqs{model_name="m",tp_rank="0",priority="1"} 2
sglang:num_running_reqs{model_name="m",tp_rank="0",priority="9"} 3
sglang:num_queue_reqs{model_name="m",tp_rank="0",dp_rank="0"} 1
sglang:num_queue_reqs{model_name="m",tp_rank="1",dp_rank="0"} 1
sglang:num_queue_reqs{model_name="m",tp_rank="2",dp_rank="1"} 4
sglang:token_usage{model_name="m",tp_rank="0",dp_rank="0"} 0.9
sglang:token_usage{model_name="m",tp_rank="2",dp_rank="1"} 0.8
sglang:generation_tokens_total{model_name="m",is_streaming="true"} 10
sglang:generation_tokens_total{model_name="m",is_streaming="false"} 5
sglang:num_requests_total{model_name="m",is_streaming="true"} 9
sglang:num_aborted_requests_total{model_name="m"} 2
`, []string{
			"inference.kv_cache.utilization{name=sglang model=m tier=gpu rank=0} 0.9",
			"inference.kv_cache.utilization{name=sglang model=m tier=gpu rank=1} 0.8",
			"inference.request.count{name=sglang model=m rank=0 state=waiting} 1",
			"inference.request.count{name=sglang model=m rank=1 state=waiting} 4",
			"inference.request.count{name=sglang model=m state=running} 5",
			"inference.request.finished{name=sglang model=m outcome=abort} 2",
			"inference.request.finished{name=sglang model=m outcome=success} 7",
			"inference.token.output{name=sglang model=m} 15",
		}},
		{"data-parallel engines", `
vllm:generation_tokens_total{engine="0",model_name="m"} 10
vllm:generation_tokens_total{engine="1",model_name="m"} 20
vllm:time_to_first_token_seconds_bucket{engine="0",le="1",model_name="m"} 1
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 2
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 3
vllm:time_to_first_token_seconds_bucket{engine="1",le="1.0",model_name="m"} 4
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf",model_name="m"} 4
vllm:time_to_first_token_seconds_count{engine="1",model_name="m"} 4
vllm:time_to_first_token_seconds_sum{engine="1",model_name="m"} 1
`, []string{
			"gen_ai.server.time_to_first_token{name=vllm model=m} count 6 sum 4 bounds 1 1 to 1",
			"inference.token.output{name=vllm model=m} 30",
		}},
		{"an empty page, and a family that is absent", "", nil},
		{"declared twice, in Ray", `
# TYPE ray_vllm:generation_tokens_total counter
ray_vllm:generation_tokens_total{model_name="m",WorkerId="a"} 1
# TYPE ray_vllm:generation_tokens_total counter
ray_vllm_generation_tokens_total{model_name="m",WorkerId="b"} 2
ray_vllm:gpu_cache_usage_perc{model_name="m",WorkerId="a"} 0.25
`, []string{
			"inference.kv_cache.utilization{name=vllm model=m tier=gpu} 0.25",
			"inference.token.output{name=vllm model=m} 3",
		}},
		{"cut off, falling, without a number, and one that is whole", `
te_request_duration_bucket{le="1"} 1
te_request_duration_sum 1
te_request_duration_count 1
te_request_queue_duration_bucket{le="1"} 5
te_request_queue_duration_bucket{le="+Inf"} 3
te_request_queue_duration_count 3
te_request_inference_duration_bucket{le="x"} 5
te_request_inference_duration_bucket{le="+Inf"} 5
te_batch_next_size_bucket{le="1"} 1
te_batch_next_size_bucket{le="+Inf"} 1
te_batch_next_size_sum 1
te_batch_next_size_count 1
`, []string{"inference.batch.size{name=tei} count 1 sum 1 bounds 1 1 to 1"}},
		{"braces, quotes and other scripts in a model", `
vllm:prompt_tokens_total{model_name="a}\"b, 模型"} 1
`, []string{`inference.token.input{name=vllm model=a}"b, 模型} 1`}},
		{"no time per token from intervals between steps", `
vllm:inter_token_latency_seconds_bucket{le="+Inf",model_name="m"} 100
vllm:inter_token_latency_seconds_count{model_name="m"} 100
vllm:inter_token_latency_seconds_sum{model_name="m"} 2
`, []string{"inference.inter_token.latency{name=vllm model=m weight=step} count 100 sum 2 bounds 0"}},
		{"replicas in a Ray that no longer says which worker it is", `
ray_vllm_kv_cache_usage_perc{model_name="m",ReplicaId="a"} 0.5
ray_vllm_kv_cache_usage_perc{model_name="m",ReplicaId="b"} 0.25
ray_vllm_num_requests_running{model_name="m",ReplicaId="a"} 3
ray_vllm_num_requests_running{model_name="m",ReplicaId="b"} 4
ray_vllm_generation_tokens_total{model_name="m",ReplicaId="a"} 5
ray_vllm_generation_tokens_total{model_name="m",ReplicaId="b"} 6
`, []string{
			"inference.kv_cache.utilization{name=vllm model=m tier=gpu rank=a} 0.5",
			"inference.kv_cache.utilization{name=vllm model=m tier=gpu rank=b} 0.25",
			"inference.request.count{name=vllm model=m rank=a state=running} 3",
			"inference.request.count{name=vllm model=m rank=b state=running} 4",
			"inference.token.output{name=vllm model=m} 11",
		}},
		{"what the gateway of SGLang has seen", `
smg_router_requests_total{model_id="m",endpoint="chat"} 7
smg_router_tokens_total{model="m",token_type="input"} 100
smg_router_tokens_total{model="m",token_type="output"} 20
smg_router_ttft_seconds_bucket{model="m",le="1"} 2
smg_router_ttft_seconds_bucket{model="m",le="+Inf"} 3
smg_router_ttft_seconds_sum{model="m"} 4
smg_router_ttft_seconds_count{model="m"} 3
smg_router_tpot_seconds_bucket{model="m",le="+Inf"} 3
smg_router_tpot_seconds_sum{model="m"} 0.5
smg_router_request_duration_seconds_bucket{model="m",le="+Inf"} 3
smg_router_request_duration_seconds_sum{model="m"} 9
smg_worker_health{worker="http://a"} 1
`, []string{
			"inference.frontend.inter_token.latency{name=sglang_gateway model=m} count 3 sum 0.5 bounds 0",
			"inference.frontend.request.duration{name=sglang_gateway model=m} count 3 sum 9 bounds 0",
			"inference.frontend.request.finished{name=sglang_gateway} 7",
			"inference.frontend.time_to_first_token{name=sglang_gateway model=m} count 3 sum 4 bounds 1 1 to 1",
			"inference.frontend.token{name=sglang_gateway model=m type=input} 100",
			"inference.frontend.token{name=sglang_gateway model=m type=output} 20",
		}},
		{"KServe's own server", `
request_predict_seconds_bucket{model_name="m",le="0.5"} 2
request_predict_seconds_bucket{model_name="m",le="+Inf"} 3
request_predict_seconds_sum{model_name="m"} 4
request_predict_seconds_count{model_name="m"} 3
request_preprocess_seconds_count{model_name="m"} 3
`, []string{"inference.request.inference.duration{name=kserve model=m} count 3 sum 4 bounds 1 0.5 to 0.5"}},
		{"vLLM in KServe", `
kserve_vllm_num_requests_running{model_name="m"} 2
kserve_vllm:generation_tokens_total{model_name="m"} 5
`, []string{"inference.request.count{name=vllm model=m state=running} 2", "inference.token.output{name=vllm model=m} 5"}},
		{"the door of Dynamo", `
dynamo_frontend_time_to_first_token_seconds_bucket{model="m",le="+Inf"} 3
dynamo_frontend_time_to_first_token_seconds_sum{model="m"} 1
dynamo_frontend_inter_token_latency_seconds_bucket{model="m",le="+Inf"} 30
dynamo_frontend_inter_token_latency_seconds_sum{model="m"} 2
dynamo_frontend_request_duration_seconds_bucket{model="m",le="+Inf"} 3
dynamo_frontend_request_duration_seconds_sum{model="m"} 6
dynamo_frontend_input_sequence_tokens_bucket{model="m",le="+Inf"} 3
dynamo_frontend_input_sequence_tokens_sum{model="m"} 300
dynamo_frontend_output_tokens_total{model="m"} 40
dynamo_frontend_active_requests{model="m"} 2
dynamo_frontend_inflight_requests{model="m"} 2
`, []string{
			"inference.frontend.inter_token.latency{name=dynamo model=m} count 30 sum 2 bounds 0",
			"inference.frontend.request.count{name=dynamo model=m state=active} 2",
			"inference.frontend.request.duration{name=dynamo model=m} count 3 sum 6 bounds 0",
			"inference.frontend.time_to_first_token{name=dynamo model=m} count 3 sum 1 bounds 0",
			"inference.frontend.token{name=dynamo model=m type=input} 300",
			"inference.frontend.token{name=dynamo model=m type=output} 40",
		}},
		{"lookups in a prefix cache whose hits a version does not count, and one stage of several", `
sglang:prompt_tokens_total{model_name="m"} 100
lmdeploy:prompt_tokens_total{model_name="m"} 200
trtllm_prompt_tokens_total{model_name="m"} 300
trtllm_prompt_cached_tokens_total{model_name="m"} 0
sglang:per_stage_req_latency_seconds_bucket{model_name="m",stage="prefill_forward",le="+Inf"} 3
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="prefill_forward"} 4
sglang:per_stage_req_latency_seconds_bucket{model_name="m",stage="chunked_prefill",le="+Inf"} 30
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="chunked_prefill"} 2
`, []string{
			"inference.prefix_cache.hits{name=tensorrt_llm model=m tier=gpu} 0",
			"inference.prefix_cache.queries{name=tensorrt_llm model=m tier=gpu} 300",
			"inference.request.prefill.duration{name=sglang model=m} count 3 sum 4 bounds 0",
			"inference.token.input{name=lmdeploy model=m} 200",
			"inference.token.input{name=sglang model=m} 100",
			"inference.token.input{name=tensorrt_llm model=m} 300",
		}},
		{"a status of Python's None", `
litellm_proxy_total_requests_metric_total{status_code="None"} 2
litellm_proxy_total_requests_metric_total{status_code="200"} 3
`, []string{"inference.frontend.request.finished{name=litellm status_code=200} 3", "inference.frontend.request.finished{name=litellm} 2"}},
		{"requests that were turned away before the engine, and those of people and agents", `
vllm:request_success_total{engine="0",model_name="m",finished_reason="stop"} 6
http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 6
http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} 3
http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1
http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 2
http_requests_total{handler="/v1/models",method="GET",status="2xx"} 90
http_requests_total{handler="/tokenize",method="POST",status="2xx"} 4
http_requests_total{handler="none",method="GET",status="4xx"} 7
http_requests_total{handler="/v1/completions",method="POST",status="unknown"} 8
sglang:http_responses_total{endpoint="/v1/chat/completions",method="POST",status_code="200",model_name="s"} 5
sglang:http_responses_total{endpoint="/generate",method="POST",status_code="429",model_name="s"} 3
sglang:http_responses_total{endpoint="/v1/chat/completions",method="POST",status_code="429",model_name="s"} 1
sglang:http_responses_total{endpoint="/metrics",method="GET",status_code="200",model_name="s"} 100
`, []string{
			"inference.http.response{name=sglang model=s status_code=200 status_class=2xx} 5",
			"inference.http.response{name=sglang model=s status_code=429 status_class=4xx} 4",
			"inference.http.response{name=vllm model=m status_class=2xx} 6",
			"inference.http.response{name=vllm model=m status_class=4xx} 4",
			"inference.http.response{name=vllm model=m status_class=5xx} 2",
			"inference.request.finished{name=vllm model=m finish_reason=stop outcome=success} 6",
		}},
		{"the same requests at the door and in the engine", `
dynamo_frontend_requests_total{model="m",status="success",error_type=""} 5
dynamo_frontend_requests_total{model="m",status="error",error_type="overload"} 1
vllm:request_success_total{model_name="m",finished_reason="stop"} 5
vllm:kv_cache_usage_perc{model_name="m"} 0.5
dynamo_component_gpu_cache_usage_percent{model="m",dynamo_component="w"} 0.5
`, []string{
			"inference.frontend.request.finished{name=dynamo model=m outcome=success} 5",
			"inference.frontend.request.finished{type=overload name=dynamo model=m outcome=error} 1",
			"inference.kv_cache.utilization{name=vllm model=m tier=gpu} 0.5",
			"inference.request.finished{name=vllm model=m finish_reason=stop outcome=success} 5",
		}},
		{"an unknown value, and adapters in labels", `
vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1
vllm:num_requests_running{model_name="m"} NaN
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=""} 1.7e9
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a",waiting_lora_adapters="c"} 1.6e9
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",cache_dtype="auto"} 1
`, []string{
			"inference.engine.info{name=vllm model=m type=auto} 1",
			"inference.kv_cache.limit{name=vllm model=m tier=gpu} 1600",
			"inference.lora.adapter.count{name=vllm model=m state=running} 2",
			"inference.lora.adapter.count{name=vllm model=m state=waiting} 0",
			"inference.lora.adapter.limit{name=vllm model=m} 4",
		}},
	} {
		got := lines(Read(promtext.Scan([]byte(tt.page)), ""))
		if diff := cmp.Diff(tt.want, got, cmp.Transformer("", func(list []string) string { return strings.Join(list, "\n") })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Catches a page of an unknown version that is lost without a trace, and one of another program.
func TestUnmapped(t *testing.T) {
	t.Parallel()
	r := Read(promtext.Scan([]byte("vllm:from_the_future{a=\"1\"} 1\nvllm:from_the_future{a=\"2\"} 1\nvllm:later_bucket{le=\"+Inf\"} 1\nvllm:later_count 1\npython_info 1\n")), "")
	if r.Unmapped != 4 || len(r.Points) != 0 {
		t.Errorf("%d samples are unmapped, want 4; points %v", r.Unmapped, lines(r))
	}
	for _, tt := range []struct {
		page string
		want int
	}{
		{"sglang:num_queue_reqs 1\nsglang:from_the_future 1\n", 1},
		{"tgi_queue_size 1\ntgi_from_the_future 1\n", 1},
		{"dynamo_frontend_requests_total 1\ndynamo_frontend_from_the_future 1\n", 1},
		{"num_requests_running 1\ngpu_cache_usage_perc 0\nnum_request_max 8\nvision_encoder_latency_seconds_count 1\npython_info 1\nprocess_cpu_seconds_total 1\nhttp_requests_total 1\n", 2},
		{"request_predict_seconds_count 1\nrequest_predict_seconds_bucket{le=\"+Inf\"} 1\nrequest_preprocess_seconds_count 1\nrequest_explain_seconds_count 1\npython_info 1\n", 2},
		{"request_predict_seconds_bucket{le=\"+Inf\"} 1\nvllm:num_requests_running 1\nvllm:from_the_future 1\n", 1},
	} {
		if r := Read(promtext.Scan([]byte(tt.page)), ""); r.Unmapped != tt.want {
			t.Errorf("%d samples are unmapped, want %d: %s", r.Unmapped, tt.want, tt.page)
		}
	}
	if r := Read(promtext.Scan([]byte("go_goroutines 1\nnum_requests_running 1\n")), ""); len(r.Providers) > 0 || r.Unmapped > 0 {
		t.Errorf("a page of another program is of %v", r.Providers)
	}
}

// Catches a page that becomes as many series as its author likes.
func TestHostilePage(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&b, "vllm:num_requests_running{model_name=\"%d\"} 1\n", i)
	}
	r := Read(promtext.Scan([]byte(b.String())), "")
	if len(r.Points) != maxPoints || r.Rejected != 50_000-maxPoints {
		t.Errorf("%d points, %d rejected", len(r.Points), r.Rejected)
	}
}

// Catches a page that takes minutes and terabytes, because each of its series is compared with all others.
func TestPageOfManySeries(t *testing.T) {
	for name, line := range map[string]string{
		"workers":                        "ray_vllm_generation_tokens_total{WorkerId=\"%040[1]d\"} 1\n",
		"histograms":                     "vllm:time_to_first_token_seconds_bucket{engine=\"%[1]d\",le=\"+Inf\"} 1\n",
		"bounds":                         "vllm:time_to_first_token_seconds_bucket{le=\"%[1]d\"} 1\n",
		"blocks of Triton":               "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"%[1]d\"} 1\n",
		"requests of Triton":             "nv_trt_llm_request_metrics{request_type=\"active\",model=\"%[1]d\"} 1\n",
		"blocks of TensorRT-LLM":         "trtllm_kv_cache_max_blocks{x=\"%[1]d\"} 1\ntrtllm_kv_cache_tokens_per_block{x=\"%[1]d\"} 1\n",
		"what engines say of themselves": "trtllm_model_config_info{model_name=\"%[1]d\",quantization=\"x\"} 1\n",
		"families":                       "vllm:a%[1]d 1\n",
		"priorities":                     "sglang:num_running_reqs{priority=\"\",x=\"%[1]d\"} 1\n",
		"aborted requests":               "sglang:num_requests_total{x=\"%[1]d\"} 1\nsglang:num_aborted_requests_total{x=\"%[1]d\"} 1\n",
	} {
		var b strings.Builder
		for i := range 5000 {
			fmt.Fprintf(&b, line, i)
		}
		page := []byte(b.String())
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := Read(promtext.Scan(page), "")
		if err := (&Growth{}).Follow(r, second(0), time.Time{}); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 60<<20 || len(r.Points) > maxPoints+maxInfos {
			t.Errorf("%s: %d MiB for a page of %d KiB, %d points", name, n>>20, len(page)>>10, len(r.Points))
		}
	}
}

// Catches a label that all points repeat, until they fill the memory: 4 MiB of a page would become 16 GB.
func TestLongLabels(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "vllm:request_success_total{finished_reason=\"%d\"} 1\n", i)
	}
	fmt.Fprintf(&b, "vllm:num_requests_running{model_name=%q} 1\n", strings.Repeat("x", 1<<20))
	fmt.Fprintf(&b, "sglang:generation_tokens_total{model_name=\"m\",x=%q} 1\n", strings.Repeat("x", 1<<20))
	r := Read(promtext.Scan([]byte(b.String())), "")
	size := 0
	for i := range r.Points {
		size += len(r.Points[i].Key())
		for _, part := range r.Points[i].parts {
			size += len(part.key)
		}
	}
	if size > 1<<20 || r.Rejected != 1001 || len(r.Points) != 1 {
		t.Errorf("%d points of %d bytes, %d rejected", len(r.Points), size, r.Rejected)
	}
}

// Catches a histogram that no store takes, or whose unknown sum is shown as zero.
func TestStrangeHistograms(t *testing.T) {
	t.Parallel()
	const name = "vllm:time_to_first_token_seconds"
	page := func(bound, sum string) string {
		if sum != "" {
			sum = name + "_sum " + sum + "\n"
		}
		return fmt.Sprintf("%s_bucket{le=\"%s\"} 1\n%s_bucket{le=\"1\"} 2\n%s_bucket{le=\"+Inf\"} 3\n%s%s_count 3\n", name, bound, name, name, sum, name)
	}
	whole := func(sum string) []string {
		return []string{"gen_ai.server.time_to_first_token{name=vllm model=m} count 3 sum " + sum + " bounds 2 0.5 to 1", "rejected 0"}
	}
	for _, tt := range []struct {
		name, page string
		want       []string
	}{
		{"whole", page("0.5", "4"), whole("4")},
		{"without a sum", page("0.5", ""), whole("NaN")},
		{"a sum that is no number", page("0.5", "NaN"), whole("NaN")},
		{"an infinite sum", page("0.5", "+Inf"), whole("NaN")},
		{"a bound that is no number", page("NaN", "4"), []string{"rejected 5"}},
		{"a bound below all numbers", page("-Inf", "4"), []string{"rejected 5"}},
		{"a bound twice", page("1.0", "4"), []string{"rejected 5"}},
		{"a count that is not that of the buckets", strings.ReplaceAll(page("0.5", "4"), "_count 3", "_count 4"), []string{"rejected 5"}},
		{"a count that is no number", strings.ReplaceAll(page("0.5", "4"), "} 2", "} NaN"), []string{"rejected 5"}},
		{"buckets without the name of a bucket", strings.ReplaceAll(page("0.5", "4"), "_bucket", ""), []string{"rejected 3"}},
		{"tokens of a histogram without a sum", "tgi_request_input_length_bucket{le=\"+Inf\"} 3\n", []string{
			"inference.request.token{name=tgi model=m type=input} count 3 sum NaN bounds 0", "rejected 1",
		}},
	} {
		r := Read(promtext.Scan([]byte(tt.page)), "m")
		if diff := cmp.Diff(tt.want, append(lines(r), fmt.Sprint("rejected ", r.Rejected))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Catches a histogram with a thousand buckets, or one that loses values with them.
func TestThin(t *testing.T) {
	t.Parallel()
	b := &Buckets{Count: 1025, Sum: 1}
	for i := range 1024 {
		b.Bounds, b.Counts = append(b.Bounds, float64(i+1)), append(b.Counts, 1)
	}
	b.Counts = append(b.Counts, 1)
	want := &Buckets{Bounds: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}, Counts: []uint64{1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1}, Count: 1025, Sum: 1}
	if diff := cmp.Diff(want, b.thin()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, bound := range map[string]func(i int) float64{
		"no power of two":           func(i int) float64 { return float64(3 * (i + 1)) },
		"few":                       func(i int) float64 { return 100 + float64(i)/10 },
		"nothing but powers of two": func(i int) float64 { return math.Ldexp(1, i-500) },
	} {
		for i := range b.Bounds {
			b.Bounds[i] = bound(i)
		}
		got := b.thin()
		if n := len(got.Bounds); n < maxBounds/2 || n > maxBounds || got.Bounds[n-1] != b.Bounds[1023] || len(got.Counts) != n+1 || got.Counts[n-1] != 8 || got.Counts[n] != 1 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Catches a histogram that counts as rejected once for each metric that is made of it.
func TestRejectedOnce(t *testing.T) {
	t.Parallel()
	r := Read(promtext.Scan([]byte("tgi_request_input_length_bucket{le=\"1\"} 1\ntgi_request_input_length_sum 1\ntgi_request_input_length_count 1\n")), "")
	if r.Rejected != 3 || len(r.Points) > 0 {
		t.Errorf("%d samples are rejected, points %v", r.Rejected, lines(r))
	}
}

// Catches a page that ends the process, and points that no exporter takes.
func FuzzRead(f *testing.F) {
	f.Add("vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} 1\nvllm:time_to_first_token_seconds_bucket{le=\"1\"} NaN\n")
	f.Add("nv_trt_llm_request_metrics{request_type=\"active\"} 5\nnv_trt_llm_request_metrics{request_type=\"scheduled\"} 7\n")
	f.Add("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 0\nnv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"used\"} 0\n")
	f.Add("vllm:cache_config_info{block_size=\"1e300\",num_gpu_blocks=\"1e300\"} 1\nvllm:lora_requests_info NaN\nsglang:num_requests_total Inf\n")
	f.Fuzz(func(t *testing.T, page string) {
		text := promtext.Scan([]byte(page))
		r := Read(text, "m")
		for i := range r.Points {
			p := &r.Points[i]
			if p.Buckets == nil {
				if !(p.Value >= 0 && p.Value <= 1.7e308) {
					t.Errorf("%s is %v", p.Metric.Name, p.Value)
				}
				continue
			}
			var n uint64
			for _, c := range p.Counts {
				n += c
			}
			if !slices.IsSorted(p.Bounds) || math.IsInf(p.Sum, 0) {
				t.Errorf("%s: %+v", p.Metric.Name, p.Buckets)
			}
			if n != p.Count || len(p.Counts) != len(p.Bounds)+1 {
				t.Errorf("%s: %+v", p.Metric.Name, p.Buckets)
			}
		}
	})
}
