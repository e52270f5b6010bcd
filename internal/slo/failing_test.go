package slo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// broken is a store that does not answer some questions.
type broken struct {
	query.Store
	fails func(expr string, at time.Time) bool
}

var errAway = errors.New("the store is away")

func (b *broken) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	if b.fails(expr, at) {
		return nil, errAway
	}
	return b.Store.Instant(ctx, expr, at)
}

func (b *broken) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	if b.fails(expr, end) {
		return nil, errAway
	}
	return b.Store.Range(ctx, expr, start, end, step)
}

// Catches a part of a month that is taken for the month because a day could not be read, and that stays for ten minutes, engines that the first look could not find and that
// nobody looks for again, an absent number that does not say that it could not be read, and a reading that outlives its store by a day.
func TestLookAtFailingStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := engine("a", "llama", "chat")
	w.put(fleet.SeriesEngineUp, a, false, constant(1))
	w.put(fleet.SeriesFinished, a, true, func(ago time.Duration) (float64, bool) {
		if ago > 2*day { // failures of long ago
			return 40, true
		}
		return 60, true
	}, fleet.LabelOutcome, "success")
	w.put(fleet.SeriesFinished, a, true, func(ago time.Duration) (float64, bool) {
		if ago > 2*day {
			return 20, true
		}
		return 0, true
	}, fleet.LabelOutcome, "error")
	gone := engine("gone", "llama", "chat") // its requests were all good
	w.put(fleet.SeriesFinished, gone, true, func(ago time.Duration) (float64, bool) { return 60, ago > 3*day-time.Hour }, fleet.LabelOutcome, "success")
	other := engine("other", "llama", "other")
	w.put(fleet.SeriesFinished, other, true, func(ago time.Duration) (float64, bool) { return 60, ago > 3*day-time.Hour }, fleet.LabelOutcome, "error")
	w.write(4 * day)
	file, err := Parse([]byte("{window: 4d, objectives: [{model: llama, errors: 10%, availability: 90%}]}"))
	if err != nil {
		t.Fatal(err)
	}
	const (
		all     = "[chat errors 3d 1.1 budget -0.3] [chat availability 3d 0.0 budget 1.0] [other errors 3d 10.0 budget -9.0] [other availability 3d - budget -]"
		nothing = "[chat errors 3d - budget -] [chat availability 3d - budget -]"
		unknown = nothing + " [other errors 3d - budget -] [other availability 3d - budget -]"
	)
	type step struct {
		after time.Duration
		fails func(expr string, at time.Time) bool
		want  string
	}
	never := func(string, time.Time) bool { return false }
	always := func(string, time.Time) bool { return true }
	past := func(_ string, at time.Time) bool { return noon.Sub(at) > 36*time.Hour }
	eldest := func(expr string, at time.Time) bool { return strings.HasPrefix(expr, "group") && noon.Sub(at) >= 4*day }
	for name, steps := range map[string][]step{
		"a day": {{0, past, nothing + " unread [3d] partial"}, {time.Minute, never, all}},
		"a day of requests": {
			{0, func(expr string, at time.Time) bool { return past(expr, at) && strings.HasPrefix(expr, "sum") }, strings.NewReplacer("-0.3", "-", "-9.0", "-").Replace(all)},
			{time.Minute, never, all},
		},
		"the oldest engines": {
			{0, eldest, strings.NewReplacer("-0.3", "-", "-9.0", "-", "budget 1.0", "budget -").Replace(all) + " partial"},
			{time.Minute, eldest, all}, // they are in no window anymore
		},
		"all but the engines": {
			{0, func(expr string, _ time.Time) bool { return !strings.HasPrefix(expr, "group") }, unknown + " unread [5m 30m 1h 6h 3d]"},
			{time.Minute, never, all},
		},
		"all":                     {{0, always, "unread [5m 30m 1h 6h 3d] partial"}, {time.Minute, never, all}},
		"a day, later":            {{0, never, all}, {11 * time.Minute, past, all}, {12 * time.Minute, never, all}},
		"everything, later":       {{0, never, all}, {11 * time.Minute, always, all + " unread [5m 30m 1h 6h 3d]"}, {12 * time.Minute, never, all}},
		"everything, for an hour": {{0, never, all}, {61 * time.Minute, always, unknown + " unread [5m 30m 1h 6h 3d]"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := NewJudge(file)
			for _, s := range steps {
				r, err := j.Look(t.Context(), &broken{Store: w.store, fails: s.fails}, noon.Add(s.after))
				got := []string{}
				for _, row := range r.Rows {
					for _, x := range row.Results {
						text := func(f optional.Float) string {
							if v, ok := f.Get(); ok {
								return fmt.Sprintf("%.1f", v+1e-9)
							}
							return "-"
						}
						got = append(got, fmt.Sprintf("[%s %s 3d %s budget %s]", row.Owner.Name, x.Name, text(x.Burn[threeDays]), text(x.Budget)))
					}
				}
				unread := []string{}
				for i, is := range r.Unread {
					if is {
						unread = append(unread, WindowName(i))
					}
				}
				if len(unread) > 0 {
					got = append(got, fmt.Sprintf("unread %v", unread))
				}
				if r.Partial {
					got = append(got, "partial")
				}
				if diff := cmp.Diff(s.want, strings.Join(got, " ")); diff != "" {
					t.Errorf("after %s, %v (-want +got):\n%s", s.after, err, diff)
				}
			}
		})
	}
}

// Catches an engine that is forgotten because it had been there for long before it ended.
func TestLookRemembersEngines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := engine("a", "llama", "chat")
	w.put(fleet.SeriesFinished, l, true, func(ago time.Duration) (float64, bool) { return 60, ago > 90*time.Minute }, fleet.LabelOutcome, "error")
	w.write(73 * time.Hour)
	file, err := Parse([]byte("{window: 3d, objectives: [{model: llama, errors: 50%}]}"))
	if err != nil {
		t.Fatal(err)
	}
	j := NewJudge(file)
	for _, after := range []time.Duration{0, 48 * time.Hour} {
		if diff := cmp.Diff("burn - - - "+map[bool]string{true: "2.0", false: "-"}[after == 0]+" 2.0, budget -1.00", look(t, j, w.store, noon.Add(after))["llama chat errors"]); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", after, diff)
		}
	}
}
