package sim

import (
	"math"
	"slices"
)

// sglang writes pages like SGLang 0.5.18. Its processes share one page, so it does not say when they
// started.
type sglang struct {
	engine *Engine
	size   float64 // tokens in the cache

	prompt, computed, output, first, gap, total, queue *histogram
}

const sglangPage = 64 // tokens

func newSGLang(e *Engine) *sglang {
	r, x := &e.rates, &e.shapes
	one := indexed(func(int) float64 { return 1 })
	queue, prefill, decode := term{x.queue, r.queue}, term{x.prefill, r.prefill}, term{x.decode, r.perToken}
	outside := term{one, same(overhead)}
	gaps := r.perToken
	for i := range levels {
		gaps[i] *= x.decode.mean() / (e.service.output - 1)
	}
	sizes := []float64{
		100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12500, 15000, 17500, 20000, 22500, 25000, 27500,
		30000, 35000, 40000, 60000, 80000, 100000, 200000, 300000, 400000, 600000, 800000, 1e6, 1.1e6,
	}
	first := []float64{0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}
	return &sglang{
		engine: e, size: math.Floor(r.pool/sglangPage) * sglangPage,
		prompt:   newHistogram(sizes, term{x.prompt, same(1)}),
		computed: newHistogram(sizes, term{x.prompt, same(1 - e.service.reused)}),
		output:   newHistogram(sizes, term{x.output, same(1)}),
		first:    newHistogram(first, queue, prefill, outside),
		gap: newHistogram([]float64{
			0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8,
		}, term{x.gap, gaps}),
		total: newHistogram(slices.Concat(first, []float64{600, 1200, 1800, 2400}), queue, prefill, decode, outside),
		queue: newHistogram([]float64{
			0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300, 400, 500,
			600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000,
		}, queue),
	}
}

func (g *sglang) write(s *state) []byte {
	w := &pageWriter{b: make([]byte, 0, 96<<10), sumFirst: true}
	w.labels = []label{{"engine_type", "unified"}, {"model_name", g.engine.Model}, {"moe_ep_rank", "0"}, {"pp_rank", "0"}, {"tp_rank", "0"}}
	g.scheduler(w, s)
	g.constants(w)
	w.histogram("sglang:queue_time_seconds", "Seconds in the queue.", g.queue, &s.requests)
	w.labels = w.labels[:2] // the process in front of the scheduler
	g.requests(w, s)
	return w.b
}

// scheduler writes what the scheduler knows of the moment, and its totals.
func (g *sglang) scheduler(w *pageWriter, s *state) {
	e, x := g.engine, g.engine.service
	out := x.output / e.rates.tokens
	used := math.Floor(s.cached * g.size)
	free := math.Floor(0.2 * (g.size - used))
	running := max(s.running, 1)
	for _, v := range []struct {
		name, help string
		value      float64
	}{
		{"num_running_reqs", "Requests that run.", s.running},
		{"num_queue_reqs", "Requests in the queue.", s.waiting},
		{"num_grammar_queue_reqs", "Requests in the queue for grammars.", 0},
		{"gen_throughput", "Tokens of outputs per second.", s.rate * out},
		{"cache_hit_rate", "Hits of the prefix cache.", x.reused},
		{"decode_sum_seq_lens", "Tokens of all sequences that are decoded.", used},
		{"token_usage", "Part of the cache that is in use.", used / g.size},
		{"full_token_usage", "Part of the cache of full attention that is in use.", used / g.size},
		{"swa_token_usage", "Part of the cache of sliding windows that is in use.", 0},
		{"mamba_usage", "Part of the state pool that is in use.", 0},
		{"num_used_tokens", "Tokens in the cache.", used},
		{"kv_available_tokens", "Tokens that are free in the cache.", free},
		{"kv_evictable_tokens", "Tokens in the cache that nobody uses.", g.size - used - free},
		{"kv_used_tokens", "Tokens in the cache that are used.", used},
		{"num_retracted_reqs", "Requests that were just retracted.", s.preemptedNow},
		{"num_paused_reqs", "Requests that are paused.", 0},
		{"utilization", "Utilization.", 0},
		{"fwd_occupancy", "Percent of the time in which the device computes.", 100 * s.busy},
		{"new_token_ratio", "Part of the outputs for which memory is reserved.", min(1, 0.4+s.waiting/(2*running))},
		{"is_cuda_graph", "Whether a graph is used.", 1},
	} {
		w.gauge("sglang:"+v.name, v.help, v.value)
	}
	w.counter("sglang:num_retracted_requests", "Requests that were retracted.", s.preempted)
	w.counter("sglang:num_retracted_input_tokens", "Tokens of prompts that were retracted.", s.preempted*x.prompt)
	w.counter("sglang:num_retracted_output_tokens", "Tokens of outputs that were retracted.", s.preempted*x.output/4)
	in := s.tokens * x.prompt / e.rates.tokens
	w.begin("counter", "sglang:realtime_tokens", "Tokens, by what was done with them.")
	w.put(math.Floor(in*(1-x.reused)), "mode", "prefill_compute")
	w.put(math.Floor(in*x.reused), "mode", "prefill_cache")
	w.put(math.Floor(s.tokens*out), "mode", "decode")
}

// constants writes what does not change while the engine runs.
func (g *sglang) constants(w *pageWriter) {
	e := g.engine
	devices := e.rates.devices
	for _, v := range []struct {
		name, help string
		value      float64
	}{
		{"max_total_num_tokens", "Tokens that fit into the cache.", g.size},
		{"weight_memory_usage_gb", "Memory of the weights.", hundredth(e.network.weights / devices / gib)},
		{"kv_cache_memory_usage_gb", "Memory of the cache.", hundredth(g.size * e.network.cache / devices / gib)},
		{"page_size", "Tokens per page of the cache.", sglangPage},
		{"num_pages", "Pages of the cache.", g.size / sglangPage},
		{"context_len", "Most tokens of a request.", float64(e.network.context)},
		{"startup_available_gpu_memory_gb", "Memory that was free after the start.", hundredth((1 - e.service.full) * e.gpus[0].model.memory / gib)},
	} {
		w.gauge("sglang:"+v.name, v.help, v.value)
	}
}

func hundredth(v float64) float64 { return math.Round(v*100) / 100 }

// requests writes what is known of requests. All stream their outputs. Requests and their tokens count
// when they end, those that were given up as well.
func (g *sglang) requests(w *pageWriter, s *state) {
	const streaming = "is_streaming"
	aborted := g.engine.ends(&s.requests).abort + float64(s.all[gaveUp])
	in := g.prompt.sum(&s.requests)
	w.counter("sglang:prompt_tokens", "Tokens of prompts.", in, streaming, "true")
	w.counter("sglang:generation_tokens", "Tokens of outputs.", g.output.sum(&s.requests), streaming, "true")
	w.histogram("sglang:prompt_tokens_histogram", "Tokens per prompt.", g.prompt, &s.requests)
	w.histogram("sglang:uncached_prompt_tokens_histogram", "Tokens per prompt that were computed.", g.computed, &s.requests)
	w.histogram("sglang:generation_tokens_histogram", "Tokens per output.", g.output, &s.requests)
	w.counter("sglang:cached_tokens", "Tokens of prompts that were cached, by where.", math.Floor(in*g.engine.service.reused), "cache_source", "device")
	w.counter("sglang:num_requests", "Requests that ended.", float64(s.all.total()), streaming, "true")
	w.counter("sglang:num_aborted_requests", "Requests that were aborted.", aborted)
	w.histogram("sglang:time_to_first_token_seconds", "Seconds to the first token.", g.first, &s.requests, streaming, "true")
	w.histogram("sglang:inter_token_latency_seconds", "Seconds between two tokens.", g.gap, &s.gaps)
	w.histogram("sglang:e2e_request_latency_seconds", "Seconds from arrival to end.", g.total, &s.all, streaming, "true")
	w.end()
}
