// Package promtext parses metrics pages in the Prometheus text format. It is the only parser of pages in
// this module: the stock one panics on some input that other programs may serve, and gives up on a
// whole page for one line of it.
package promtext

import (
	"errors"
	"fmt"
	"io"
	"strings"
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
func (s Series) Get(name string) string { return get(s.Labels, name) }

// ErrTooLong reports a page beyond the limit.
var ErrTooLong = errors.New("page is too long")

// Parse reads a page of at most limit bytes. A page that is truncated, longer, or invalid in
// any line yields an error and no series: half a page would look like missing metrics. Scan reads pages of
// programs that are less exact.
func Parse(r io.Reader, limit int64) (Page, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLong, limit)
	}
	text := Scan(b)
	if text.Err != nil {
		return nil, text.Err
	}
	if len(b) > 0 && !text.Whole {
		return nil, errors.New("unexpected end of the page")
	}
	page := Page{}
	for i := range text.Samples {
		if s := &text.Samples[i]; !text.partial(s.Name) {
			page[s.Name] = append(page[s.Name], Series{s.Labels, s.Value})
		}
	}
	return page, nil
}

// partial reports whether a name is that of a part of a histogram or summary.
func (t *Text) partial(name string) bool {
	if t.Types[name] == "summary" {
		return true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count", "_created"} {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			switch t.Types[base] {
			case "histogram", "gaugehistogram", "summary":
				return true
			}
		}
	}
	return false
}
