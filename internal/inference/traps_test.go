package inference

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

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
