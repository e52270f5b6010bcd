package inference

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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

// Catches a name of an engine that is lost, or taken for another: the points of real pages, checked by hand
// against what each engine documents.
func TestRealPages(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..", "shared", "fixtures", "inference")
	if _, err := os.Stat(root); err != nil {
		t.Skip("the shared fixtures are absent:", err)
	}
	for _, tt := range []struct {
		page, golden, engine string
	}{
		{"vllm/vllm_v0.5.0_opt125m_datadog.txt", "vllm_0.5.0", "vllm"},
		{"ray/ray_vllm_v0_ray2.32_datadog.txt", "vllm_ray_2.32", "vllm"},
		{"ray/ray_head_datadog.txt", "ray_serve", "ray_serve"},
		{"sglang/sglang_v0.3.5.post1_docs_sample.txt", "sglang_0.3.5", "sglang"},
		{"sglang/sglang_docs_sample_high_load.txt", "sglang_0.4", "sglang"},
		{"sglang/synthetic_sglang_v0.5.18.txt", "sglang_0.5.18", "sglang"},
		{"tgi/tgi_datadog_payload.txt", "tgi", "tgi"},
		{"tei/tei_cpu_2026-07_excerpt.txt", "tei", "tei"},
		{"tei/tei_opea_docs_excerpt.txt", "tei_cut_off", "tei"},
		{"triton/triton_datadog_docker_metrics.txt", "triton", "triton"},
		{"triton/trtllm_backend_inflight_excerpt.txt", "triton_tensorrt_llm", "tensorrt_llm"},
		{"triton/triton_vllm_backend_readme.txt", "triton_vllm", "vllm"},
		{"trtllm/synthetic_trtllm_serve_prometheus.txt", "trtllm_serve", "tensorrt_llm"},
		{"nim/nim_llm_datadog_2024-11.txt", "nim_1", "nvidia_nim"},
		{"llamacpp/llamacpp_2025-08_kvcache_gauges.txt", "llama_cpp_2025", "llama_cpp"},
		{"llamacpp/llamacpp_2026_b10298_head_excerpt.txt", "llama_cpp_2026", "llama_cpp"},
		{"lmdeploy/synthetic_lmdeploy_v0.16.0.txt", "lmdeploy_0.16.0", "lmdeploy"},
		{"torchserve/torchserve_datadog.txt", "torchserve", ""},
		{"bentoml/bentoml_datadog.txt", "bentoml", ""},
	} {
		b, err := os.ReadFile(filepath.Join(root, tt.page))
		if err != nil {
			t.Fatal(err)
		}
		r := Read(promtext.Scan(b), "")
		got := fmt.Sprintf("providers %v, unmapped %d, rejected %d\n%s\n", r.Providers, r.Unmapped, r.Rejected, strings.Join(lines(r), "\n"))
		if tt.engine != "" && !slices.Contains(r.Providers, tt.engine) || tt.engine == "" && len(r.Providers) > 0 {
			t.Errorf("%s is of %v", tt.page, r.Providers)
		}
		golden := filepath.Join("testdata", tt.golden+".golden")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.page, diff)
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
