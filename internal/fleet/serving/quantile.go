package serving

import (
	"math"
	"slices"
	"strconv"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// Quantiles are those of a duration, in seconds. They are absent if nothing was measured.
type Quantiles struct {
	P50, P95, P99 optional.Float
}

// Percents are the quantiles that Quantiles has.
var Percents = []float64{0.5, 0.95, 0.99}

// buckets are the rates of the buckets of a histogram by upper bound, and how many series each of them is
// the sum of.
type buckets map[float64]*struct{ rate, series float64 }

// put adds the rate or the number of series of a bucket.
func (b buckets) put(bound string, v float64, series bool) {
	le, err := strconv.ParseFloat(bound, 64)
	if err != nil || math.IsNaN(le) || math.IsNaN(v) {
		return
	}
	if b[le] == nil {
		b[le] = &struct{ rate, series float64 }{}
	}
	if series {
		b[le].series += v
	} else {
		b[le].rate += v
	}
}

// quantiles returns the quantiles of a sum of histograms. Engines differ in their bounds, and so do the
// versions of an engine: only bounds that all of them have count, because a bucket that some of them lack is not
// the sum of all.
func (b buckets) quantiles() Quantiles {
	most := 0.0
	for _, x := range b {
		most = max(most, x.series)
	}
	var bounds, rates []float64
	for le, x := range b {
		if x.series == most {
			bounds = append(bounds, le)
		}
	}
	slices.Sort(bounds)
	for i, le := range bounds {
		rates = append(rates, b[le].rate)
		if i > 0 {
			rates[i] = max(rates[i], rates[i-1]) // rates are extrapolated, and may be a little lower
		}
	}
	return Quantiles{quantile(Percents[0], bounds, rates), quantile(Percents[1], bounds, rates), quantile(Percents[2], bounds, rates)}
}

// quantile is PromQL's histogram_quantile: within a bucket, values are spread evenly.
func quantile(q float64, bounds, rates []float64) optional.Float {
	last := len(bounds) - 1
	if last < 1 || !math.IsInf(bounds[last], 1) || !(rates[last] > 0) {
		return optional.Float{}
	}
	rank := q * rates[last]
	i := 0
	for i < last && rates[i] < rank {
		i++
	}
	switch {
	case i == last: // above all bounds: the last one is all that is known
		return optional.Of(bounds[last-1])
	case i == 0 && bounds[0] <= 0:
		return optional.Of(bounds[0])
	}
	from, below := 0.0, 0.0
	if i > 0 {
		from, below = bounds[i-1], rates[i-1]
	}
	if rates[i] == below {
		return optional.Of(bounds[i])
	}
	return optional.Of(from + (bounds[i]-from)*(rank-below)/(rates[i]-below))
}
