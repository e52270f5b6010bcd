package slo

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// measures are the tallies of the objectives of each row, and the requests per second that finished.
type measures struct {
	tallies  map[key][]tally
	requests map[key]optional.Float
}

// reading is the last whole reading of a long window.
type reading struct {
	measures
	at time.Time // zero if there is none
}

func (r *reading) due(at time.Time) bool { return r.at.IsZero() || at.Sub(r.at) >= slowEvery }

// take replaces the reading, unless the new one is not whole: a part of the requests would be taken for all. It is
// tried again at the next look.
func (r *reading) take(at time.Time, m measures, whole bool) {
	switch {
	case whole:
		*r = reading{m, at}
	case at.Sub(r.at) >= slowKept:
		*r = reading{}
	}
}

// add adds to the tallies of the objectives of a kind.
func (m *measures) add(k key, list []Objective, kind Kind, count func(*Objective) (tally, bool)) {
	for i := range list {
		if list[i].Kind != kind || i >= len(m.tallies[k]) {
			continue
		}
		if t, ok := count(&list[i]); ok {
			m.tallies[k][i] = m.tallies[k][i].plus(t)
		}
	}
}

// at returns a tally, which a row that appeared later may not have.
func at(m measures, k key, i int) tally {
	if list := m.tallies[k]; i < len(list) {
		return list[i]
	}
	return tally{}
}
