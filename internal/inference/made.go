package inference

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// maxBound is the bound of the last bucket.
var maxBound = math.Inf(1)

// values returns the series of a family and marks the family as known. It returns none if the page does
// not have it.
func (c *collector) values(name string) []series {
	f := c.page.find(name)
	if f == nil {
		return nil
	}
	f.mapped = true
	return totals(unique(f.values()))
}

// byKind divides the series of a family by the label that says what each is. The values of a kind are by the other
// labels.
func byKind(list []series, kind string) map[string]map[string]float64 {
	out := map[string]map[string]float64{}
	for _, s := range list {
		of, _ := label(s.labels, kind)
		if out[of] == nil {
			out[of] = map[string]float64{}
		}
		if key := keyWithout(s.labels, kind); !has(out[of], key) {
			out[of][key] = s.value
		}
	}
	return out
}

func has(values map[string]float64, key string) bool {
	_, ok := values[key]
	return ok
}

// vllmCacheLimit takes the size of the cache from the labels of an info series.
func vllmCacheLimit(c *collector) {
	for _, s := range c.values("vllm_cache_config_info") {
		number := func(name string) float64 {
			text, _ := label(s.labels, name)
			v, err := strconv.ParseFloat(text, 64)
			if err != nil || !(v > 0) {
				return 0
			}
			return v
		}
		if tokens := number("block_size") * number("num_gpu_blocks"); tokens > 0 {
			s.value = tokens
			c.add(&rule{metric: cacheLimit, set: []Attr{{AttrTier, "gpu"}}}, []series{s})
		}
	}
}

// vllmAdapters counts LoRA adapters. A series has the names of adapters as labels, and the time of the
// last change as its value; older series stay.
func vllmAdapters(c *collector) {
	last := newest(c.values("vllm_lora_requests_info"))
	if last == nil {
		return
	}
	text, _ := label(last.labels, "max_lora")
	if limit, err := strconv.ParseFloat(text, 64); err == nil && limit > 0 {
		c.add(&rule{metric: adapterLimit}, []series{{labels: last.labels, value: limit}})
	}
	for label, state := range map[string]string{"running_lora_adapters": "running", "waiting_lora_adapters": "waiting"} {
		text := (&promtext.Sample{Labels: last.labels}).Get(label)
		n := len(strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }))
		c.add(&rule{metric: adapters, set: []Attr{{AttrState, state}}}, []series{{labels: last.labels, value: float64(n)}})
	}
}

// sglangFinished divides finished requests: the total has those that were aborted, too. SGLang does not say whose
// requests were aborted. Where it tells tenants apart, the outcome of a tenant's requests is therefore unknown from the
// first that was aborted.
func sglangFinished(c *collector) {
	all := c.values("sglang_num_requests")
	if len(all) == 0 {
		return
	}
	aborted := c.values("sglang_num_aborted_requests")
	nobodys := func(s series) bool { return tenantOf(s.labels, c.tenants) == "" }
	whole := slices.ContainsFunc(aborted, nobodys) && slices.ContainsFunc(all, func(s series) bool { return !nobodys(s) })
	c.aside = !whole
	c.add(&rule{metric: finished}, all)
	c.aside = whole
	success := rule{metric: finished, set: []Attr{{AttrOutcome, Success}}}
	c.add(&success, all)
	c.add(&rule{metric: finished, set: []Attr{{AttrOutcome, Abort}}}, aborted)
	for _, s := range aborted {
		c.take(&success, &s)
	}
	c.aside = false
}

// take subtracts a series from a point that add has made. The two are not read at the same moment.
func (c *collector) take(r *rule, s *series) {
	key := (&Point{Metric: r.metric, Attrs: c.attrs(c.modelOf(s.labels), c.attrsOf(r, s))}).Key()
	if p := c.points[key]; p != nil {
		p.Value = max(0, p.Value-s.value)
		p.parts = append(p.parts, contribution{key: s.key(), value: s.value, minus: true})
	}
}

// prefix takes the hits of an engine that looks up every token of a prompt in its prefix cache, and counts no lookups.
// Without hits there are none: versions that do not count these would lower the ratio of the others.
func (c *collector) prefix(prompts, hits string) {
	gpu := []Attr{{AttrTier, "gpu"}}
	list := c.values(hits)
	c.aside = len(list) == 0
	c.add(&rule{metric: prefixQueries, set: gpu}, c.values(prompts))
	c.aside = false
	c.add(&rule{metric: prefixHits, set: gpu}, list)
}

// web takes the answers to requests for inference. Other requests are people's and ours: for the list of models, for
// the page.
func (c *collector) web(family, path, status string) {
	for _, s := range c.values(family) {
		at, _ := label(s.labels, path)
		method, _ := label(s.labels, "method")
		if method == "GET" || !strings.HasPrefix(at, "/v1/") && at != "/generate" {
			continue
		}
		code, _ := label(s.labels, status)
		if len(code) != 3 || code[0] < '1' || code[0] > '5' {
			continue
		}
		set := []Attr{{AttrClass, code[:1] + "xx"}}
		if _, err := strconv.ParseUint(code, 10, 16); err == nil { // else it is a class
			set = append(set, Attr{AttrStatus, code})
		}
		c.add(&rule{metric: responses, set: set}, []series{s})
	}
}

// nimFinished takes requests by reason where they are known, and failed ones.
func nimFinished(c *collector) {
	success := c.values("request_success")
	if list := c.values("request_finish"); len(list) > 0 {
		c.add(&rule{metric: finished, by: []Attr{{"finished_reason", AttrReason}}}, list)
	} else {
		c.add(&rule{metric: finished, set: []Attr{{AttrOutcome, Success}}}, success)
	}
	c.add(&rule{metric: finished, set: []Attr{{AttrOutcome, Failure}}}, c.values("request_failure"))
}

// tensorRTWaiting takes the waiting requests; older versions have active and scheduled ones only.
func tensorRTWaiting(c *collector) {
	const kind = "request_type"
	r := rule{metric: requests, set: []Attr{{AttrState, "waiting"}}, only: &promtext.Label{Name: kind, Value: "waiting"}}
	list := c.values("nv_trt_llm_request_metrics")
	if slices.ContainsFunc(list, func(s series) bool { v, _ := label(s.labels, kind); return v == "waiting" }) {
		c.add(&r, list)
		return
	}
	scheduled := byKind(list, kind)["scheduled"]
	for _, s := range list {
		if v, _ := label(s.labels, kind); v != "active" {
			continue
		}
		if n, ok := scheduled[keyWithout(s.labels, kind)]; ok {
			s.value = max(0, s.value-n)
			c.add(&rule{metric: requests, set: r.set}, []series{s})
		}
	}
}

// tensorRTCache takes the use and the size of the cache, which is counted in blocks.
func tensorRTCache(c *collector) {
	const kind = "kv_cache_block_type"
	list := c.values("nv_trt_llm_kv_cache_block_metrics")
	values := byKind(list, kind)
	gpu := []Attr{{AttrTier, "gpu"}}
	for _, s := range list {
		if v, _ := label(s.labels, kind); v != "max" {
			continue
		}
		key := keyWithout(s.labels, kind)
		used, ok := values["used"][key]
		if fraction, known := values["fraction"][key]; known {
			used, ok = fraction*s.value, true
		}
		if ok && s.value > 0 {
			c.add(&rule{metric: cacheUtilization, set: gpu}, []series{{labels: s.labels, value: used / s.value}})
		}
		if tokens, ok := values["tokens_per"][key]; ok {
			c.add(&rule{metric: cacheLimit, set: gpu}, []series{{labels: s.labels, value: tokens * s.value}})
		}
	}
}

// tensorRTCacheLimit takes the size of the cache, which is counted in blocks.
func tensorRTCacheLimit(c *collector) {
	tokens := byKind(c.values("trtllm_kv_cache_tokens_per_block"), "")[""]
	for _, s := range c.values("trtllm_kv_cache_max_blocks") {
		if n, ok := tokens[keyWithout(s.labels)]; ok {
			s.value *= n
			c.add(&rule{metric: cacheLimit, set: []Attr{{AttrTier, "gpu"}}}, []series{s})
		}
	}
}

// dynamoCache takes the use of the cache from a worker, unless the engine in it says it on the same page.
func dynamoCache(c *collector) {
	list := c.values("dynamo_component_gpu_cache_usage_percent") // a ratio, despite its name
	for _, p := range c.points {
		if p.Metric == cacheUtilization {
			return
		}
	}
	c.add(&rule{metric: cacheUtilization, set: []Attr{{AttrTier, "gpu"}}}, list)
}

// llamaTokens takes the tokens of prompts: those that were computed, and newer versions also count those
// that were cached.
func llamaTokens(c *collector) {
	computed, cached := c.values("llamacpp_prompt_tokens"), c.values("llamacpp_prompt_tokens_cached")
	c.add(&rule{metric: tokensIn}, computed)
	c.add(&rule{metric: tokensIn}, cached)
	if len(cached) == 0 {
		return
	}
	gpu := []Attr{{AttrTier, "gpu"}}
	c.add(&rule{metric: prefixQueries, set: gpu}, computed)
	c.add(&rule{metric: prefixQueries, set: gpu}, cached)
	c.add(&rule{metric: prefixHits, set: gpu}, cached)
}

// describe takes labels as what an engine says of itself. pairs are labels and attributes.
func (c *collector) describe(s *series, pairs ...Attr) {
	var known []Attr
	for _, p := range pairs {
		if v, _ := label(s.labels, p.Name); v != "" && v != "None" {
			known = append(known, Attr{p.Value, v})
		}
	}
	if len(known) == 0 {
		return
	}
	model := c.modelOf(s.labels)
	base := c.attrs(model, nil)
	key := c.engine.provider + "\xff" + model
	p := c.infos[key]
	if p == nil {
		p = &Point{Metric: engineInfo, Attrs: base, Value: 1}
		c.infos[key] = p
		c.described = append(c.described, p)
	}
	p.describe(known...)
}

// describe adds attributes that a point does not have yet.
func (p *Point) describe(attrs ...Attr) {
	for _, a := range attrs {
		if p.Get(a.Name) == "" && len(a.Value) <= maxValue {
			p.Attrs = append(p.Attrs, Attr{a.Name, strings.Clone(a.Value)})
		}
	}
	slices.SortFunc(p.Attrs, func(a, b Attr) int { return strings.Compare(a.Name, b.Name) })
}

// Describe adds the version of the engine, which no page has. One that is empty adds nothing.
func (r *Reading) Describe(version string) {
	if version == "" || len(r.Providers) == 0 {
		return
	}
	done := false
	model := ""
	several := false
	for i := range r.Points {
		p := &r.Points[i]
		if p.Get(AttrProvider) != r.Providers[0] {
			continue
		}
		m := p.Get(AttrModel)
		several = several || model != "" && m != "" && m != model
		model = cmp.Or(model, m)
		if p.Metric == engineInfo {
			p.describe(Attr{AttrVersion, version})
			done = true
		}
	}
	if done {
		return
	}
	p := Point{Metric: engineInfo, Attrs: []Attr{{AttrProvider, r.Providers[0]}}, Value: 1}
	if model != "" && !several {
		p.Attrs = append(p.Attrs, Attr{AttrModel, model})
	}
	p.describe(Attr{AttrVersion, version})
	r.Points = append(r.Points, p)
}

func vllmInfo(c *collector) {
	for _, s := range c.values("vllm_cache_config_info") {
		c.describe(&s, Attr{"cache_dtype", AttrCacheType})
	}
}

func sglangInfo(c *collector) {
	for _, s := range c.values("sglang_context_len") {
		if s.value >= 1 && s.value < 1<<53 {
			s.labels = append(slices.Clone(s.labels), promtext.Label{Name: "context_len", Value: strconv.FormatFloat(s.value, 'f', -1, 64)})
			c.describe(&s, Attr{"context_len", AttrContext})
		}
	}
}

func tensorRTInfo(c *collector) {
	for _, family := range []string{"trtllm_model_config_info", "trtllm_parallel_config_info", "trtllm_cache_config_info"} {
		for _, s := range c.values(family) {
			c.describe(&s, Attr{"max_model_len", AttrContext}, Attr{"quantization", AttrQuantization}, Attr{"tensor_parallel_size", AttrTensor},
				Attr{"pipeline_parallel_size", AttrPipeline}, Attr{"cache_dtype", AttrCacheType})
		}
	}
}
