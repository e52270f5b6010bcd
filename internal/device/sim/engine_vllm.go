package sim

import (
	"math"
	"strconv"
)

// vllm writes pages like vLLM 0.27 with its V1 engine.
type vllm struct {
	engine *Engine
	blocks float64 // of the cache

	prompt, output, computed, most, choices, limit, step                *histogram
	first, gap, perToken, total, queue, inference, prefill, decode, web *histogram
}

const vllmBlock = 16 // tokens

func newVLLM(e *Engine) *vllm {
	r, x := &e.rates, &e.shapes
	sizes := oneTwoFive(e.network.context)
	short := []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	long := []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	one := indexed(func(int) float64 { return 1 })
	queue, prefill, decode := term{x.queue, r.queue}, term{x.prefill, r.prefill}, term{x.decode, r.perToken}
	outside := term{one, same(overhead)}
	// A gap takes as long as those of the mean request.
	gaps, perStep := r.perToken, r.perToken
	for i := range levels {
		gaps[i] *= x.decode.mean() / (e.service.output - 1)
		perStep[i] *= r.capacity * r.devices * (1 - e.service.reused*e.service.prompt/r.tokens)
	}
	first := []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	return &vllm{
		engine: e, blocks: math.Floor(r.pool / vllmBlock),
		prompt:    newHistogram(sizes, term{x.prompt, same(1)}),
		output:    newHistogram(sizes, term{x.output, same(1)}),
		most:      newHistogram(sizes, term{x.output, same(1)}),
		computed:  newHistogram(sizes, term{x.prompt, same(1 - e.service.reused)}),
		choices:   newHistogram([]float64{1, 2, 5, 10, 20}, term{one, same(1)}),
		limit:     newHistogram(sizes, term{one, same(e.service.limit)}),
		step:      newHistogram([]float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}, term{x.step, perStep}),
		first:     newHistogram(first, queue, prefill, outside),
		gap:       newHistogram(short, term{x.gap, gaps}),
		perToken:  newHistogram(short, term{x.perToken, r.perToken}),
		total:     newHistogram(long, queue, prefill, decode, outside),
		queue:     newHistogram(long, queue),
		inference: newHistogram(long, prefill, decode),
		prefill:   newHistogram(long, prefill),
		decode:    newHistogram(long, decode),
		web:       newHistogram([]float64{0.1, 0.5, 1}, queue, prefill, outside),
	}
}

func (v *vllm) write(s *state) []byte {
	e := v.engine
	w := &pageWriter{b: make([]byte, 0, 96<<10), created: unix(e.start)}
	w.python(s.up, 1.1*s.up+0.4*s.busyTime, 5.2*gib, e.start)
	w.labels = []label{{"engine", "0"}, {"model_name", e.Model}}
	v.scheduler(w, s)
	v.counters(w, s)
	w.histogram("vllm:request_prompt_tokens", "Tokens per prompt.", v.prompt, &s.requests)
	w.histogram("vllm:request_generation_tokens", "Tokens per output.", v.output, &s.requests)
	w.histogram("vllm:iteration_tokens_total", "Tokens per step of the engine.", v.step, &s.steps)
	w.histogram("vllm:request_max_num_generation_tokens", "Tokens of the longest output of a request.", v.most, &s.requests)
	w.histogram("vllm:request_params_n", "Outputs asked for, per request.", v.choices, &s.requests)
	w.histogram("vllm:request_params_max_tokens", "Most tokens asked for, per request.", v.limit, &s.requests)
	w.histogram("vllm:time_to_first_token_seconds", "Seconds to the first token.", v.first, &s.requests)
	w.histogram("vllm:inter_token_latency_seconds", "Seconds between two tokens.", v.gap, &s.gaps)
	w.histogram("vllm:request_time_per_output_token_seconds", "Seconds per token of an output, per request.", v.perToken, &s.requests)
	w.histogram("vllm:e2e_request_latency_seconds", "Seconds from arrival to end.", v.total, &s.requests)
	w.histogram("vllm:request_queue_time_seconds", "Seconds in the state WAITING.", v.queue, &s.requests)
	w.histogram("vllm:request_inference_time_seconds", "Seconds in the state RUNNING.", v.inference, &s.requests)
	w.histogram("vllm:request_prefill_time_seconds", "Seconds of prefill.", v.prefill, &s.requests)
	w.histogram("vllm:request_decode_time_seconds", "Seconds of decoding.", v.decode, &s.requests)
	w.histogram("vllm:request_prefill_kv_computed_tokens", "Tokens of prompts that were computed, per request.", v.computed, &s.requests)
	v.config(w)
	v.http(w, s)
	w.end()
	return w.b
}

// scheduler writes what the engine does at the moment.
func (v *vllm) scheduler(w *pageWriter, s *state) {
	w.gauge("vllm:num_requests_running", "Requests that run.", s.running)
	w.gauge("vllm:num_requests_waiting", "Requests that wait.", s.waiting)
	w.begin("gauge", "vllm:num_requests_waiting_by_reason", "Requests that wait, by reason.")
	w.put(s.waiting, "reason", "capacity")
	w.put(0, "reason", "deferred")
	w.begin("gauge", "vllm:engine_sleep_state", "Whether the engine sleeps.")
	w.put(1, "sleep_state", "awake")
	w.put(0, "sleep_state", "weights_offloaded")
	w.put(0, "sleep_state", "discard_all")
	w.gauge("vllm:kv_cache_usage_perc", "Part of the cache that is in use, 1 is all.", math.Floor(s.cached*v.blocks)/v.blocks)
}

// counters writes totals since the start. Tokens count when they are computed, requests when they end.
func (v *vllm) counters(w *pageWriter, s *state) {
	e := v.engine
	in, out := math.Floor(s.tokens*e.service.prompt/e.rates.tokens), math.Floor(s.tokens*e.service.output/e.rates.tokens)
	cached := math.Floor(s.tokens * e.service.prompt / e.rates.tokens * e.service.reused)
	// What was computed is a counter of its own: the difference of two rounded numbers could fall.
	computed := math.Floor(s.tokens * e.service.prompt / e.rates.tokens * (1 - e.service.reused))
	w.counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", in)
	w.counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", cached)
	w.counter("vllm:external_prefix_cache_queries", "Tokens looked up in the prefix cache of a connector.", 0)
	w.counter("vllm:external_prefix_cache_hits", "Tokens found in the prefix cache of a connector.", 0)
	w.counter("vllm:mm_cache_queries", "Items looked up in the cache of media.", 0)
	w.counter("vllm:mm_cache_hits", "Items found in the cache of media.", 0)
	w.counter("vllm:num_preemptions", "Requests that were preempted.", s.preempted)
	w.counter("vllm:prompt_tokens", "Tokens of prompts.", in)
	w.begin("counter", "vllm:prompt_tokens_by_source", "Tokens of prompts, by where they came from.")
	w.put(computed, "source", "local_compute")
	w.put(cached, "source", "local_cache_hit")
	w.put(0, "source", "external_kv_transfer")
	w.counter("vllm:prompt_tokens_cached", "Tokens of prompts that were cached.", cached)
	w.counter("vllm:generation_tokens", "Tokens of outputs.", out)
	w.begin("counter", "vllm:request_success", "Requests that ended, by reason.")
	ends := e.ends(&s.requests)
	w.put(ends.stop, "finished_reason", "stop")
	w.put(ends.length, "finished_reason", "length")
	w.put(ends.abort, "finished_reason", "abort")
	w.put(0, "finished_reason", "error")
	w.put(0, "finished_reason", "repetition")
}

// config writes the configuration of the cache, which is all in labels.
func (v *vllm) config(w *pageWriter) {
	labels := w.labels
	w.labels = nil
	tokens := v.blocks * vllmBlock
	w.gauge("vllm:cache_config_info", "Configuration of the cache.", 1,
		"_block_size_resolved", "True", "block_size", strconv.Itoa(vllmBlock), "cache_dtype", "auto", "calculate_kv_scales", "False",
		"enable_prefix_caching", "True", "engine", "0", "gpu_memory_utilization", strconv.FormatFloat(v.engine.service.full, 'f', -1, 64),
		"is_attention_free", "False", "kv_cache_max_concurrency", strconv.FormatFloat(tokens/float64(v.engine.network.context), 'f', 3, 64),
		"kv_cache_memory_bytes", "None", "kv_cache_size_tokens", strconv.Itoa(int(tokens)),
		"num_cpu_blocks", "None", "num_gpu_blocks", strconv.Itoa(int(v.blocks)), "num_gpu_blocks_override", "None",
		"prefix_caching_hash_algo", "sha256", "sliding_window", "None")
	w.labels = labels
}

// http writes what the web server in front of the engine counts.
func (v *vllm) http(w *pageWriter, s *state) {
	w.end() // the series of the engine
	w.labels = nil
	const handler, method = "/v1/chat/completions", "POST"
	w.counter("http_requests", "Requests, by method, status and handler.", float64(s.requests.total()), "handler", handler, "method", method, "status", "2xx")
	w.histogram("http_request_duration_seconds", "Seconds to the begin of an answer.", v.web, &s.requests, "handler", handler, "method", method)
}

// ends are how many requests ended in which way.
type ends struct{ stop, length, abort float64 }

// ends divides requests by quantile: the longest outputs were cut off, and some from the middle were aborted.
func (e *Engine) ends(c *counts) (x ends) {
	const first, last = quantiles / 2, quantiles/2 + 3 // three in a thousand
	whole := 0
	for whole < quantiles && e.shapes.output.values[whole] < e.service.limit {
		whole++
	}
	for _, n := range c[:levels] {
		aborted, stopped := below(n, last)-below(n, first), below(n, whole)
		x.abort += float64(aborted)
		x.stop += float64(stopped - aborted)
		x.length += float64(n - stopped)
	}
	return x
}
