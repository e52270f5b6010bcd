package view

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/query"
)

// onGPU matches the caches that are in the memory of GPUs.
var onGPU = fleet.Equals(fleet.LabelTier, fleet.TierGPU)

// rated returns the sum of the rates of counters, each of which counts once.
func rated(series string, window time.Duration, matchers ...string) string {
	return "sum" + fleet.Once("rate("+fleet.Select(series, nil, matchers...)+"["+query.Duration(window)+"])")
}

// perSecond queries the sum of rates.
func perSecond(series string) func(time.Duration, ...string) string {
	return func(window time.Duration, matchers ...string) string { return rated(series, window, matchers...) }
}

// inState queries the requests in a state.
func inState(state string) func(...string) string {
	return func(matchers ...string) string {
		return "sum" + fleet.Once(fleet.Select(fleet.SeriesRequests, nil, append([]string{fleet.Equals(fleet.LabelState, state)}, matchers...)...))
	}
}

// prefixHits queries the part of the looked-up tokens that the prefix cache had.
func prefixHits(window time.Duration, matchers ...string) string {
	matchers = append([]string{onGPU}, matchers...)
	return rated(fleet.SeriesPrefixHits, window, matchers...) + " / (" + rated(fleet.SeriesPrefixQueries, window, matchers...) + " > 0)"
}

// quantiles draws the quantiles of a histogram. Engines with different bounds are added up as they are: the
// table beside the chart has only the bounds that all of them have.
func quantiles(histogram string, match ...string) []line {
	var out []line
	for _, q := range serving.Percents {
		out = append(out, line{Name: "p" + strconv.FormatFloat(100*q, 'f', -1, 64), over: func(window time.Duration, matchers ...string) string {
			buckets := fleet.Once("rate(" + fleet.Select(fleet.Buckets(histogram), nil, slices.Concat([]string{fleet.OfEngines}, match, matchers)...) + "[" + query.Duration(window) + "])")
			return fmt.Sprintf("histogram_quantile(%g, sum by (%s) %s)", q, fleet.LabelBucket, buckets)
		}})
	}
	return out
}
