package inference

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

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
