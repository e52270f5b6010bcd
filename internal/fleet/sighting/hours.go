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
	if part.To.Sub(part.From) == day && neverAway(h, slack) { // as most of a fleet are most of the time
		if last.Before(part.From) {
			part.From = part.From.Add(time.Hour - seconds(h[0]))
		}
		part.To = part.To.Add(seconds(h[23]) - time.Hour)
		return []Span{part}, true
	}
	sure = true
	for t := part.From.UTC().Truncate(time.Hour); t.Before(part.To); t = t.Add(time.Hour) {
		from, to := later(t, part.From), t.Add(time.Hour)
		if to.After(part.To) {
			to = part.To
		}
		used := min(to.Sub(from), seconds(h[t.Hour()]))
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

func seconds(n uint16) time.Duration { return time.Duration(n) * time.Second }

// neverAway reports whether a device was there in every hour of a day, with gaps of at most slack.
func neverAway(h *fleet.DayHours, slack time.Duration) bool {
	for _, n := range h {
		if n == 0 || time.Hour-seconds(n) > slack {
			return false
		}
	}
	return true
}
