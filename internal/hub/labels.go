package hub

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

type labelQuerier = storage.LabelQuerier

// seriesHints requests labels only, so the database does not read samples.
func seriesHints(from, to time.Time) *storage.SelectHints {
	return &storage.SelectHints{Start: from.UnixMilli(), End: to.UnixMilli(), Func: "series"}
}

// labels returns the sorted union of what ask finds per selector, at most limit, and
// whether there were more.
func (s *Store) labels(_ context.Context, selectors []string, from, to time.Time, limit int, ask func(labelQuerier, ...*labels.Matcher) ([]string, error)) ([]string, bool, error) {
	sets, err := s.parser.ParseMetricSelectors(selectors)
	if err != nil {
		return nil, false, err
	}
	q, err := s.db.Querier(from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, false, err
	}
	defer q.Close() //nolint:errcheck // read-only
	if len(sets) == 0 {
		sets = [][]*labels.Matcher{nil}
	}
	found := map[string]bool{}
	for _, matchers := range sets {
		list, err := ask(q, matchers...)
		if err != nil {
			return nil, false, err
		}
		for _, x := range list {
			if !found[x] {
				found[strings.Clone(x)] = true // it is in the memory of a block, which may be deleted
			}
		}
	}
	out := slices.Sorted(maps.Keys(found))
	if limit > 0 && len(out) > limit {
		return out[:limit], true, nil
	}
	return out, false, nil
}
