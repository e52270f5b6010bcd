package sighting

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// during returns when a device was seen in a part of a day, and whether no gap of more than slack is left
// out. last is when it was seen before. h may be nil.
func during(h *fleet.DayHours, part Span, last time.Time, slack time.Duration) (seen []Span, sure bool) {
	if h == nil {
		return nil, false
	}
	sure = true
	for t := part.From.UTC().Truncate(time.Hour); t.Before(part.To); t = t.Add(time.Hour) {
		from, to := later(t, part.From), t.Add(time.Hour)
		if to.After(part.To) {
			to = part.To
		}
		used := min(to.Sub(from), time.Duration(h[t.Hour()])*time.Second)
		if used == 0 || to.Sub(from)-used > slack {
			sure = false
		}
		if used == 0 {
			continue
		}
		// When in the hour it was there is not known. If it was not there before, it appeared.
		span := Span{from, from.Add(used)}
		if last.Before(from) {
			span = Span{to.Add(-used), to}
		}
		if n := len(seen); n > 0 && last.Equal(span.From) {
			seen[n-1].To = span.To
		} else {
			seen = append(seen, span)
		}
		last = span.To
	}
	return seen, sure
}
