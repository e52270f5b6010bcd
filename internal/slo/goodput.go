package slo

import "github.com/gpumeter/gpumeter/internal/optional"

// Goodput is how many requests per second met every objective. Histograms count each objective by itself, so it is
// known only between two limits: as if every request missed at most one objective, and as if those that missed one missed
// all others that were missed, too.
type Goodput struct {
	Low, High optional.Float // Low is absent if an objective is unknown
	Of        optional.Float // requests that finished, without those that their clients canceled
}

// goodput returns the goodput of the objectives of a row. Of several percentiles of one latency the highest counts: it is the one that
// a single request has to meet.
func goodput(list []Objective, tallies []tally, requests optional.Float) Goodput {
	if !requests.OK() || len(tallies) != len(list) {
		return Goodput{}
	}
	missed, worst := optional.Of(0), optional.Float{}
	for i, o := range list {
		if o.Kind == Availability || i+1 < len(list) && list[i+1].Kind == o.Kind {
			continue
		}
		bad := tallies[i].Ratio()
		v, ok := bad.Get()
		if !ok {
			missed = optional.Float{}
			continue
		}
		if sum, ok := missed.Get(); ok {
			missed = optional.Of(sum + v)
		}
		worst = optional.Of(max(worst.Default(0), v))
	}
	g := Goodput{Of: requests}
	all := requests.Default(0)
	if v, ok := worst.Get(); ok {
		g.High = optional.Of(all * (1 - v))
		if sum, ok := missed.Get(); ok {
			g.Low = optional.Of(all * max(0, 1-sum))
		}
	}
	return g
}
