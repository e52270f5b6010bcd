// Package inference reads the metrics pages of inference engines in one vocabulary. Every engine has names
// of its own, which change with its versions: the table in this package knows them, the newest first,
// so that a query survives an upgrade. What a page has and the table does not is counted.
package inference

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// Reading is what a page says.
type Reading struct {
	// Providers are the engines whose families the page has.
	Providers []string
	Points    []Point
	// Unmapped counts samples of these engines that the table does not know, and Rejected those of
	// histograms that were cut off or do not add up, and those beyond the limit.
	Unmapped, Rejected int
	// Early: no engine is known by the page, which has nothing but families that engines have besides their own. Those
	// may appear with the first request.
	Early bool
	// Started is when the process of the engine started, in seconds since 1970; 0 if the page does not say.
	Started float64
	// Signals are what decides whether the next request should go there.
	Signals Signals

	// aside are counters that are not shown, and will be once the page has more: until then Growth follows them, so
	// that they do not seem to have grown all at once.
	aside []Point
}

// Point is a value of a metric. Histograms have Buckets, others a Value.
type Point struct {
	Metric *Metric
	Attrs  []Attr // in order of names
	Value  float64
	*Buckets
	// Since is when a counter or a histogram was zero for the last time, as far as that is known. See
	// Growth.
	Since time.Time

	parts []contribution // of a counter or a histogram
	aside bool
}

// contribution is what one series of the page adds to a point, or takes away from it.
type contribution struct {
	key       string
	value     float64
	histogram *Buckets
	minus     bool
	passing   bool // of a worker, which may end before the process that serves the page
}

// Attr is an attribute of a point.
type Attr struct{ Name, Value string }

// Key identifies the series of the point on its page.
func (p *Point) Key() string {
	var b strings.Builder
	b.WriteString(p.Metric.Name)
	for _, a := range p.Attrs {
		b.WriteString("\xff" + a.Name + "\xff" + a.Value)
	}
	return b.String()
}

// Get returns the value of an attribute, or "" if the point does not have it.
func (p *Point) Get(name string) string {
	for _, a := range p.Attrs {
		if a.Name == name {
			return a.Value
		}
	}
	return ""
}

// Tenants are the labels that say who asked, in the order in which they are looked for. Engines have them if they are
// told to (SGLang's --tokenizer-metrics-allowed-custom-labels), LiteLLM always. Single users are not among them: they
// would be many, and people.
func Tenants() []string {
	return []string{"tenant", "tenant_id", "team_alias", "team", "api_key_alias", "customer", "organization"}
}

// perTenant are the counters that are told apart by who asked: tokens and requests, from which bills follow. Whatever
// else has such labels is added up.
var perTenant = map[*Metric]bool{tokensIn: true, tokensOut: true, prefixHits: true, finished: true, frontTokens: true, frontFinished: true}

// Read reads a page. model is the name of the model for engines whose pages do not have it, and tenants are the labels
// that say who asked.
func Read(text *promtext.Text, model string, tenants ...string) *Reading {
	p := newPage(text)
	out := &Reading{}
	if f := p.find("process_start_time_seconds"); f != nil && len(f.samples) == 1 {
		if v := f.samples[0].Value; v > 0 && v < maxTime {
			out.Started = v
		}
	}
	c := &collector{page: p, model: model, tenants: tenants, points: map[string]*Point{}, infos: map[string]*Point{}}
	for i := range engines {
		e := &engines[i]
		if !e.on(p) {
			continue
		}
		out.Providers = append(out.Providers, e.provider)
		c.engine, c.sole = e, p.soleModel(e)
		for j := range e.rules {
			c.apply(&e.rules[j])
		}
	}
	for _, name := range c.order {
		if p := c.points[name]; p.aside {
			out.aside = append(out.aside, *p)
		} else {
			out.Points = append(out.Points, *p)
		}
	}
	for _, info := range c.described[:min(len(c.described), maxInfos)] {
		out.Points = append(out.Points, *info)
	}
	out.Early = len(out.Providers) == 0
	for _, f := range p.families {
		out.Early = out.Early && common(f.name)
		if !f.mapped && slices.ContainsFunc(engines, func(e engine) bool { return slices.Contains(out.Providers, e.provider) && e.owns(f.name) }) {
			out.Unmapped += len(f.samples) + len(f.buckets) + len(f.sums) + len(f.counts)
		}
	}
	out.Rejected = p.rejected
	out.Signals = p.signals(out.Points)
	return out
}

// engine is an engine of the table.
type engine struct {
	provider string
	prefixes []string // of its families, canonical
	names    []string // families without a prefix: the page must have all of them
	rules    []rule
}

// owns reports whether a family belongs to the engine. Without a prefix all families do but common ones, and those of
// other engines.
func (e *engine) owns(name string) bool {
	begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	if len(e.names) > 0 {
		return !common(name) && !slices.ContainsFunc(engines, func(other engine) bool { return slices.ContainsFunc(other.prefixes, begins) })
	}
	return slices.ContainsFunc(e.prefixes, begins)
}

// common reports whether a family is one that many programs have, engines among them: of a client library, a web
// server, Ray, and the devices that Triton shows without any model.
func common(name string) bool {
	return slices.ContainsFunc([]string{"python_", "process_", "http_", "ray_", "nv_gpu_", "nv_cpu_", "nv_energy_", "nv_pinned_"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// on reports whether a page is of this engine. Python names families that have no value yet.
func (e *engine) on(p *page) bool {
	if len(e.names) > 0 {
		return !slices.ContainsFunc(e.names, func(name string) bool { return p.find(name) == nil && !p.declared[name] })
	}
	for name := range p.families {
		if e.owns(name) {
			return true
		}
	}
	return false
}

// rule maps families to a metric.
type rule struct {
	metric *Metric
	// from are families, the newest name first. The first that the page has counts, and no other: during a
	// migration an engine has both.
	from  []string
	only  *promtext.Label // the label that a series must have
	set   []Attr          // attributes of all points
	by    []Attr          // labels (Name) that become attributes (Value)
	parts float64         // how many of the unit make one of the metric's, such as 1000 ms; 0: 1
	sum   bool            // the sum of a histogram, as a counter
	// made makes points instead, of metrics that makes lists, from families that from lists.
	made  func(*collector)
	makes []*Metric
}

// maxPoints bounds what is read of a page, which may be hostile. A Triton with a hundred models has a thousand.
const maxPoints = 4000

// maxValue bounds the attributes of a point, in bytes: a label that all points have would multiply.
const maxValue = 1024

// maxInfos bounds the models of a page that are described.
const maxInfos = 256

// maxTime is beyond all times, in seconds since 1970.
const maxTime = 1 << 40

// collector makes points.
type collector struct {
	page    *page
	engine  *engine
	model   string // of engines whose pages have none
	tenants []string
	sole    string // the only model of the engine's series, if there is one
	points  map[string]*Point
	order   []string
	aside   bool // points are put aside, see Reading

	infos     map[string]*Point // what engines say of themselves, by provider and model
	described []*Point
}

func (c *collector) apply(r *rule) {
	if r.made != nil {
		r.made(c)
		return
	}
	f := c.page.find(r.from...)
	if f == nil {
		return
	}
	for _, name := range r.from {
		if other := c.page.find(name); other != nil {
			other.mapped = true // an older name of the same
		}
	}
	if r.metric.Kind == Histogram || r.sum {
		c.add(r, c.page.histograms(f))
		return
	}
	c.add(r, f.values())
}

// add adds series of a family to points.
func (c *collector) add(r *rule, list []series) {
	list = totals(unique(list))
	several := len(ranksOf(list)) > 1
	for i := range list {
		s := &list[i]
		if r.only != nil {
			if v, _ := label(s.labels, r.only.Name); v != r.only.Value {
				continue
			}
		}
		attrs := c.attrsOf(r, s)
		if rank := rankOf(s.labels); several && rank != "" && (r.metric.Kind == Gauge || r.metric.Kind == UpDown) {
			attrs = append(attrs, Attr{AttrRank, rank})
		}
		c.point(r.metric, c.modelOf(s.labels), attrs, s, r.parts, r.sum)
	}
}

// attrsOf returns the attributes that the labels of a series become by a rule. Python's None is none.
func (c *collector) attrsOf(r *rule, s *series) []Attr {
	attrs := slices.Clone(r.set)
	for _, by := range r.by {
		if v, _ := label(s.labels, by.Name); v != "" && v != "None" {
			attrs = append(attrs, Attr{by.Value, v})
		}
	}
	if perTenant[r.metric] {
		if tenant := tenantOf(s.labels, c.tenants); tenant != "" {
			attrs = append(attrs, Attr{AttrTenant, tenant})
		}
	}
	return attrs
}

// attrs returns the attributes of a point of the engine, in order of names.
func (c *collector) attrs(model string, attrs []Attr) []Attr {
	attrs = append(slices.Clone(attrs), Attr{AttrProvider, c.engine.provider})
	if model != "" {
		attrs = append(attrs, Attr{AttrModel, model})
	}
	if i := slices.IndexFunc(attrs, func(a Attr) bool { return a.Name == AttrReason }); i >= 0 {
		attrs[i].Value = strings.ToLower(attrs[i].Value)
		attrs = append(attrs, Attr{AttrOutcome, outcome(attrs[i].Value)})
	}
	slices.SortFunc(attrs, func(a, b Attr) int { return strings.Compare(a.Name, b.Name) })
	for i := range attrs {
		attrs[i].Value = strings.Clone(attrs[i].Value) // whoever remembers it must not keep the page
	}
	return attrs
}

// point adds a series to a point.
func (c *collector) point(m *Metric, model string, attrs []Attr, s *series, parts float64, sum bool) {
	attrs = c.attrs(model, attrs)
	parts = cmp.Or(parts, 1)
	value := s.value / parts
	if sum {
		value = s.histogram.Sum / parts
	}
	if m.Kind != Histogram && !(value >= 0 && value <= math.MaxFloat64) {
		if m.Kind == Counter {
			c.page.rejected++ // no count is like that
		}
		return // unknown: vLLM has a ratio of -1 before the first request
	}
	if slices.ContainsFunc(attrs, func(a Attr) bool { return len(a.Value) > maxValue }) {
		c.page.rejected++
		return
	}
	added := &Point{Metric: m, Attrs: attrs, Value: value, aside: c.aside}
	from := contribution{key: s.key(), value: value, passing: slices.ContainsFunc(s.labels, func(l promtext.Label) bool { return slices.Contains(workers, l.Name) })}
	if m.Kind == Histogram {
		from.histogram = s.histogram.over(parts)
		added.Value, added.Buckets = 0, from.histogram.over(1)
	}
	key := added.Key()
	p := c.points[key]
	if p == nil && len(c.points) == maxPoints {
		c.page.rejected++
		return
	}
	if p == nil {
		if m.Kind == Counter || m.Kind == Histogram {
			added.parts = []contribution{from}
		}
		c.points[key] = added
		c.order = append(c.order, key)
		return
	}
	switch m.Kind {
	case Histogram:
		if !p.plus(from.histogram) {
			c.page.rejected += len(s.histogram.Counts)
			return
		}
		p.parts = append(p.parts, from)
	case Counter:
		p.Value += value
		p.parts = append(p.parts, from)
	case Gauge:
		p.Value = max(p.Value, value)
	default:
		p.Value += value
	}
}

// outcome returns what became of a request from the reason for its end.
func outcome(reason string) string {
	switch reason {
	case "stop", "length", "repetition", "eos_token", "stop_sequence":
		return Success
	case "abort", "cancelled", "canceled":
		return Abort
	}
	return Failure
}

// modelOf returns the model of a series.
func (c *collector) modelOf(labels []promtext.Label) string {
	for _, name := range []string{"model_name", "model", "name"} {
		if v, ok := label(labels, name); ok && v != "" {
			return v
		}
	}
	return cmp.Or(c.sole, c.model)
}

// tenantOf returns who asked. Python's None is nobody.
func tenantOf(labels []promtext.Label, names []string) string {
	for _, name := range names {
		if v, _ := label(labels, name); v != "" && v != "None" {
			return v
		}
	}
	return ""
}

// soleModel returns the only model of an engine's series: some have no such label.
func (p *page) soleModel(e *engine) string {
	sole := ""
	for _, f := range p.families {
		if !e.owns(f.name) {
			continue
		}
		for _, s := range slices.Concat(f.samples, f.counts) {
			m := s.Get("model_name")
			if m != "" && sole != "" && m != sole {
				return ""
			}
			sole = cmp.Or(sole, m)
		}
	}
	return sole
}
