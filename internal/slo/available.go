package slo

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// moment is what is known about the engines of a workload at one time.
type moment struct {
	at   time.Time
	read bool // a page of one of them could be read
	down bool // there are engines, and no page could be read
	held bool // the workload has devices
}

// presence asks at which moments of a span a page of an engine of each workload could be read, and at which the workload
// had devices. workloads are the names of those that matter.
func presence(ctx context.Context, store query.Store, from, to time.Time, step time.Duration, workloads []string) (map[whose][]moment, error) {
	found := map[whose]map[int64]*moment{}
	put := func(list []query.Series, mark func(m *moment, v float64)) {
		for _, s := range list {
			owner, _ := fleet.OwnerOf(s.Labels)
			w := whoseOf(&owner)
			if found[w] == nil {
				found[w] = map[int64]*moment{}
			}
			at := found[w]
			for _, p := range s.Points {
				ms := p.Time.UnixMilli()
				if math.IsNaN(p.Value) {
					continue
				}
				if at[ms] == nil {
					at[ms] = &moment{at: p.Time}
				}
				mark(at[ms], p.Value)
			}
		}
	}
	read, err := store.Range(ctx, "max by ("+fleet.OwnerLabels()+") ("+fleet.SeriesEngineUp+")", from, to, step)
	if err != nil {
		return nil, err
	}
	put(read, func(m *moment, v float64) { m.read, m.down = m.read || v > 0, m.down || v <= 0 })
	for _, match := range fleet.AnyOf(fleet.LabelWorkload, workloads) {
		held, err := store.Range(ctx, "max by ("+fleet.OwnerLabels()+") ("+fleet.Select(fleet.SeriesAllocation, nil, match)+") > 0", from, to, step)
		if err != nil {
			return nil, err
		}
		put(held, func(m *moment, _ float64) { m.held = true })
	}
	out := map[whose][]moment{}
	for owner, moments := range found {
		for _, m := range moments {
			out[owner] = append(out[owner], *m)
		}
		slices.SortFunc(out[owner], func(a, b moment) int { return a.at.Compare(b.at) })
	}
	return out, nil
}

// answered returns the first moment at which a page could be read, the zero time if there is none.
func answered(moments []moment) time.Time {
	for _, m := range moments {
		if m.read {
			return m.at
		}
	}
	return time.Time{}
}

// unavailable counts the moments after a time in which no engine could be read. It is bad if there are engines, and also if there are
// none although the workload has devices: their process has ended. Before any engine of the workload could ever be
// read, devices alone prove nothing: since is that moment, the zero time if there is none. A workload
// that has neither is gone, or nobody watched: such moments do not count.
func unavailable(moments []moment, after, since time.Time) tally {
	var t tally
	for _, m := range moments {
		if !m.at.After(after) {
			continue
		}
		switch {
		case m.read:
			t.total++
		case m.down, m.held && !since.IsZero() && m.at.After(since):
			t.total++
			t.bad++
		}
	}
	t.least, t.most = t.bad, t.bad
	return t
}
