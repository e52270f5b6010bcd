package slo

import (
	"context"
	"math"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Front is what a router or gateway saw of the requests of a row, in seconds. It is zero if none is known that had
// just these requests.
type Front struct {
	Name      string // such as dynamo
	Mean      optional.Float
	Quantiles serving.Quantiles
}

// front returns what a router or gateway saw of a latency.
func (f *Facts) front(k Kind) *Front {
	switch k {
	case FirstToken:
		return &f.FrontFirstToken
	case Duration:
		return &f.FrontRequest
	}
	return &Front{}
}

// missedInFront returns the latencies that engines keep, and that are too long at the router or gateway in front of them.
func (f *Facts) missedInFront(list []Result) []Objective {
	var out []Objective
	for i := range list {
		o := &list[i].Objective
		burn, known := list[i].Burn[oneHour].Get()
		if v, ok := o.of(f.front(o.Kind).Quantiles).Get(); ok && v > o.Threshold.Seconds() && !(known && burn > 1) {
			out = append(out, *o)
		}
	}
	return out
}

// sameRequests is how far the numbers of requests may differ that a router or gateway and the engines behind it
// counted: some are on the way, and each page is read at its own time.
const sameRequests = 0.1

// fronts asks what routers and gateways saw of the requests of each row. One that has requests of other engines, too,
// says nothing about these engines.
func (a *asking) fronts(ctx context.Context) {
	for histogram, kind := range map[string]Kind{fleet.HistogramFrontFirstToken: FirstToken, fleet.HistogramFrontRequest: Duration} {
		type place struct{ model, cluster string }
		type gateway struct {
			place
			name string
			whose
		}
		of := func(l query.Labels) gateway {
			owner, _ := fleet.OwnerOf(l)
			return gateway{place{l[fleet.LabelServedModel], l[fleet.LabelCluster]}, l[fleet.LabelProvider], whoseOf(&owner)}
		}
		by := fleet.LabelProvider + ", " + rowLabels
		rate := func(series, by string) string {
			return "sum by (" + by + ") " + fleet.Once(over("rate", fleet.Select(series, nil, fleet.LabelServedModel+`!=""`), hintWindow))
		}
		counts, sums := map[gateway]float64{}, map[gateway]float64{}
		a.instant(ctx, rate(fleet.HistogramCount(histogram), by), func(l query.Labels, v float64) { counts[of(l)] += v })
		if len(counts) == 0 {
			continue
		}
		a.instant(ctx, rate(fleet.HistogramSum(histogram), by), func(l query.Labels, v float64) { sums[of(l)] += v })
		var quantiles [3]map[gateway]float64
		for i, q := range serving.Percents {
			quantiles[i] = map[gateway]float64{}
			buckets := rate(fleet.Buckets(histogram), fleet.LabelBucket+", "+by)
			a.instant(ctx, "histogram_quantile("+decimals(q)+", "+buckets+")", func(l query.Labels, v float64) { quantiles[i][of(l)] = v })
		}
		for k, f := range a.facts {
			have := a.counts[histograms[kind]][k].Default(0)
			for g, n := range counts {
				mean := sums[g] / n
				same := n > 0 && math.Abs(n-have) <= sameRequests*have && g.place == place{k.model, a.clusters[k]}
				if to := f.front(kind); same && mean > to.Mean.Default(0) { // of several behind each other the first has the longest time
					value := func(m map[gateway]float64) (out optional.Float) {
						if v, ok := m[g]; ok {
							out = optional.Of(v)
						}
						return out
					}
					*to = Front{g.name, optional.Of(mean), serving.Quantiles{P50: value(quantiles[0]), P95: value(quantiles[1]), P99: value(quantiles[2])}}
				}
			}
			a.facts[k] = f
		}
	}
}
