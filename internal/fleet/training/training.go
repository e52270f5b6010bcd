// Package training reads back what jobs that train say and show of themselves: steps, their time, restarts, and
// where the time that was allocated to them went.
package training

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Row is one workload that trains, in a period.
type Row struct {
	Owner fleet.Owner `json:"owner"`
	// Observed and Reported say where its steps and times are from.
	Observed bool `json:"observed"`
	Reported bool `json:"reported"`

	Steps           float64        `json:"steps"`
	StepTime        optional.Float `json:"step_seconds"` // mean
	Tokens          optional.Float `json:"tokens"`
	Samples         optional.Float `json:"samples"`
	Checkpoints     float64        `json:"checkpoints"`
	CheckpointBytes float64        `json:"checkpoint_bytes"`
	Restarts        float64        `json:"restarts"`
	MFU             optional.Float `json:"mfu"` // mean over time and devices
	// Estimated is set if MFU is observed.
	Estimated bool           `json:"mfu_estimated"`
	Loss      optional.Float `json:"loss"` // the last one, like GradientNorm
	Gradient  optional.Float `json:"gradient_norm"`

	Waterfall Waterfall `json:"waterfall"`
}

// counters are the series that are counted, and where their growth goes. The labels tell parts apart.
var counters = []struct {
	series string
	add    func(r *Row, n float64, l query.Labels, t *times)
}{
	{SeriesSteps, func(r *Row, n float64, _ query.Labels, _ *times) { r.Steps += n }},
	{SeriesTokens, func(r *Row, n float64, _ query.Labels, _ *times) { r.Tokens = plus(r.Tokens, n) }},
	{SeriesSamples, func(r *Row, n float64, _ query.Labels, _ *times) { r.Samples = plus(r.Samples, n) }},
	{SeriesCheckpoints, func(r *Row, n float64, _ query.Labels, _ *times) { r.Checkpoints += n }},
	{SeriesCheckpointIO, func(r *Row, n float64, _ query.Labels, _ *times) { r.CheckpointBytes += n }},
	{SeriesRestarts, func(r *Row, n float64, _ query.Labels, _ *times) { r.Restarts += n }},
	{fleet.HistogramSum(HistogramStep), func(_ *Row, n float64, _ query.Labels, t *times) { t.sum += n }},
	{fleet.HistogramCount(HistogramStep), func(_ *Row, n float64, _ query.Labels, t *times) { t.count += n }},
	{SeriesTime, func(_ *Row, n float64, l query.Labels, t *times) { t.spent[l[LabelActivity]] += seconds(n) }},
	{SeriesLost, func(_ *Row, n float64, l query.Labels, t *times) {
		if l[LabelLost] == redone {
			t.redone += seconds(n)
		}
	}},
}

const redone = "redone"

// times are what a waterfall is made of.
type times struct {
	sum, count float64 // of steps
	spent      map[string]fleet.Seconds
	redone     fleet.Seconds
}

func seconds(v float64) fleet.Seconds {
	if !(v > 0 && v < 1e12) {
		return 0
	}
	return fleet.Seconds(math.Round(v * 1e6))
}

func plus(a optional.Float, v float64) optional.Float { return optional.Of(a.Default(0) + v) }

// Read returns the workloads of a store that trained in a period, by ID. allocated is the device time that each of
// them held in it, by the ID of the owner, as bills have it. Matchers may select workloads.
func Read(ctx context.Context, store query.Store, from, to time.Time, allocated map[string]fleet.Seconds, match ...string) ([]Row, error) {
	c := &collector{rows: map[string]*Row{}, times: map[string]*times{}}
	for _, k := range counters {
		list, err := grown(ctx, store, k.series, from, to, match)
		if err != nil {
			return nil, err
		}
		for _, g := range list {
			if r, t := c.row(g.Labels); r != nil {
				k.add(r, g.Value, g.Labels, t)
			}
		}
	}
	if len(c.rows) == 0 {
		return []Row{}, nil
	}
	if err := c.gauges(ctx, store, from, to, match); err != nil {
		return nil, err
	}
	out := make([]Row, 0, len(c.rows))
	for _, id := range slices.Sorted(maps.Keys(c.rows)) {
		r, t := c.rows[id], c.times[id]
		if t.count > 0 {
			r.StepTime = optional.Of(t.sum / t.count)
		}
		r.Waterfall = Divide(allocated[id], t.spent, t.redone)
		out = append(out, *r)
	}
	return out, nil
}

// collector collects rows.
type collector struct {
	rows  map[string]*Row
	times map[string]*times
}

func (c *collector) row(l query.Labels) (*Row, *times) {
	owner, ok := fleet.OwnerOf(l)
	if !ok || !fleet.IsWorkload(owner.Kind) {
		return nil, nil
	}
	r := c.rows[owner.ID]
	if r == nil {
		r = &Row{Owner: owner}
		c.rows[owner.ID], c.times[owner.ID] = r, &times{spent: map[string]fleet.Seconds{}}
	}
	if l[LabelSource] == Reported {
		r.Reported = true
	} else {
		r.Observed = true
	}
	return r, c.times[owner.ID]
}

// gauges adds values that are not counted. A MFU that is reported is better than an estimate.
func (c *collector) gauges(ctx context.Context, store query.Store, from, to time.Time, match []string) error {
	by := " by (" + fleet.OwnerLabels() + ", " + LabelSource + ") "
	window := query.Duration(to.Sub(from))
	answers, err := query.Instants(ctx, store, to,
		"avg"+by+fleet.Once(fleet.Over("avg_over_time", fleet.Select(SeriesMFU, nil, match...), window)),
		"avg"+by+fleet.Once(fleet.Over("last_over_time", fleet.Select(SeriesLoss, nil, match...), window)),
		"avg"+by+fleet.Once(fleet.Over("last_over_time", fleet.Select(SeriesGradient, nil, match...), window)))
	if err != nil {
		return err
	}
	for i, list := range answers {
		for _, s := range list {
			owner, _ := fleet.OwnerOf(s.Labels)
			r := c.rows[owner.ID]
			if r == nil || math.IsNaN(s.Value) {
				continue
			}
			said := s.Labels[LabelSource] == Reported
			switch {
			case i == 1:
				r.Loss = optional.Of(s.Value)
			case i == 2:
				r.Gradient = optional.Of(s.Value)
			case said || !r.MFU.OK():
				r.MFU, r.Estimated = optional.Of(s.Value), !said
			}
		}
	}
	return nil
}

// grown returns by how much each counter grew in a period, once for all of its ways to the store.
func grown(ctx context.Context, store query.Store, series string, from, to time.Time, match []string) ([]query.Sample, error) {
	selector, window := fleet.Select(series, nil, match...), query.Duration(to.Sub(from))
	answers, err := query.Instants(ctx, store, to,
		fleet.Once(fleet.Over("last_over_time", selector, window)),
		fleet.Once(fleet.Over("min_over_time", selector, window)),
		fleet.Once(fleet.Over("resets", selector, window)))
	if err != nil {
		return nil, err
	}
	least, again := map[string]float64{}, map[string]query.Labels{}
	for _, s := range answers[1] {
		least[keyOf(s.Labels)] = s.Value
	}
	for _, s := range answers[2] {
		if s.Value > 0 {
			again[keyOf(s.Labels)] = s.Labels
		}
	}
	var out []query.Sample
	for _, s := range answers[0] {
		key := keyOf(s.Labels)
		first, ok := least[key]
		if ok && again[key] == nil && s.Value > first {
			out = append(out, query.Sample{Labels: s.Labels, Value: s.Value - first})
		}
	}
	if len(again) == 0 {
		return out, nil
	}
	raw, err := store.Raw(ctx, selector, from, to)
	if err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(again)) {
		best := query.Sample{Labels: again[key]} // of the way to the store that has most of it
		for _, s := range raw {
			if within(again[key], s.Labels) {
				best.Value = max(best.Value, sumOf(s.Points))
			}
		}
		out = append(out, best)
	}
	return out, nil
}

// within reports whether a series has the labels of a counter, and others that say how it came to the store.
func within(counter, series query.Labels) bool {
	for k, v := range counter {
		if k != fleet.LabelName && series[k] != v {
			return false
		}
	}
	return true
}

// sumOf adds up the growth of a counter that began anew, at zero.
func sumOf(points []query.Point) (n float64) {
	for i := 1; i < len(points); i++ {
		if d := points[i].Value - points[i-1].Value; d >= 0 {
			n += d
		} else if points[i].Value > 0 {
			n += points[i].Value
		}
	}
	return n
}

// keyOf identifies a counter, by all of its labels but its name, which functions drop.
func keyOf(l query.Labels) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(l)) {
		if k != fleet.LabelName && l[k] != "" {
			b.WriteString(k + "\x00" + l[k] + "\x00")
		}
	}
	return b.String()
}

// Compare orders rows by what they were allocated, most first.
func Compare(a, b Row) int {
	return cmp.Or(cmp.Compare(b.Waterfall.Allocated, a.Waterfall.Allocated), cmp.Compare(a.Owner.ID, b.Owner.ID))
}
