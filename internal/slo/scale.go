package slo

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/query"
)

// bounds are the finite bounds of a histogram, with their texts in the store.
type bounds map[float64]string

// scale is the bounds of the histogram of an engine over time: an upgrade may change them.
type scale struct {
	row   key
	spans []span // in order of time
	seen  time.Time
}

// span is a time from a moment on in which the bounds did not change, as far as the judge looked.
type span struct {
	first  time.Time
	bounds bounds
}

// saw records the bounds at a moment.
func (s *scale) saw(b bounds, at time.Time) {
	if at.After(s.seen) {
		s.seen = at
	}
	next, _ := slices.BinarySearchFunc(s.spans, at, func(x span, at time.Time) int { return cmp.Or(x.first.Compare(at), -1) })
	switch {
	case next > 0 && maps.Equal(s.spans[next-1].bounds, b):
	case next < len(s.spans) && maps.Equal(s.spans[next].bounds, b):
		s.spans[next].first = at
	default:
		s.spans = slices.Insert(s.spans, next, span{at, b})
	}
}

// near returns the nearest bounds around a threshold, with their texts in the store. ok is false if there are none, or if the histogram did
// not have them in all of a period: the requests from before a change would look slow.
func (s *scale) near(threshold float64, from, to time.Time) (below, above float64, texts []string, ok bool) {
	var in []bounds
	for i, x := range s.spans {
		over := i+1 < len(s.spans) && !s.spans[i+1].first.After(from)
		if over || x.first.After(to) && len(in) > 0 {
			continue
		}
		in = append(in, x.bounds) // the first one may have begun before the judge looked
	}
	if len(in) == 0 || len(in[0]) == 0 {
		return 0, 0, nil, false
	}
	below, above = around(slices.Collect(maps.Keys(in[0])), threshold)
	for _, bound := range []float64{below, above} {
		text, is := in[0][bound] // else it is an end of the scale
		if is {
			texts = append(texts, text)
		}
		for _, other := range in[1:] {
			if _, has := other[bound]; is && !has {
				return 0, 0, nil, false
			}
		}
	}
	return below, above, texts, true
}

// scales asks which bounds the histograms of a kind have at a moment, by engine.
func scales(ctx context.Context, store query.Store, at time.Time, kind Kind) (found map[string]bounds, rows map[string]key, err error) {
	selector := fleet.Select(fleet.Buckets(histograms[kind]), nil, fleet.OfEngines)
	list, err := store.Instant(ctx, "group by ("+serving.EngineLabels()+", "+fleet.LabelBucket+") ("+selector+")", at)
	if err != nil {
		return nil, nil, err
	}
	found, rows = map[string]bounds{}, map[string]key{}
	for _, x := range list {
		id := engineOf(x.Labels)
		if found[id] == nil {
			found[id], rows[id] = bounds{}, keyOf(x.Labels)
		}
		text := x.Labels[fleet.LabelBucket]
		if le, err := strconv.ParseFloat(text, 64); err == nil && !math.IsInf(le, 0) && !math.IsNaN(le) {
			found[id][le] = text
		}
	}
	return found, rows, nil
}
