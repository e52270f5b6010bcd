package inference

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
