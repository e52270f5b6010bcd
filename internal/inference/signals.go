package inference

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

// Signals are what decides which engine gets the next request.
type Signals struct {
	// Waiting and Running are requests that the engine has accepted and not finished.
	Waiting, Running optional.Float
	// CacheUsed is the part of the key-value cache that is in use, 0 to 1. Of several caches it is the fullest,
	// because nobody knows beforehand which of them a request gets.
	CacheUsed optional.Float
	// BlockSize is the size of a block of the key-value cache in tokens, and Blocks how many there are.
	BlockSize, Blocks optional.Float
	// Adapters are LoRA adapters, nil if the engine has none.
	Adapters *Adapters
}

// Adapters are the LoRA adapters of an engine, as it lists them: names with commas between them.
type Adapters struct {
	Running, Waiting string
	Limit            int     // how many can be in use at a time; 0: unknown
	Changed          float64 // when it last said so, in seconds since 1970
}

// signals returns what the points of a page say, and what the page has besides.
func (p *page) signals(points []Point) Signals {
	var out Signals
	var usage, limit []*Point
	for i := range points {
		point := &points[i]
		tier := cmp.Or(point.Get(AttrTier), "gpu")
		switch {
		case point.Metric == requests && point.Get(AttrState) == "running":
			out.Running = plus(out.Running, optional.Of(point.Value))
		case point.Metric == requests: // for its turn, for a grammar, for memory that was taken from it
			out.Waiting = plus(out.Waiting, optional.Of(point.Value))
		case point.Metric == cacheUtilization && tier == "gpu":
			out.CacheUsed = larger(out.CacheUsed, optional.Of(point.Value))
		case point.Metric == cacheUsage && tier == "gpu":
			usage = append(usage, point)
		case point.Metric == cacheLimit && tier == "gpu":
			limit = append(limit, point)
		}
	}
	if !out.CacheUsed.OK() {
		for _, u := range usage {
			for _, l := range limit {
				if slices.Equal(u.Attrs, l.Attrs) {
					out.CacheUsed = larger(out.CacheUsed, optional.Of(u.Value).Ratio(optional.Of(l.Value)))
				}
			}
		}
	}
	out.BlockSize, out.Blocks = p.blocks()
	if s := newest(p.of("vllm_lora_requests_info")); s != nil {
		text := promtext.Sample{Labels: s.labels}
		limit, _ := strconv.Atoi(text.Get("max_lora"))
		out.Adapters = &Adapters{strings.Clone(text.Get("running_lora_adapters")), strings.Clone(text.Get("waiting_lora_adapters")), max(limit, 0), s.value}
	}
	return out
}

// of returns the series of a family, none if the page does not have it.
func (p *page) of(name string) []series {
	f := p.find(name)
	if f == nil {
		return nil
	}
	return totals(unique(f.values()))
}

// newest returns the series with the largest value, nil if there is none.
func newest(list []series) *series {
	var out *series
	for i := range list {
		if out == nil || list[i].value > out.value {
			out = &list[i]
		}
	}
	return out
}

// blocks returns the size of a block of the cache and the number of blocks, of all engines behind the page.
// They are absent if the engines differ.
func (p *page) blocks() (size, count optional.Float) {
	add := func(tokens, n float64) {
		if !(tokens > 0) || !(n > 0) || math.IsInf(n, 0) {
			return
		}
		size, count = sameSize(size, count, optional.Of(tokens), optional.Of(n))
	}
	for _, info := range [][3]string{{"vllm_cache_config_info", "block_size", "num_gpu_blocks"}, {"sglang_cache_config_info", "page_size", "num_pages"}} {
		for _, s := range p.of(info[0]) {
			text := promtext.Sample{Labels: s.labels}
			tokens, _ := strconv.ParseFloat(text.Get(info[1]), 64) // 0: the engine does not know yet
			n, _ := strconv.ParseFloat(text.Get(info[2]), 64)
			add(tokens, n)
		}
	}
	tokens := byKind(p.of("trtllm_kv_cache_tokens_per_block"), "")[""]
	for _, s := range p.of("trtllm_kv_cache_max_blocks") {
		add(tokens[keyWithout(s.labels)], s.value)
	}
	const kind = "kv_cache_block_type"
	values := byKind(p.of("nv_trt_llm_kv_cache_block_metrics"), kind)
	for key, n := range values["max"] {
		add(values["tokens_per"][key], n)
	}
	return size, count
}

// sameSize adds blocks to blocks. The size is NaN once two differed, so that a third cannot bring it back.
func sameSize(size, count, moreSize, more optional.Float) (optional.Float, optional.Float) {
	a, known := size.Get()
	if b, _ := moreSize.Get(); known && a != b {
		return optional.Of(math.NaN()), optional.Float{}
	}
	return moreSize, plus(count, more)
}

// Together returns the signals of engines that take requests as one.
func Together(list ...Signals) Signals {
	var out Signals
	for _, s := range list {
		out.Waiting, out.Running = plus(out.Waiting, s.Waiting), plus(out.Running, s.Running)
		out.CacheUsed = larger(out.CacheUsed, s.CacheUsed)
		if s.BlockSize.OK() {
			out.BlockSize, out.Blocks = sameSize(out.BlockSize, out.Blocks, s.BlockSize, s.Blocks)
		}
		out.Adapters = out.Adapters.and(s.Adapters)
	}
	return out
}

func (a *Adapters) and(b *Adapters) *Adapters {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	join := func(x, y string) string { return strings.Trim(x+","+y, ",") }
	return &Adapters{join(a.Running, b.Running), join(a.Waiting, b.Waiting), a.Limit + b.Limit, max(a.Changed, b.Changed)}
}

// plus returns the sum of what is there.
func plus(a, b optional.Float) optional.Float {
	x, ok := a.Get()
	if !ok {
		return b
	}
	y, _ := b.Get()
	return optional.Of(x + y)
}

// larger returns the larger of what is there.
func larger(a, b optional.Float) optional.Float {
	x, ok := a.Get()
	if y, also := b.Get(); !ok || also && y > x {
		return b
	}
	return a
}

// quoted writes a label as the format wants it.
var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// Page writes the signals as a Prometheus page, with the names that the endpoint pickers of Kubernetes' inference
// extension ask for unless they are told otherwise. These names are vLLM's. What is absent is not on the page.
func (s *Signals) Page() []byte {
	var b []byte
	gauge := func(name, help, labels string, value float64) {
		b = fmt.Appendf(b, "# HELP vllm:%s %s\n# TYPE vllm:%s gauge\nvllm:%s%s %s\n", name, help, name, name, labels, strconv.FormatFloat(value, 'g', -1, 64))
	}
	for _, m := range []struct {
		name, help string
		value      optional.Float
	}{
		{"num_requests_waiting", "Requests that wait.", s.Waiting},
		{"num_requests_running", "Requests that are worked on.", s.Running},
		{"kv_cache_usage_perc", "Part of the key-value cache that is in use, 0 to 1.", s.CacheUsed},
	} {
		if v, ok := m.value.Get(); ok {
			gauge(m.name, m.help, "", v)
		}
	}
	if count, ok := s.Blocks.Get(); ok {
		size, _ := s.BlockSize.Get()
		gauge("cache_config_info", "Blocks of the key-value cache, and tokens per block.", fmt.Sprintf(`{block_size="%.0f",num_gpu_blocks="%.0f"}`, size, count), 1)
	}
	if a := s.Adapters; a != nil {
		gauge("lora_requests_info", "LoRA adapters; the value is when they last changed.",
			fmt.Sprintf(`{max_lora="%d",running_lora_adapters="%s",waiting_lora_adapters="%s"}`, a.Limit, quoted.Replace(a.Running), quoted.Replace(a.Waiting)), a.Changed)
	}
	return b
}
