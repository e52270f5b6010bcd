package fleet

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// byInstance returns one series per workload instance. The history of an instance whose labels
// changed thus has no gap.
func byInstance(series []query.Series) []query.Series {
	groups := map[string][]query.Series{}
	var order []string
	for _, s := range series {
		key := Instance(s.Labels)
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], s)
	}
	out := make([]query.Series, 0, len(order))
	for _, key := range order {
		out = append(out, sumOf(groups[key]))
	}
	return out
}

// sumOf returns the sum of the accounts of one instance, with the labels of the newest one. A
// closed account keeps what it had.
func sumOf(list []query.Series) query.Series {
	if len(list) == 1 {
		return list[0]
	}
	slices.SortStableFunc(list, func(a, b query.Series) int { return first(a).Compare(first(b)) })
	at := map[time.Time]map[string]float64{} // by account
	for _, s := range list {
		for _, p := range s.Points {
			if at[p.Time] == nil {
				at[p.Time] = map[string]float64{}
			}
			account := Account(s.Labels)
			at[p.Time][account] = max(at[p.Time][account], p.Value) // series of one account are the same counter
		}
	}
	out := query.Series{Labels: list[len(list)-1].Labels}
	values := map[string]float64{}
	for _, t := range slices.SortedFunc(maps.Keys(at), time.Time.Compare) {
		maps.Copy(values, at[t])
		sum := 0.0
		for _, v := range values {
			sum += v
		}
		out.Points = append(out.Points, query.Point{Time: t, Value: sum})
	}
	return out
}

// first returns the time of the first point of a series.
func first(s query.Series) time.Time {
	if len(s.Points) == 0 {
		return time.Time{}
	}
	return s.Points[0].Time
}
