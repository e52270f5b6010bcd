package queue

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Wait is how long the jobs of a queue waited that got their devices in a period.
type Wait struct {
	Cluster, Scheduler, Queue string
	Jobs                      float64        // about: a rate over the period, multiplied by it
	Mean, P50, P95            optional.Float // seconds
	// FirstWork is the median time from creation to the first work on a device, in seconds, of the jobs that did it in the period.
	FirstWork optional.Float
}

// Waits returns how long jobs waited that got their devices in a period, by queue, the most jobs first. Queues in which
// nothing was placed are missing. What two senders report counts once.
func Waits(ctx context.Context, store query.Store, from, to time.Time) ([]Wait, error) {
	by := LabelCluster + ", " + LabelScheduler + ", " + LabelQueue
	period := query.Duration(to.Sub(from))
	// Some 300 points in time are enough for a long period, whatever the interval of the samples.
	window := fmt.Sprintf("[%s:%s]", period, query.Duration(max(time.Minute, to.Sub(from)/300).Round(time.Second)))
	before := func(expr string) string {
		return "last_over_time(" + expr + "[" + query.Duration(24*time.Hour) + ":" + query.Duration(fleet.Near) + "] offset " + period + ")"
	}
	watched := before("(max by (" + LabelCluster + ", " + LabelScheduler + ") (" + SeriesUp + "))")
	grown := func(series, by string) string {
		series = fleet.Once(series)
		// A series begins with its first job: what it begins with was not there before, if somebody would have seen it. This is
		// its lowest value, which is less than that only if the counter was also reset later.
		first := "(min_over_time(" + series + window + ") unless " + before(series) + ") and on (" + LabelCluster + ", " + LabelScheduler + ") " + watched
		return "sum by (" + by + ") (increase(" + series + window + `) or label_replace(` + first + `, "first", "yes", "", ""))`
	}
	rows := map[[3]string]*Wait{}
	for _, ask := range []struct {
		expr string
		take func(*Wait, float64)
	}{
		{grown(fleet.HistogramCount(HistogramWait), by) + " > 0", func(w *Wait, v float64) { w.Jobs = v }},
		{grown(fleet.HistogramSum(HistogramWait), by), func(w *Wait, v float64) { w.Mean = optional.Of(v / w.Jobs) }},
		{"histogram_quantile(0.5, " + grown(fleet.Buckets(HistogramWait), fleet.LabelBucket+", "+by) + ")", func(w *Wait, v float64) { w.P50 = optional.Of(v) }},
		{"histogram_quantile(0.95, " + grown(fleet.Buckets(HistogramWait), fleet.LabelBucket+", "+by) + ")", func(w *Wait, v float64) { w.P95 = optional.Of(v) }},
		{"histogram_quantile(0.5, " + grown(fleet.Buckets(HistogramFirstWork), fleet.LabelBucket+", "+by) + ")", func(w *Wait, v float64) { w.FirstWork = optional.Of(v) }},
	} {
		list, err := store.Instant(ctx, ask.expr, to)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			key := [3]string{s.Labels[LabelCluster], s.Labels[LabelScheduler], s.Labels[LabelQueue]}
			if rows[key] == nil {
				rows[key] = &Wait{Cluster: key[0], Scheduler: key[1], Queue: key[2]}
			}
			if !math.IsNaN(s.Value) {
				ask.take(rows[key], s.Value)
			}
		}
	}
	out := make([]Wait, 0, len(rows))
	for _, w := range rows {
		if w.Jobs > 0 {
			out = append(out, *w)
		}
	}
	slices.SortFunc(out, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Scheduler, b.Scheduler), cmp.Compare(a.Queue, b.Queue))
	})
	return out, nil
}
