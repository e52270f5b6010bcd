package inference

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// samples returns the lines of a page that have values.
func samples(page []byte) string {
	return strings.TrimSpace(regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(page), ""))
}

// Catches a queue, a cache or an adapter that a picker would not see or see wrongly: counted for one rank only, as
// that of another tier, as 0 where it is unknown.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, page, want string }{
		{"vllm", `
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",engine="0"} 1.0
vllm:lora_requests_info{max_lora="2",running_lora_adapters="old",waiting_lora_adapters=""} 100
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters="c"} 200.5`, `
vllm:num_requests_waiting 2
vllm:num_requests_running 3
vllm:kv_cache_usage_perc 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters="c"} 200.5`},
		{"vllm of two ranks, the picker alone sees the first", `
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_running{engine="1"} 4
vllm:num_requests_waiting{engine="0"} 0
vllm:num_requests_waiting{engine="1"} 9
vllm:num_requests_swapped{engine="1"} 1
vllm:kv_cache_usage_perc{engine="0"} 0.1
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:cpu_cache_usage_perc{engine="1"} 0.99
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",engine="0"} 1
vllm:cache_config_info{block_size="16",num_gpu_blocks="500",engine="1"} 1`, `
vllm:num_requests_waiting 10
vllm:num_requests_running 7
vllm:kv_cache_usage_perc 0.75
vllm:cache_config_info{block_size="16",num_gpu_blocks="1500"} 1`},
		{"vllm before its first step", `
vllm:num_requests_waiting 0
vllm:kv_cache_usage_perc -1
vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1`, `
vllm:num_requests_waiting 0`},
		{"engines with different blocks", `
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",engine="0"} 1
vllm:cache_config_info{block_size="32",num_gpu_blocks="1000",engine="1"} 1
vllm:cache_config_info{block_size="32",num_gpu_blocks="1000",engine="2"} 1
vllm:num_requests_waiting 0`, `
vllm:num_requests_waiting 0`},
		{"sglang, whose tensor-parallel ranks are copies", `
sglang:num_running_reqs{tp_rank="0"} 5
sglang:num_running_reqs{tp_rank="1"} 5
sglang:num_queue_reqs{tp_rank="0"} 6
sglang:num_grammar_queue_reqs{tp_rank="0"} 1
sglang:token_usage{tp_rank="0"} 0.5
sglang:cache_config_info{page_size="64",num_pages="300",tp_rank="0"} 1
sglang:cache_config_info{page_size="64",num_pages="300",tp_rank="1"} 1`, `
vllm:num_requests_waiting 7
vllm:num_requests_running 5
vllm:kv_cache_usage_perc 0.5
vllm:cache_config_info{block_size="64",num_gpu_blocks="300"} 1`},
		{"tgi, which has tokens and no ratio", `
tgi_queue_size 4
tgi_batch_current_size 2
tgi_batch_current_max_tokens 1000
tgi_batch_max_total_tokens 4000`, `
vllm:num_requests_waiting 4
vllm:num_requests_running 2
vllm:kv_cache_usage_perc 0.25`},
		{"llama.cpp, which has no cache to fill", `
llamacpp:requests_processing 1
llamacpp:requests_deferred 3`, `
vllm:num_requests_waiting 3
vllm:num_requests_running 1`},
		{"Triton with TensorRT-LLM", `
nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 9
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 4
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 200
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m",version="1"} 50
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m",version="1"} 64`, `
vllm:num_requests_waiting 5
vllm:num_requests_running 4
vllm:kv_cache_usage_perc 0.25
vllm:cache_config_info{block_size="64",num_gpu_blocks="200"} 1`},
		{"trtllm-serve", `
trtllm_num_requests_waiting 1
trtllm_num_requests_running 2
trtllm_kv_cache_utilization 0.125
trtllm_kv_cache_max_blocks 101
trtllm_kv_cache_tokens_per_block 32`, `
vllm:num_requests_waiting 1
vllm:num_requests_running 2
vllm:kv_cache_usage_perc 0.125
vllm:cache_config_info{block_size="32",num_gpu_blocks="101"} 1`},
		{"an embedding server", "te_queue_size 8", "vllm:num_requests_waiting 8"},
		{"no engine", "up 1", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := Read(promtext.Scan([]byte(strings.TrimSpace(tt.page)+"\n")), "m").Signals
			if diff := cmp.Diff(strings.TrimSpace(tt.want), samples(s.Page())); diff != "" {
				t.Errorf("the page (-want +got):\n%s", diff)
			}
		})
	}
}

// Catches a page that does not say what it was made of, such as by a name that is not escaped.
func TestSignalsPage(t *testing.T) {
	t.Parallel()
	const page = `vllm:num_requests_waiting 2
vllm:num_requests_running 1e+06
vllm:kv_cache_usage_perc 0.30000000000000004
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a\"}\\,\nb",waiting_lora_adapters=""} 1.8000000005e+09`
	read := func(text []byte) []byte {
		s := Read(promtext.Scan(text), "").Signals
		return s.Page()
	}
	if diff := cmp.Diff(page, samples(read([]byte(page+"\n")))); diff != "" {
		t.Errorf("a page of what the page says (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(string(read([]byte(page+"\n"))), string(read(read([]byte(page+"\n"))))); diff != "" {
		t.Errorf("a page of our page (-want +got):\n%s", diff)
	}
}

// Catches engines of one pod of which only one counts, and an engine without a queue that hides that of another.
func TestTogether(t *testing.T) {
	t.Parallel()
	of := func(page string) Signals { return Read(promtext.Scan([]byte(page)), "").Signals }
	all := Together(
		of("tgi_queue_size 4\ntgi_batch_current_size 2\n"),
		of("vllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"10\"} 1\nvllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a\",waiting_lora_adapters=\"\"} 7\n"),
		of("vllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.25\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"20\"} 1\nvllm:lora_requests_info{max_lora=\"3\",running_lora_adapters=\"b\",waiting_lora_adapters=\"c\"} 5\n"),
		of("up 1\n"),
	)
	const want = `vllm:num_requests_waiting 6
vllm:num_requests_running 2
vllm:kv_cache_usage_perc 0.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="30"} 1
vllm:lora_requests_info{max_lora="5",running_lora_adapters="a,b",waiting_lora_adapters="c"} 7`
	if diff := cmp.Diff(want, samples(all.Page())); diff != "" {
		t.Errorf("the page (-want +got):\n%s", diff)
	}
}
