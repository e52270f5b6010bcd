package slo

import (
	"math"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// tally counts requests, or moments, of an objective. The unit cancels out.
type tally struct {
	total, bad float64
	// A histogram knows at its bounds only how many were slower: bad is between least and most.
	least, most float64
	// The nearest bounds around the threshold, of all engines the widest; both 0 without a histogram. above is
	// +Inf if the threshold is above the last bound.
	below, above float64
}

// Ratio returns the bad part. It is absent if there was nothing.
func (t tally) Ratio() optional.Float { return optional.Of(t.bad).Ratio(optional.Of(t.total)) }

// Range returns the least and the most that the bad part may be. They are absent if that is unknown.
func (t tally) Range() (least, most optional.Float) {
	if math.IsNaN(t.least) {
		return optional.Float{}, optional.Float{}
	}
	return optional.Of(t.least).Ratio(optional.Of(t.total)), optional.Of(t.most).Ratio(optional.Of(t.total))
}

// Bounds returns the nearest bounds of the histograms around the threshold, in seconds. above is absent if the threshold is
// above the last bound; both are absent without a histogram.
func (t tally) Bounds() (below, above optional.Float) {
	if t.above == 0 {
		return optional.Float{}, optional.Float{}
	}
	if !math.IsInf(t.above, 1) {
		above = optional.Of(t.above)
	}
	return optional.Of(t.below), above
}

// plus returns the sum of two tallies of one objective.
func (t tally) plus(o tally) tally {
	if t.total == 0 {
		return o
	}
	if o.total == 0 {
		return t
	}
	return tally{t.total + o.total, t.bad + o.bad, t.least + o.least, t.most + o.most, min(t.below, o.below), max(t.above, o.above)}
}

// times returns a tally of rates as one of counts.
func (t tally) times(seconds float64) tally {
	t.total, t.bad, t.least, t.most = t.total*seconds, t.bad*seconds, t.least*seconds, t.most*seconds
	return t
}

// around returns the nearest of some finite bounds around a threshold. Both are the threshold if that is a bound; above
// is +Inf beyond the last one.
func around(bounds []float64, threshold float64) (below, above float64) {
	below, above = 0, math.Inf(1)
	for _, b := range bounds {
		if b <= threshold {
			below = max(below, b)
		}
		if b >= threshold {
			above = min(above, b)
		}
	}
	return below, above
}

// slower counts the values of a histogram above a threshold: rates has those up to the nearest bounds around it, and up to
// +Inf. Within a bucket values are spread evenly, as in histogram_quantile of PromQL. If the threshold is above the
// last bound, all values above that bound are bad: the objective is judged there, because nothing else is known.
// ok is false if a bound is missing, or there is no value.
func slower(rates map[float64]float64, below, above, threshold float64) (t tally, ok bool) {
	total := rates[math.Inf(1)]
	if !(total > 0) {
		return tally{}, false
	}
	low, ok := rates[below]
	if !ok && below > 0 { // nothing takes less than no time
		return tally{}, false
	}
	low = min(low, total) // rates are extrapolated, and may be a little higher
	t = tally{total: total, bad: total - low, most: total - low, below: below, above: above}
	if math.IsInf(above, 1) {
		return t, true
	}
	high, ok := rates[above]
	if !ok {
		return tally{}, false
	}
	high = max(min(high, total), low)
	t.least, t.bad = total-high, total-high
	if above > below {
		t.bad = total - low - (high-low)*(threshold-below)/(above-below)
	}
	return t, true
}
