package rollup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// counted counts the samples that are read.
type counted struct {
	*querytest.Memory
	read int
}

func (c *counted) Raw(ctx context.Context, selector string, from, to time.Time) ([]query.Series, error) {
	list, err := c.Memory.Raw(ctx, selector, from, to)
	for _, s := range list {
		c.read += len(s.Points)
	}
	return list, err
}

// Catches hours that differ from their samples, at the edges of windows too, and a week that is read anew
// for each question; series that come and go; hours that are missed because the question has
// another time zone; and memory that grows for ever.
func TestOverTime(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	begin := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	berlin := time.FixedZone("CET", 3600) // in which somebody asks
	m := &counted{Memory: querytest.NewMemory()}
	newest := begin
	x := New(m, func() time.Time { return newest }, "x")
	ask := func(f string, window time.Duration, at time.Time) []query.Sample {
		t.Helper()
		list, err := x.OverTime(t.Context(), f, "x", window, at)
		if errors.Is(err, fleet.ErrNotKept) {
			list, err = m.Instant(t.Context(), fmt.Sprintf("%s(x[%s])", f, query.Duration(window)), at)
		}
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(list, func(a, b query.Sample) int { return cmp.Compare(a.Labels["pod"], b.Labels["pod"]) })
		return list
	}
	last := map[string]time.Time{} // when pods were last seen
	for hour := range 14 * 24 {
		for minute := range 60 {
			newest = begin.Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute)
			for gpu := range 3 {
				pod := fmt.Sprint("pod-", gpu, "-", (hour+7*gpu)/30)
				m.Add(query.Labels{fleet.LabelName: "x", "pod": pod}, newest, r.Float64())
				last[pod] = newest
			}
		}
		if hour%11 != 0 {
			continue
		}
		window := time.Duration(1+r.IntN(7*24*60)) * time.Minute
		at := newest.Add(-time.Duration(r.IntN(90)) * time.Minute).In(berlin)
		for _, f := range []string{"max_over_time", "min_over_time", "avg_over_time", "count_over_time"} {
			want, err := m.Instant(t.Context(), fmt.Sprintf("%s(x[%s])", f, query.Duration(window)), at)
			if err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(want, func(a, b query.Sample) int { return cmp.Compare(a.Labels["pod"], b.Labels["pod"]) })
			got := ask(f, window, at)
			// Pods that ended long ago may be omitted; those of the last day may not.
			want = slices.DeleteFunc(want, func(s query.Sample) bool {
				return newest.Sub(last[s.Labels["pod"]]) > 20*time.Hour && !slices.ContainsFunc(got, func(x query.Sample) bool { return x.Labels["pod"] == s.Labels["pod"] })
			})
			near := cmpopts.EquateApprox(0, 1e-12)
			if diff := gocmp.Diff(want, got, near, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(query.Sample{}, "Time")); diff != "" {
				t.Fatalf("%s over %s at %s (-want +got):\n%s", f, window, at, diff)
			}
		}
	}
	if err := x.Fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.read = 0
	ask("max_over_time", 7*24*time.Hour, newest)
	if m.read > 3*130 {
		t.Errorf("a week reads %d samples", m.read)
	}
	if g := x.gauges["x"]; len(g.hours) > 8*24+2 || len(g.labels) != len(g.ids) || len(g.labels) > 3*3 {
		t.Errorf("%d hours and %d series are kept", len(g.hours), len(g.labels))
	}
}
