package view

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// points returns the maximum number of points per line.
func points(c chart) int {
	if c.Wide {
		return maxPoints / 4
	}
	return maxPoints
}

type rangeAnswer struct {
	Unit  string   `json:"unit"`
	Times []int64  `json:"times"` // Unix seconds
	Names []string `json:"names"`
	Lines []column `json:"lines"` // null where there is no value
	More  bool     `json:"more"`  // some lines were omitted
}

func (v *viewer) rangePage(ctx context.Context, r request) (any, error) {
	name := r.values.Get("chart")
	c, ok := charts[name] // the page can request only these
	if !ok {
		return nil, fmt.Errorf("%w: no chart %q", errBad, name)
	}
	var which []string // matchers
	if uuid := r.values.Get("gpu"); uuid != "" {
		which = append(which, fleet.Equals(fleet.LabelUUID, uuid))
	}
	if id := r.values.Get("workload"); id != "" {
		_, _, matchers, err := fleet.ParseOwner(id)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errBad, err)
		}
		which = append(which, matchers...)
	}
	if r.values.Has("model") { // an empty one is that of engines that do not say which
		which = append(which, fleet.Equals(fleet.LabelServedModel, r.values.Get("model")))
	}
	step := stepOf(r.to.Sub(r.from), points(c))
	// Align the steps to multiples of step: otherwise every refresh shifts all samples and the
	// chart shimmers.
	start, end := r.from.Truncate(step), r.to.Truncate(step)
	key := strings.Join(append([]string{name, start.String(), end.String()}, which...), "\n")
	return v.charts.get(ctx, key, v.opts.Now(), min(step, time.Minute), func(ctx context.Context) (*rangeAnswer, error) { return v.draw(ctx, c, which, start, end, step) })
}

// draw queries the lines of a chart for the series that the matchers select.
func (v *viewer) draw(ctx context.Context, c chart, which []string, start, end time.Time, step time.Duration) (*rangeAnswer, error) {
	a := &rangeAnswer{Unit: c.Unit, Times: []int64{}, Names: []string{}, Lines: []column{}}
	n := int(end.Sub(start)/step) + 1
	for i := range n {
		a.Times = append(a.Times, start.Add(time.Duration(i)*step).Unix())
	}
	for _, l := range c.Lines {
		series, err := v.store.Range(ctx, l.query(step, which...), start, end, step)
		if err != nil {
			return nil, err
		}
		if l.By != "" {
			slices.SortFunc(series, func(x, y query.Series) int { return cmp.Compare(x.Labels[l.By], y.Labels[l.By]) })
		}
		for _, s := range series {
			if len(a.Lines) == maxLines {
				a.More = true
				break
			}
			a.Names = append(a.Names, cmp.Or(l.Name, s.Labels[l.By]))
			a.Lines = append(a.Lines, onto(s.Points, start, step, n))
		}
	}
	return a, nil
}

// stepOf returns the smallest round step that keeps a line within the given number of points.
func stepOf(length time.Duration, points int) time.Duration {
	for _, step := range []time.Duration{
		10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 6 * time.Hour, 24 * time.Hour,
	} {
		if length/step <= time.Duration(points) {
			return step
		}
	}
	return 7 * 24 * time.Hour
}

// onto places points on the grid of a chart. Slots without a point are absent.
func onto(points []query.Point, start time.Time, step time.Duration, n int) column {
	c := make(column, n)
	for i := range c {
		c[i] = absent
	}
	for _, p := range points {
		if i := int(math.Round(float64(p.Time.Sub(start)) / float64(step))); i >= 0 && i < n {
			c[i] = p.Value
		}
	}
	return c
}
