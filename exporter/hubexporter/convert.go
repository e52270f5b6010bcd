package hubexporter

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// Labels with a special meaning in Prometheus.
const (
	nameLabel     = "__name__"
	bucketLabel   = "le"
	quantileLabel = "quantile"
	targetInfo    = "target_info"
)

// DefaultResourceLabels are the resource attributes that become labels of every series. They
// match the page exporter and the documented Prometheus configuration, so that a query gives
// the same answer on every path.
func DefaultResourceLabels() []string {
	return []string{"host.name", "host.type", "k8s.node.name", "k8s.cluster.name", "cloud.region", "cloud.availability_zone", "rack", "gpumeter.simulated"}
}

// maxNames bounds the name cache of a converter; senders of ever new names bypass the cache.
const maxNames = 20_000

var (
	metricNamer = otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	unitNamer   = otlptranslator.UnitNamer{}
)

// label is a label under construction.
type label struct {
	name, value string
	key         string // original attribute
	rank        int    // the lower rank wins
}

const (
	ofSeries   = iota // name, le, quantile, job, instance
	ofPoint           // data point attributes
	ofResource        // promoted resource attributes
)

type metricKey struct {
	name, unit string
	kind       otlptranslator.MetricType
}

// converter converts metrics to samples. It caches names and is not safe for concurrent use.
type converter struct {
	promote []string
	labels  map[string]string    // by attribute; "" if the attribute cannot be a label
	metrics map[metricKey]string // "" if the name is invalid

	resource []label
	sets     map[uint64]*set // label sets of the current resource, by attribute hash
	scratch  []label
	builder  hub.LabelBuilder
	to       *hub.Appender
	store    Store
	room     int // bytes left for the samples of the request
	// earliest and latest sample of the current resource, in ms.
	earliest, latest int64
}

func newConverter(promote []string) *converter {
	return &converter{promote: promote, labels: map[string]string{}, metrics: map[metricKey]string{}, sets: map[uint64]*set{}}
}

// convert adds all of md to an appender, which the caller commits. Points beyond room bytes
// are refused.
func (c *converter) convert(md pmetric.Metrics, store Store, to *hub.Appender, room int) {
	c.store, c.to, c.room = store, to, room
	if len(c.labels) > maxNames || len(c.metrics) > maxNames {
		clear(c.labels)
		clear(c.metrics)
	}
	for _, rm := range md.ResourceMetrics().All() {
		attrs := rm.Resource().Attributes()
		c.enter(attrs)
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				c.metric(m)
			}
		}
		c.target(attrs)
	}
	clear(c.sets)
	c.store, c.to = nil, nil
}

// enter computes the labels shared by all series of a resource.
func (c *converter) enter(attrs pcommon.Map) {
	c.resource, c.earliest, c.latest = c.resource[:0], 0, 0
	clear(c.sets)
	for _, key := range c.promote {
		if v, ok := attrs.Get(key); ok {
			c.resource = c.add(c.resource, ofResource, key, v)
		}
	}
	job := text(attrs, "service.name")
	if space := text(attrs, "service.namespace"); job != "" && space != "" {
		job = space + "/" + job
	}
	for _, l := range []label{{name: "job", value: job}, {name: "instance", value: text(attrs, "service.instance.id")}} {
		if l.value = valid(l.value); l.value != "" {
			c.resource = append(c.resource, l)
		}
	}
}

func text(attrs pcommon.Map, key string) string {
	if v, ok := attrs.Get(key); ok {
		return v.AsString()
	}
	return ""
}

// valid returns s as a valid label value.
func valid(s string) string {
	return cut(strings.ToValidUTF8(cut(s, maxLabelValue), "\uFFFD"), maxLabelValue)
}

// add appends an attribute to out unless it cannot be a label or is empty: to Prometheus an
// empty label is an absent one.
func (c *converter) add(out []label, rank int, key string, v pcommon.Value) []label {
	name, ok := c.labels[key]
	if !ok {
		if name = labelName(key); len(key) <= maxName {
			c.labels[strings.Clone(key)] = name
		}
	}
	if name == "" {
		c.to.Note(hub.BadLabel, 1, "attribute "+strconv.Quote(cut(key, maxName))+" cannot be a label")
		return out
	}
	s := valid(v.AsString())
	if s == "" {
		return out
	}
	return append(out, label{name, s, key, rank})
}

// labelName returns the label of an attribute, or "" if it cannot be a label.
func labelName(attribute string) string {
	if len(attribute) > maxName {
		return ""
	}
	namer := otlptranslator.LabelNamer{}
	name, err := namer.Build(attribute)
	if err != nil || strings.HasPrefix(name, "__") {
		return ""
	}
	return name
}

// metricName returns the series name of m, or "" if it is invalid.
func (c *converter) metricName(m pmetric.Metric, kind otlptranslator.MetricType) string {
	if len(m.Name()) > maxName || len(m.Unit()) > maxName {
		return ""
	}
	key := metricKey{m.Name(), m.Unit(), kind}
	name, ok := c.metrics[key]
	if !ok {
		var err error
		if name, err = metricNamer.Build(otlptranslator.Metric{Name: m.Name(), Unit: m.Unit(), Type: kind}); err != nil {
			name = ""
		}
		c.metrics[metricKey{strings.Clone(key.name), strings.Clone(key.unit), kind}] = name
	}
	return name
}

// series returns the labels of a point. As in Prometheus' OTLP receiver, point attributes
// that map to the same label are joined in the order of their keys, and override resource
// attributes. special is le or quantile, or empty.
func (c *converter) series(name string, attrs pcommon.Map, special, value string) hub.Labels {
	extra := [2]label{{name: nameLabel, value: name}, {name: special, value: value}}
	rest := extra[:1]
	if special != "" {
		rest = extra[:] // le and quantile sort after __name__
	}
	c.builder.Reset()
	for _, l := range c.sorted(attrs, name) {
		for len(rest) > 0 && rest[0].name < l.name {
			c.builder.Add(rest[0].name, rest[0].value)
			rest = rest[1:]
		}
		if l.name != nameLabel && l.name != special { // reserved labels
			c.builder.Add(l.name, l.value)
		}
	}
	for _, l := range rest {
		c.builder.Add(l.name, l.value)
	}
	l := c.builder.Labels()
	c.room -= size(l) + sampleCost
	return l
}

// set maps attributes to labels, including those of the resource.
type set struct {
	pairs  [][2]string // keys and values
	labels []label
}

// maxSets bounds the cached sets of one resource.
const maxSets = 4096

// sorted returns the labels of a point without its name. Nearly all metrics of a device share
// a set, so sets are cached per resource.
func (c *converter) sorted(attrs pcommon.Map, name string) []label {
	h := hash(attrs)
	if s, ok := c.sets[h]; ok && s.is(attrs) {
		return s.labels
	}
	all := append(c.scratch[:0], c.resource...) //nolint:gocritic // stored back below
	for key, v := range attrs.All() {
		if len(all) == maxLabels {
			c.to.Note(hub.BadLabel, 1, name+" has more than "+strconv.Itoa(maxLabels)+" labels, the remaining ones are dropped")
			break
		}
		all = c.add(all, ofPoint, key, v)
	}
	c.scratch = all
	s := &set{labels: slices.Clone(join(all))}
	if len(c.sets) < maxSets {
		for key, v := range attrs.All() {
			s.pairs = append(s.pairs, [2]string{key, v.AsString()})
		}
		c.sets[h] = s
	}
	return s.labels
}

var seed = maphash.MakeSeed()

func hash(attrs pcommon.Map) uint64 {
	h := uint64(attrs.Len())
	for key, v := range attrs.All() {
		h = h*0x9e3779b97f4a7c15 ^ maphash.String(seed, key)
		h = h*0x9e3779b97f4a7c15 ^ maphash.String(seed, v.AsString())
	}
	return h
}

// is reports whether the set belongs to these attributes, in the same order.
func (s *set) is(attrs pcommon.Map) bool {
	if attrs.Len() != len(s.pairs) {
		return false
	}
	i := 0
	for key, v := range attrs.All() {
		if s.pairs[i][0] != key || s.pairs[i][1] != v.AsString() {
			return false
		}
		i++
	}
	return true
}

// join sorts labels and merges those with the same name.
func join(all []label) []label {
	slices.SortFunc(all, func(a, b label) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.rank, b.rank), strings.Compare(a.key, b.key))
	})
	out := all[:0]
	for i := 0; i < len(all); {
		l := all[i]
		for i++; i < len(all) && all[i].name == l.name; i++ {
			if l.rank == ofPoint && all[i].rank == ofPoint && len(l.value) <= maxLabelValue {
				l.value += ";" + all[i].value
			}
		}
		l.value = cut(l.value, maxLabelValue)
		out = append(out, l)
	}
	return out
}

// target writes target_info with the remaining resource attributes, for joins.
func (c *converter) target(attrs pcommon.Map) {
	if c.latest == 0 {
		return
	}
	c.scratch = append(c.scratch[:0], label{name: nameLabel, value: targetInfo})
	all := c.scratch
	identified := false
	for _, l := range c.resource {
		if l.rank == ofSeries { // job and instance
			all, identified = append(all, l), true
		}
	}
	known := len(all)
	for key, v := range attrs.All() {
		switch key {
		case "service.name", "service.namespace", "service.instance.id":
		default:
			if len(all) < maxLabels {
				all = c.add(all, ofPoint, key, v)
			}
		}
	}
	if !identified || len(all) == known {
		return
	}
	c.scratch = all
	c.builder.Reset()
	for _, l := range join(all) {
		c.builder.Add(l.name, l.value)
	}
	l := c.builder.Labels()
	c.to.Derived()
	c.room -= size(l)
	// Often enough to be within the lookback at any time.
	const every, most = 150_000, 600
	for t := max(c.earliest, c.latest-every*most); t < c.latest && c.room > 0; t += every {
		c.to.Gauge(l, t, 1)
		c.room -= sampleCost
	}
	c.to.Gauge(l, c.latest, 1)
}

// seen updates the time range of the current resource.
func (c *converter) seen(ms int64) {
	if c.latest == 0 {
		c.earliest, c.latest = ms, ms
		return
	}
	c.earliest, c.latest = min(c.earliest, ms), max(c.latest, ms)
}
