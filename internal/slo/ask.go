package slo

import (
	"cmp"
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/query"
)

// key identifies a row.
type key struct {
	model string
	whose
}

// whose identifies a workload. Workloads of two teams, and processes of two users, may have one ID.
type whose struct{ id, team, user string }

func whoseOf(o *fleet.Owner) whose { return whose{o.ID, o.Team, o.User} }

// keyOf returns the row of a series.
func keyOf(l query.Labels) key {
	owner, _ := fleet.OwnerOf(l)
	return key{l[fleet.LabelServedModel], whoseOf(&owner)}
}

// order compares rows by their models and workloads.
func order(a, b Row) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Owner.ID, b.Owner.ID), cmp.Compare(a.Owner.Team, b.Owner.Team), cmp.Compare(a.Owner.User, b.Owner.User))
}

// engineOf identifies what an engine says about a model for a workload.
func engineOf(l query.Labels) string {
	own := query.Labels{}
	for _, name := range engineLabels {
		if v := l[name]; v != "" {
			own[name] = v
		}
	}
	return own.Key()
}

var (
	engineLabels = strings.Split(serving.EngineLabels(), ", ")
	ownerLabels  = strings.Split(fleet.OwnerLabels(), ", ")
)

// over returns the expression for a function over a window.
func over(f, selector string, window time.Duration) string {
	return f + "(" + selector + "[" + query.Duration(window) + "])"
}

// sum returns the expression for the sum by engine and further labels of the rate of a counter. Each series counts once, whatever
// its ways to the store.
func sum(selector string, window time.Duration, more ...string) string {
	return "sum by (" + strings.Join(append([]string{serving.EngineLabels()}, more...), ", ") + ") " + fleet.Once(over("rate", selector, window))
}

// served asks which models workloads serve at a moment, and calls found with the labels of each.
func served(ctx context.Context, store query.Store, at time.Time, found func(query.Labels)) error {
	names := strings.Join([]string{fleet.SeriesTokensOut, fleet.SeriesTokensIn, fleet.SeriesFinished, fleet.SeriesKVCache}, "|")
	list, err := store.Instant(ctx, "group by ("+fleet.LabelServedModel+", "+fleet.OwnerLabels()+") ({"+fleet.LabelName+`=~"`+names+`",`+fleet.LabelServedModel+`!=""})`, at)
	for _, x := range list {
		found(x.Labels)
	}
	return err
}

// latencies asks for the rates of the buckets of a kind next to the thresholds of some objectives.
func latencies(ctx context.Context, store query.Store, at time.Time, window time.Duration, kind Kind, engines map[string]*scale, of func(key) []Objective) (map[string]map[float64]float64, error) {
	texts := []string{}
	for _, e := range engines {
		for _, o := range of(e.row) {
			if o.Kind != kind {
				continue
			}
			_, _, near, _ := e.near(o.Threshold.Seconds(), at.Add(-window), at)
			texts = append(texts, near...)
		}
	}
	if len(texts) == 0 {
		return nil, nil
	}
	out := map[string]map[float64]float64{}
	for _, match := range fleet.AnyOf(fleet.LabelBucket, append(texts, "+Inf")) {
		list, err := store.Instant(ctx, sum(fleet.Select(fleet.Buckets(histograms[kind]), nil, fleet.OfEngines, match), window, fleet.LabelBucket), at)
		if err != nil {
			return nil, err
		}
		for _, x := range list {
			le, err := strconv.ParseFloat(x.Labels[fleet.LabelBucket], 64)
			if err != nil || math.IsNaN(x.Value) {
				continue
			}
			id := engineOf(x.Labels)
			if out[id] == nil {
				out[id] = map[float64]float64{}
			}
			out[id][le] += x.Value
		}
	}
	return out, nil
}

// ended are the rates of requests that finished, without those that their clients canceled.
type ended struct {
	all float64
	// counted are those of engines that count failures, and failed those of them that failed. What an engine does
	// not count is not zero.
	counted, failed float64
}

// finished asks for the requests that finished, by row.
func finished(ctx context.Context, store query.Store, at time.Time, window time.Duration) (map[key]ended, error) {
	match := fleet.LabelOutcome + `=~"` + fleet.OutcomeSuccess + "|" + fleet.OutcomeError + `"`
	list, err := store.Instant(ctx, sum(fleet.Select(fleet.SeriesFinished, nil, fleet.OfEngines, match), window, fleet.LabelOutcome), at)
	if err != nil {
		return nil, err
	}
	// Many engines have no series of failures before the first one. Replicas are alike: if one of them counts
	// failures, the others had none.
	type replicas struct {
		key
		provider string
	}
	all, failed := map[replicas]float64{}, map[replicas]float64{}
	for _, x := range list {
		if math.IsNaN(x.Value) {
			continue
		}
		r := replicas{keyOf(x.Labels), x.Labels[fleet.LabelProvider]}
		all[r] += x.Value
		if x.Labels[fleet.LabelOutcome] == fleet.OutcomeError {
			failed[r] += x.Value
		}
	}
	out := map[key]ended{}
	for r, n := range all {
		sum := out[r.key]
		sum.all += n
		if bad, counts := failed[r]; counts {
			sum.counted, sum.failed = sum.counted+n, sum.failed+bad
		}
		out[r.key] = sum
	}
	return out, nil
}
