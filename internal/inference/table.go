package inference

import "github.com/gpumeter/gpumeter/internal/promtext"

// engines is the table. docs/inference.md is about its sources. Names are canonical, without _total.
var engines = []engine{
	{provider: "vllm", prefixes: []string{"vllm_"}, rules: vllm},
	{provider: "sglang", prefixes: []string{"sglang_"}, rules: sglang},
	{provider: "sglang_gateway", prefixes: []string{"smg_"}, rules: sglangGateway},
	{provider: "litellm", prefixes: []string{"litellm_"}, rules: liteLLM},
	{provider: "tgi", prefixes: []string{"tgi_"}, rules: tgi},
	{provider: "tei", prefixes: []string{"te_"}, rules: tei},
	{provider: "triton", prefixes: []string{"nv_inference_", "nv_model_load_"}, rules: triton},
	{provider: "tensorrt_llm", prefixes: []string{"nv_trt_llm_"}, rules: tritonTensorRT},
	{provider: "tensorrt_llm", prefixes: []string{"trtllm_"}, rules: tensorRT},
	{provider: "nvidia_nim", names: []string{"num_requests_running", "gpu_cache_usage_perc", "num_request_max"}, rules: nim},
	{provider: "dynamo", prefixes: []string{"dynamo_frontend_"}, rules: dynamoFrontend},
	{provider: "dynamo", prefixes: []string{"dynamo_component_"}, rules: dynamoWorker},
	{provider: "ray_serve", prefixes: []string{"ray_serve_"}, rules: rayServe},
	{provider: "llama_cpp", prefixes: []string{"llamacpp_"}, rules: llamaCPP},
	{provider: "lmdeploy", prefixes: []string{"lmdeploy_"}, rules: lmdeploy},
	{provider: "kserve", names: []string{"request_predict_seconds"}, rules: kserve},
}

func from(m *Metric, names ...string) rule { return rule{metric: m, from: names} }

// with sets an attribute of all points.
func (r rule) with(name, value string) rule {
	r.set = append(r.set, Attr{name, value})
	return r
}

// per turns a label into an attribute.
func (r rule) per(label, attr string) rule {
	r.by = append(r.by, Attr{label, attr})
	return r
}

func (r rule) where(label, value string) rule {
	r.only = &promtext.Label{Name: label, Value: value}
	return r
}

// in says how many of the engine's units make one of the metric's.
func (r rule) in(parts float64) rule {
	r.parts = parts
	return r
}

// total takes the sum of a histogram.
func (r rule) total() rule {
	r.sum = true
	return r
}

// made is a rule for metrics that a function makes of families.
func made(f func(*collector), metrics []*Metric, families ...string) rule {
	return rule{made: f, makes: metrics, from: families}
}

// state is a rule for requests in a state.
func state(name string, from ...string) rule {
	return rule{metric: requests, from: from}.with(AttrState, name)
}

// prefix is a rule for a prefix cache whose lookups are the tokens of prompts.
func prefix(prompts, hits string) rule {
	return made(func(c *collector) { c.prefix(prompts, hits) }, []*Metric{prefixQueries, prefixHits}, prompts, hits).with(AttrTier, "gpu")
}

// web is a rule for the answers of a web server. The labels are those that have its paths and the status.
func web(family, path, status string) rule {
	r := made(func(c *collector) { c.web(family, path, status) }, []*Metric{responses}, family)
	return r.per(status, AttrClass).per(status, AttrStatus)
}

const milliseconds, microseconds = 1e3, 1e6

var vllm = []rule{
	from(timeToFirstToken, "vllm_time_to_first_token_seconds"),
	from(timePerToken, "vllm_request_time_per_output_token_seconds"),
	// An interval of a step may deliver several tokens, so this is no time per token.
	from(interToken, "vllm_inter_token_latency_seconds", "vllm_time_per_output_token_seconds").with(AttrWeight, "step"),
	from(requestDuration, "vllm_e2e_request_latency_seconds"),
	from(queueDuration, "vllm_request_queue_time_seconds", "vllm_time_in_queue_requests"),
	from(prefillDuration, "vllm_request_prefill_time_seconds"),
	from(decodeDuration, "vllm_request_decode_time_seconds"),
	from(inferenceDuration, "vllm_request_inference_time_seconds"),
	from(tokensIn, "vllm_prompt_tokens"),
	from(tokensBySource, "vllm_prompt_tokens_by_source").per("source", AttrSource),
	from(tokensOut, "vllm_generation_tokens"),
	from(requestTokens, "vllm_request_prompt_tokens").with(AttrToken, "input"),
	from(requestTokens, "vllm_request_generation_tokens").with(AttrToken, "output"),
	state("running", "vllm_num_requests_running"),
	state("waiting", "vllm_num_requests_waiting"),
	state("swapped", "vllm_num_requests_swapped"),
	from(finished, "vllm_request_success").per("finished_reason", AttrReason),
	from(preemptions, "vllm_num_preemptions"),
	web("http_requests", "handler", "status"),
	from(batchTokens, "vllm_iteration_tokens"), // a histogram, though its name ends in _total
	from(cacheUtilization, "vllm_kv_cache_usage_perc", "vllm_gpu_cache_usage_perc").with(AttrTier, "gpu"),
	from(cacheUtilization, "vllm_cpu_cache_usage_perc").with(AttrTier, "cpu"),
	made(vllmCacheLimit, []*Metric{cacheLimit}, "vllm_cache_config_info"),
	from(prefixQueries, "vllm_prefix_cache_queries", "vllm_gpu_prefix_cache_queries").with(AttrTier, "gpu"),
	from(prefixHits, "vllm_prefix_cache_hits", "vllm_gpu_prefix_cache_hits").with(AttrTier, "gpu"),
	from(prefixQueries, "vllm_external_prefix_cache_queries").with(AttrTier, "external"),
	from(prefixHits, "vllm_external_prefix_cache_hits").with(AttrTier, "external"),
	from(prefixRatio, "vllm_gpu_prefix_cache_hit_rate").with(AttrTier, "gpu"),
	from(drafts, "vllm_spec_decode_num_drafts"),
	from(draftTokens, "vllm_spec_decode_num_draft_tokens"),
	from(acceptedTokens, "vllm_spec_decode_num_accepted_tokens"),
	from(acceptedByPosition, "vllm_spec_decode_num_accepted_tokens_per_pos").per("position", AttrPosition),
	from(acceptanceRatio, "vllm_spec_decode_draft_acceptance_rate"),
	made(vllmInfo, []*Metric{engineInfo}, "vllm_cache_config_info"),
	made(vllmAdapters, []*Metric{adapters, adapterLimit}, "vllm_lora_requests_info"),
}

var sglang = []rule{
	from(timeToFirstToken, "sglang_time_to_first_token_seconds"),
	from(interToken, "sglang_inter_token_latency_seconds", "sglang_time_per_output_token_seconds").with(AttrWeight, "token"),
	from(requestDuration, "sglang_e2e_request_latency_seconds"),
	from(queueDuration, "sglang_queue_time_seconds", "sglang_queue_time_s"),
	from(prefillDuration, "sglang_per_stage_req_latency_seconds").where("stage", "prefill_forward"),
	from(tokensIn, "sglang_prompt_tokens"),
	from(tokensOut, "sglang_generation_tokens"),
	from(requestTokens, "sglang_prompt_tokens_histogram").with(AttrToken, "input"),
	from(requestTokens, "sglang_generation_tokens_histogram").with(AttrToken, "output"),
	state("running", "sglang_num_running_reqs", "sglang_num_requests_running"),
	state("waiting", "sglang_num_queue_reqs"),
	state("waiting_grammar", "sglang_num_grammar_queue_reqs"),
	state("paused", "sglang_num_paused_reqs"),
	made(sglangFinished, []*Metric{finished}, "sglang_num_requests", "sglang_num_aborted_requests"),
	from(preemptions, "sglang_num_retracted_requests"),
	web("sglang_http_responses", "endpoint", "status_code"),
	from(cacheUtilization, "sglang_token_usage").with(AttrTier, "gpu"),
	from(cacheUsage, "sglang_kv_used_tokens", "sglang_num_used_tokens").with(AttrTier, "gpu"),
	from(cacheLimit, "sglang_max_total_num_tokens").with(AttrTier, "gpu"),
	from(cacheUsage, "sglang_hicache_host_used_tokens").with(AttrTier, "cpu"),
	from(cacheLimit, "sglang_hicache_host_total_tokens").with(AttrTier, "cpu"),
	prefix("sglang_prompt_tokens", "sglang_cached_tokens"),
	from(drafts, "sglang_spec_verify_calls"),
	from(acceptanceRatio, "sglang_spec_accept_rate"),
	from(adapters, "sglang_lora_pool_slots_used"),
	from(adapterLimit, "sglang_lora_pool_slots_total"),
	from(loadTime, "sglang_weight_load_duration_seconds", "sglang_engine_load_weights_time"),
	made(sglangInfo, []*Metric{engineInfo}, "sglang_context_len"),
}

var sglangGateway = []rule{
	from(frontTimeToFirstToken, "smg_router_ttft_seconds"),
	from(frontInterToken, "smg_router_tpot_seconds"),
	from(frontDuration, "smg_router_request_duration_seconds"),
	from(frontTokens, "smg_router_tokens").per("token_type", AttrToken),
	from(frontFinished, "smg_router_requests"),
}

// liteLLM is a gateway for models anywhere, with keys, teams and users. It is no engine: see frontDuration.
var liteLLM = []rule{
	from(frontTimeToFirstToken, "litellm_llm_api_time_to_first_token_metric"),
	from(frontDuration, "litellm_request_total_latency_metric"),
	from(frontTokens, "litellm_input_tokens_metric", "litellm_input_tokens").with(AttrToken, "input"),
	from(frontTokens, "litellm_output_tokens_metric", "litellm_output_tokens").with(AttrToken, "output"),
	from(frontFinished, "litellm_proxy_total_requests_metric").per("status_code", AttrStatus),
}

var tgi = []rule{
	from(requestDuration, "tgi_request_duration"),
	from(queueDuration, "tgi_request_queue_duration"),
	from(inferenceDuration, "tgi_request_inference_duration"),
	from(tokensIn, "tgi_request_input_length").total(),
	from(tokensOut, "tgi_request_generated_tokens").total(),
	from(requestTokens, "tgi_request_input_length").with(AttrToken, "input"),
	from(requestTokens, "tgi_request_generated_tokens").with(AttrToken, "output"),
	state("running", "tgi_batch_current_size"),
	state("waiting", "tgi_queue_size"),
	from(finished, "tgi_request_success").with(AttrOutcome, Success),
	from(finished, "tgi_request_failure").with(AttrOutcome, Failure).per("err", AttrError),
	from(batchSize, "tgi_batch_next_size"),
	from(cacheUsage, "tgi_batch_current_max_tokens").with(AttrTier, "gpu"),
	from(cacheLimit, "tgi_batch_max_total_tokens", "tgi_batch_total_tokens").with(AttrTier, "gpu"),
}

var tei = []rule{
	from(requestDuration, "te_request_duration"),
	from(queueDuration, "te_request_queue_duration"),
	from(inferenceDuration, "te_request_inference_duration"),
	from(tokensIn, "te_request_input_length").total(),
	from(requestTokens, "te_request_input_length").with(AttrToken, "input"),
	state("waiting", "te_queue_size"),
	from(finished, "te_request_success").with(AttrOutcome, Success),
	from(finished, "te_request_failure").with(AttrOutcome, Failure).per("err", AttrError),
	from(batchSize, "te_batch_next_size"),
	from(batchTokens, "te_batch_next_tokens"),
}

var triton = []rule{
	from(timeToFirstToken, "nv_inference_first_response_histogram_ms").in(milliseconds),
	// Summaries take the place of counters where they are configured.
	from(requestTime, "nv_inference_request_duration_us", "nv_inference_request_summary_us_sum").in(microseconds),
	from(queueTime, "nv_inference_queue_duration_us", "nv_inference_queue_summary_us_sum").in(microseconds),
	from(computeTime, "nv_inference_compute_infer_duration_us", "nv_inference_compute_infer_summary_us_sum").in(microseconds),
	state("pending", "nv_inference_pending_request_count"), // in the core, before a backend has it
	from(finished, "nv_inference_request_success").with(AttrOutcome, Success),
	from(finished, "nv_inference_request_failure").with(AttrOutcome, Failure).per("reason", AttrError),
	from(loadTime, "nv_model_load_duration_secs"),
}

var tritonTensorRT = []rule{
	state("running", "nv_trt_llm_request_metrics").where("request_type", "scheduled"),
	made(tensorRTWaiting, []*Metric{requests}, "nv_trt_llm_request_metrics"),
	made(tensorRTCache, []*Metric{cacheUtilization, cacheLimit}, "nv_trt_llm_kv_cache_block_metrics"),
}

var tensorRT = []rule{
	from(timeToFirstToken, "trtllm_time_to_first_token_seconds"),
	from(timePerToken, "trtllm_time_per_output_token_seconds"),
	from(requestDuration, "trtllm_e2e_request_latency_seconds"),
	from(queueDuration, "trtllm_request_queue_time_seconds"),
	from(prefillDuration, "trtllm_request_prefill_time_seconds"),
	from(decodeDuration, "trtllm_request_decode_time_seconds"),
	from(inferenceDuration, "trtllm_request_inference_time_seconds"),
	from(tokensIn, "trtllm_prompt_tokens"),
	from(tokensOut, "trtllm_generation_tokens"),
	state("running", "trtllm_num_requests_running"),
	state("waiting", "trtllm_num_requests_waiting"),
	state("paused", "trtllm_num_paused_requests"),
	from(finished, "trtllm_request_success").per("finished_reason", AttrReason),
	from(finished, "trtllm_request_error").with(AttrOutcome, Failure).per("http_code", AttrError),
	from(cacheUtilization, "trtllm_kv_cache_utilization").with(AttrTier, "gpu"),
	from(cacheUtilization, "trtllm_kv_cache_host_utilization").with(AttrTier, "cpu"),
	made(tensorRTCacheLimit, []*Metric{cacheLimit}, "trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block"),
	prefix("trtllm_prompt_tokens", "trtllm_prompt_cached_tokens"),
	from(draftTokens, "trtllm_spec_decode_num_draft_tokens"),
	from(acceptedTokens, "trtllm_spec_decode_num_accepted_tokens"),
	from(acceptedByPosition, "trtllm_spec_decode_accepted_tokens").per("token_position", AttrPosition),
	made(tensorRTInfo, []*Metric{engineInfo}, "trtllm_model_config_info", "trtllm_parallel_config_info", "trtllm_cache_config_info"),
}

// nim is NIM 1.x, whose names have no prefix. Later ones have those of the engine inside.
var nim = []rule{
	from(timeToFirstToken, "time_to_first_token_seconds"),
	// As in vLLM of its time: it has one value per token after the first, not per request.
	from(interToken, "time_per_output_token_seconds").with(AttrWeight, "step"),
	from(requestDuration, "e2e_request_latency_seconds"),
	from(tokensIn, "prompt_tokens"),
	from(tokensOut, "generation_tokens"),
	from(requestTokens, "request_prompt_tokens").with(AttrToken, "input"),
	from(requestTokens, "request_generation_tokens").with(AttrToken, "output"),
	state("running", "num_requests_running"),
	state("waiting", "num_requests_waiting"),
	made(nimFinished, []*Metric{finished}, "request_success", "request_finish", "request_failure"),
	from(cacheUtilization, "gpu_cache_usage_perc").with(AttrTier, "gpu"),
}

// dynamoFrontend sees the requests that workers count: see frontDuration.
var dynamoFrontend = []rule{
	from(frontTimeToFirstToken, "dynamo_frontend_time_to_first_token_seconds"),
	from(frontInterToken, "dynamo_frontend_inter_token_latency_seconds"),
	from(frontDuration, "dynamo_frontend_request_duration_seconds"),
	from(frontTokens, "dynamo_frontend_input_sequence_tokens").total().with(AttrToken, "input"),
	from(frontTokens, "dynamo_frontend_output_tokens").with(AttrToken, "output"),
	rule{metric: frontRequests, from: []string{"dynamo_frontend_active_requests", "dynamo_frontend_inflight_requests"}}.with(AttrState, "active"),
	from(frontFinished, "dynamo_frontend_requests").per("status", AttrOutcome).per("error_type", AttrError),
}

var dynamoWorker = []rule{
	made(dynamoCache, []*Metric{cacheUtilization}, "dynamo_component_gpu_cache_usage_percent"),
	from(loadTime, "dynamo_component_model_load_time_seconds"),
}

var rayServe = []rule{
	from(frontDuration, "ray_serve_http_request_latency_ms").in(milliseconds),
	rule{metric: frontRequests, from: []string{"ray_serve_num_ongoing_requests_at_replicas"}}.with(AttrState, "running"),
	rule{metric: frontRequests, from: []string{"ray_serve_deployment_queued_queries"}}.with(AttrState, "waiting"),
	from(frontFinished, "ray_serve_num_http_requests").per("status_code", AttrStatus),
}

var llamaCPP = []rule{
	made(llamaTokens, []*Metric{tokensIn, prefixQueries, prefixHits}, "llamacpp_prompt_tokens", "llamacpp_prompt_tokens_cached"),
	from(tokensOut, "llamacpp_tokens_predicted"),
	from(prefillTime, "llamacpp_prompt_seconds"),
	from(decodeTime, "llamacpp_tokens_predicted_seconds"),
	state("running", "llamacpp_requests_processing"),
	state("waiting", "llamacpp_requests_deferred"),
	from(cacheUtilization, "llamacpp_kv_cache_usage_ratio").with(AttrTier, "gpu"),
	from(cacheUsage, "llamacpp_kv_cache_tokens").with(AttrTier, "gpu"),
	from(batchMean, "llamacpp_n_busy_slots_per_decode"), // its type says counter
	from(drafts, "llamacpp_spec_decode_num_drafts"),
	from(draftTokens, "llamacpp_spec_decode_num_draft_tokens"),
	from(acceptedTokens, "llamacpp_spec_decode_num_accepted_tokens"),
	from(acceptedByPosition, "llamacpp_spec_decode_num_accepted_tokens_per_pos").per("position", AttrPosition),
}

var lmdeploy = []rule{
	from(timeToFirstToken, "lmdeploy_time_to_first_token_seconds"),
	from(timePerToken, "lmdeploy_time_per_output_token_seconds"),
	from(interToken, "lmdeploy_iter_token_latency").with(AttrWeight, "step"),
	from(requestDuration, "lmdeploy_e2e_request_latency_seconds"),
	from(queueDuration, "lmdeploy_request_queue_time_seconds"),
	from(prefillDuration, "lmdeploy_request_prefill_time_seconds"),
	from(decodeDuration, "lmdeploy_request_decode_time_seconds"),
	from(inferenceDuration, "lmdeploy_request_inference_time_seconds"),
	from(tokensIn, "lmdeploy_prompt_tokens"),
	from(tokensOut, "lmdeploy_generation_tokens"),
	from(requestTokens, "lmdeploy_request_prompt_tokens").with(AttrToken, "input"),
	from(requestTokens, "lmdeploy_request_generation_tokens").with(AttrToken, "output"),
	state("running", "lmdeploy_num_requests_running"),
	state("waiting", "lmdeploy_num_requests_waiting"),
	from(finished, "lmdeploy_request_success").per("finished_reason", AttrReason),
	from(batchTokens, "lmdeploy_iteration_tokens"),
	from(cacheUtilization, "lmdeploy_gpu_cache_usage_perc").with(AttrTier, "gpu"),
	prefix("lmdeploy_prompt_tokens", "lmdeploy_cached_tokens"),
	from(drafts, "lmdeploy_spec_decode_num_drafts"),
	from(draftTokens, "lmdeploy_spec_decode_num_draft_tokens"),
	from(acceptedTokens, "lmdeploy_spec_decode_num_accepted_tokens"),
	from(acceptedByPosition, "lmdeploy_spec_decode_num_accepted_tokens_per_pos").per("position", AttrPosition),
}

var kserve = []rule{
	from(inferenceDuration, "request_predict_seconds"),
}
