// Package promtext parses metrics pages in the Prometheus text format. It is the only
// parser of pages in this module: the stock parser panics on some input that other
// programs may serve.
package promtext

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Page holds the series of a page by metric name. Histograms and summaries are left out,
// because they have no single value.
type Page map[string][]Series

// Series is one series of a page.
type Series struct {
	Labels []Label // in the order of the page
	Value  float64
}

// Label is a label of a series.
type Label struct{ Name, Value string }

// Get returns the value of a label, or "" if the series does not have it.
func (s Series) Get(name string) string {
	for _, l := range s.Labels {
		if l.Name == name {
			return l.Value
		}
	}
	return ""
}

// ErrTooLong reports a page beyond the limit.
var ErrTooLong = errors.New("page is too long")

// Parse reads a page of at most limit bytes. A page that is truncated, longer, or invalid in
// any line yields an error and no series: half a page would look like missing metrics.
func Parse(r io.Reader, limit int64) (Page, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLong, limit)
	}
	families, err := parse(b)
	if err != nil {
		return nil, err
	}
	page := make(Page, len(families))
	for name, f := range families {
		for _, m := range f.GetMetric() {
			v, ok := value(m)
			if !ok {
				continue
			}
			s := Series{Value: v}
			for _, l := range m.GetLabel() {
				s.Labels = append(s.Labels, Label{l.GetName(), l.GetValue()})
			}
			page[name] = append(page[name], s)
		}
	}
	return page, nil
}

// parse calls the stock parser, except for a page with a series whose name is not in front
// of its labels. The stock parser panics on a series without a name, or sets the value of
// the series before it. Names in quotes within the braces are not read either: no page that
// we read has any.
func parse(b []byte) (families map[string]*dto.MetricFamily, err error) {
	number := 0
	for line := range bytes.Lines(b) {
		if number++; bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("{")) {
			return nil, fmt.Errorf("line %d has no metric name", number)
		}
	}
	defer func() {
		if p := recover(); p != nil {
			families, err = nil, errors.New("the parser panicked")
		}
	}()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(bytes.NewReader(b))
}

func value(m *dto.Metric) (float64, bool) {
	switch {
	case m.Gauge != nil:
		return m.GetGauge().GetValue(), true
	case m.Counter != nil:
		return m.GetCounter().GetValue(), true
	case m.Untyped != nil:
		return m.GetUntyped().GetValue(), true
	}
	return 0, false
}
