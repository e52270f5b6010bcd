package pageexporter

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// Render writes md as the page that the exporter would serve for it alone, in the Prometheus
// text format or in OpenMetrics.
func Render(w io.Writer, md pmetric.Metrics, resourceLabels []string, openMetrics bool) error {
	var d dropped
	format := expfmt.TypeTextPlain
	if openMetrics {
		format = expfmt.TypeOpenMetrics
	}
	return encode(w, merge(split(md), newTranslation(resourceLabels, &d)), format)
}

// encode writes families. It omits the _created lines of OpenMetrics: they double the lines
// of every counter, and Prometheus stores them as separate series unless a feature flag is
// set.
func encode(w io.Writer, families []*dto.MetricFamily, format expfmt.FormatType) error {
	enc := expfmt.NewEncoder(w, expfmt.NewFormat(format))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return fmt.Errorf("cannot encode %s: %w", f.GetName(), err)
		}
	}
	return enc.(expfmt.Closer).Close()
}

// pages serves the page of a store and builds it once per version and variant, however many
// scrapers there are.
type pages struct {
	store  *store
	labels []string // resource attributes that become labels
	now    func() time.Time

	mu       sync.Mutex // held while a page is built, never while it is sent
	version  uint64
	families []*dto.MetricFamily
	bodies   map[variant][]byte
	zip      *gzip.Writer // nil before first use; takes most of a page's memory
}

// variant is one encoding of a page. The escaping requested by a client is not part of it,
// because our names need none.
type variant struct {
	format expfmt.FormatType
	gzip   bool
}

// body returns the page. The caller must not modify it.
func (p *pages) body(v variant) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if p.families == nil || p.store.current(now) != p.version {
		var batches []*batch
		batches, p.version = p.store.batches(now)
		p.families = merge(batches, newTranslation(p.labels, p.store.dropped))
		p.bodies = map[variant][]byte{}
	}
	if body, ok := p.bodies[v]; ok {
		return body, nil
	}
	body, err := p.encode(v)
	if err != nil {
		return nil, err
	}
	p.bodies[v] = body
	return body, nil
}

func (p *pages) encode(v variant) (body []byte, err error) {
	var b bytes.Buffer
	if !v.gzip {
		err = encode(&b, p.families, v.format)
		return b.Bytes(), err
	}
	if p.zip == nil {
		// BestSpeed: pages are so repetitive that higher levels gain little.
		if p.zip, err = gzip.NewWriterLevel(&b, gzip.BestSpeed); err != nil {
			return nil, err
		}
	}
	p.zip.Reset(&b)
	if err := encode(p.zip, p.families, v.format); err != nil {
		return nil, err
	}
	err = p.zip.Close()
	p.zip.Reset(nil) // do not retain the body
	return b.Bytes(), err
}

// merge combines batches into one page: families by name, series by labels. Of two that
// conflict, the first in the order of batch keys wins. Each batch is counted only at its
// first merge, so the counters do not depend on the number of scrapes.
func merge(batches []*batch, t *translation) []*dto.MetricFamily {
	d := t.dropped
	slices.SortFunc(batches, func(a, b *batch) int { return cmp.Compare(a.key, b.key) })
	m := merger{taken: map[string]bool{}, families: map[string]*mergedFamily{}, dropped: d}
	m.claim(d.family()) // reserve its name
	for _, b := range batches {
		for _, f := range t.translate(b) {
			m.add(f, !b.counted)
		}
		b.counted = true
	}
	out := make([]*dto.MetricFamily, 0, len(m.families)+1)
	for _, name := range slices.Sorted(maps.Keys(m.families)) {
		out = append(out, m.finish(m.families[name]))
	}
	own := d.family() // after everything is counted
	at, _ := slices.BinarySearchFunc(out, own, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return slices.Insert(out, at, own)
}

type merger struct {
	// taken are the names reserved by families: their own and those of their lines.
	taken    map[string]bool
	families map[string]*mergedFamily
	dropped  *dropped
}

type mergedFamily struct {
	*dto.MetricFamily
	series []mergedSeries
}

type mergedSeries struct {
	*dto.Metric
	count bool // a conflict of this series has not been counted yet
}

func (m *merger) add(f *dto.MetricFamily, count bool) {
	name := f.GetName()
	to := m.families[name]
	if to == nil && m.claim(f) {
		to = &mergedFamily{MetricFamily: &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.Type, Unit: f.Unit}}
		m.families[name] = to
	}
	if to == nil || to.GetType() != f.GetType() {
		if count {
			m.dropped.add(nameConflict, len(f.Metric), name)
		}
		return
	}
	if count && f.Help != nil && f.GetHelp() != to.GetHelp() {
		m.dropped.add(helpConflict, 1, name)
	}
	for _, s := range f.Metric {
		to.series = append(to.series, mergedSeries{s, count})
	}
}

// finish sorts the series of f and drops all but the first of equal ones.
func (m *merger) finish(f *mergedFamily) *dto.MetricFamily {
	slices.SortStableFunc(f.series, func(a, b mergedSeries) int { return compareLabels(a.Label, b.Label) })
	for i, s := range f.series {
		if i == 0 || compareLabels(f.series[i-1].Label, s.Label) != 0 {
			f.Metric = append(f.Metric, s.Metric)
		} else if s.count {
			m.dropped.add(seriesConflict, 1, f.GetName())
		}
	}
	return f.MetricFamily
}

func compareLabels(a, b []*dto.LabelPair) int {
	return slices.CompareFunc(a, b, func(x, y *dto.LabelPair) int {
		return cmp.Or(cmp.Compare(x.GetName(), y.GetName()), cmp.Compare(x.GetValue(), y.GetValue()))
	})
}

// suffixes are what the formats append to the OpenMetrics name of a family.
var suffixes = map[dto.MetricType][]string{
	dto.MetricType_COUNTER:   {"", "_total", "_created"},
	dto.MetricType_GAUGE:     {""},
	dto.MetricType_HISTOGRAM: {"", "_bucket", "_sum", "_count", "_created"},
	dto.MetricType_SUMMARY:   {"", "_sum", "_count", "_created"},
}

// claim reserves the names of f, or reports that one is taken: a gauge x_count next to a
// histogram x makes a page that parsers reject.
func (m *merger) claim(f *dto.MetricFamily) bool {
	base := openMetricsName(f)
	for _, suffix := range suffixes[f.GetType()] {
		if m.taken[base+suffix] {
			return false
		}
	}
	for _, suffix := range suffixes[f.GetType()] {
		m.taken[base+suffix] = true
	}
	return true
}

// openMetricsName returns the OpenMetrics name of a family, where _total belongs to the lines
// of a counter and not to its name.
func openMetricsName(f *dto.MetricFamily) string {
	if f.GetType() == dto.MetricType_COUNTER {
		return strings.TrimSuffix(f.GetName(), "_total")
	}
	return f.GetName()
}
