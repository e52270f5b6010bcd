package serving

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// ofToken returns the labels of a series of an engine.
func ofToken(name, engine string, more ...string) query.Labels {
	l := query.Labels{
		fleet.LabelName: name, fleet.LabelHost: "n", fleet.LabelEngine: engine, fleet.LabelProvider: "vllm", fleet.LabelServedModel: "m",
		fleet.LabelKind: "deployment", fleet.LabelWorkload: "w", fleet.LabelTeam: "t",
	}
	for i := 0; i < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	return l
}

// readTokens returns what engines counted in a period of any length.
func readTokens(t *testing.T, store query.Store, from, to time.Time) *TokenUse {
	t.Helper()
	out, r := &TokenUse{}, NewTokenReader(store, fleet.MeterOptions{})
	edges := append(append([]time.Time{from}, fleet.Days(from, to)...), to)
	for i, end := range edges[1:] {
		use, err := r.Day(t.Context(), edges[i], end)
		if err != nil {
			t.Fatal(err)
		}
		out.Rows, out.Works = append(out.Rows, use.Rows...), append(out.Works, use.Works...)
		out.Missed, out.Refused = out.Missed+use.Missed, out.Refused+use.Refused
	}
	return out
}

// grown is what an engine counted, as text.
func grown(t *testing.T, store query.Store, from, to time.Time) map[string]Tokens {
	t.Helper()
	use := readTokens(t, store, from, to)
	out := map[string]Tokens{}
	for _, r := range use.Rows {
		key := r.ID + " " + r.Model + " " + r.Owner.Name
		out[key] = out[key].Plus(r.Tokens)
	}
	return out
}

// Catches tokens that a restart of an engine loses or counts twice, growth from before or after the period, an
// engine that the store did not see start and whose whole counter counts, outcomes that are mixed up, a
// counter that splits because a label of the workload arrives late, and 0 where nothing is counted.
func TestTokensByHand(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	put := func(l query.Labels, minute float64, v float64) {
		m.Add(l, noon.Add(time.Duration(minute*float64(time.Minute))), v)
	}
	steady := ofToken(fleet.SeriesTokensOut, "steady")
	for i := -30; i <= 90; i++ { // 600 a minute, before and after the hour
		put(steady, float64(i)+0.5, 1e6+600*float64(i+30))
	}
	restarted := ofToken(fleet.SeriesTokensOut, "restarted")
	for i := -30; i <= 90; i++ { // 100 a minute; at minute 20 it begins anew with 100
		v := float64(i+31) * 100
		if i >= 20 {
			v = float64(i-19) * 100
		}
		put(restarted, float64(i), v)
	}
	for i := 10; i <= 40; i++ { // seen to begin: the hub wrote its zero
		put(ofToken(fleet.SeriesTokensOut, "new"), float64(i), float64(i-10)*50)
		put(ofToken(fleet.SeriesTokensOut, "missed"), float64(i), 1e9+float64(i-10)*50)
	}
	for i := -10; i <= 70; i++ { // it is another workload's from minute 30 on
		more := []string{}
		if i >= 30 {
			more = []string{fleet.LabelWorkload, "late"}
		}
		put(ofToken(fleet.SeriesTokensOut, "relabelled", more...), float64(i), float64(i+10)*7)
	}
	for i := -10; i <= 70; i++ {
		for outcome, per := range map[string]float64{fleet.OutcomeSuccess: 5, fleet.OutcomeError: 2, fleet.OutcomeAbort: 1} {
			put(ofToken(fleet.SeriesFinished, "steady", fleet.LabelOutcome, outcome), float64(i), float64(i+10)*per)
		}
		put(ofToken(fleet.SeriesTokensIn, "steady", fleet.LabelRankOfEngine, "0"), float64(i), float64(i+10)*11)
		put(ofToken(fleet.SeriesTokensIn, "steady", fleet.LabelRankOfEngine, "1"), float64(i), float64(i+10)*13)
		put(ofToken(fleet.SeriesPrefixHits, "steady", fleet.LabelTier, "gpu"), float64(i), float64(i+10)*3)
		put(ofToken(fleet.SeriesPrefixHits, "steady", fleet.LabelTier, "external"), float64(i), float64(i+10))
		put(ofToken(fleet.SeriesTokensIn, "idle"), float64(i), 400)
	}
	want := map[string]Tokens{
		"steady m w": {
			Out: TallyOf(36000), In: TallyOf(60 * 24), Cached: TallyOf(60 * 4), Finished: TallyOf(60 * 8), Failed: TallyOf(120), Aborted: TallyOf(60),
		},
		"restarted m w":     {Out: TallyOf(6000)},
		"new m w":           {Out: TallyOf(1500)},
		"missed m w":        {Out: TallyOf(1500)},
		"relabelled m w":    {Out: TallyOf(29 * 7)},
		"relabelled m late": {Out: TallyOf(31 * 7)},
		"idle m w":          {In: TallyOf(0)},
	}
	if diff := cmp.Diff(want, grown(t, m, noon, noon.Add(time.Hour))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if use := readTokens(t, m, noon, noon.Add(time.Hour)); use.Missed != 1 || use.Refused != 0 {
		t.Errorf("%d missed, %d refused", use.Missed, use.Refused)
	}
}

// Catches a day that is not the sum of its hours, growth that depends on the period that is asked for, and
// tokens that count twice because a counter reaches the store on two ways, or are lost when one of them ends.
func TestTokensAddUp(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		one, two := querytest.NewMemory(), querytest.NewMemory()
		begin := time.Date(2026, 11, 14, 20, 0, 0, 0, time.UTC)
		end := begin.Add(8 * time.Hour)
		truth, seen := 0.0, 0.0 // in the readings
		for e := range 1 + r.IntN(3) {
			l := ofToken(fleet.SeriesTokensOut, fmt.Sprint("e", e), "job", "push")
			other := maps.Clone(l)
			other["job"], other["instance"] = "scrape", "a:1"
			v, told, dead, away := 0.0, 0.0, time.Time{}, time.Time{}
			start := begin.Add(time.Duration(r.IntN(3)) * time.Hour)
			lost, pushes := start.Add(time.Duration(r.IntN(6))*time.Hour), r.IntN(2) == 0
			one.Add(l, start, 0)
			two.Add(l, start, 0)
			for at := start.Add(time.Minute); !at.After(end); at = at.Add(time.Minute) {
				if at.Before(dead) {
					continue
				}
				switch n := r.IntN(1000); {
				case n < 4: // it begins anew
					v, dead = 0, at.Add(time.Duration(r.IntN(90))*time.Minute)
					continue
				case n < 8: // nobody looks
					away = at.Add(time.Duration(r.IntN(50)) * time.Minute)
				}
				page := v
				if r.IntN(3) == 0 {
					n := float64(r.IntN(1e5))
					v += n
					truth += n
				}
				last := !at.Add(time.Minute).Before(end)
				if at.Before(away) && !last {
					continue
				}
				if v < told {
					told = 0
				}
				seen, told = seen+v-told, v
				one.Add(l, at, v)
				if pushes || at.Before(lost) || last {
					two.Add(l, at, v)
				}
				if at.After(lost.Add(-time.Hour)) {
					two.Add(other, at.Add(2*time.Second), page) // a page that was made at the last reading
				}
			}
		}
		for name, store := range map[string]*querytest.Memory{"one way": one, "two ways": two} {
			to := end.Add(10 * time.Minute)
			whole, parts := int64(0), int64(0)
			for _, x := range grown(t, store, begin, to) {
				whole += x.Out.N
			}
			for at := begin; at.Before(to); {
				next := at.Add(time.Duration(1+r.IntN(150)) * time.Minute).Add(time.Duration(r.IntN(60000)) * time.Millisecond)
				if next.After(to) {
					next = to
				}
				for _, x := range grown(t, store, at, next) {
					parts += x.Out.N
				}
				at = next
			}
			// Of two ways it may depend on the period which one is followed across a gap.
			if exact := name == "one way"; exact && whole != parts || math.Abs(float64(whole-parts)) > 0.01*truth {
				t.Errorf("seed %d, %s: the whole is %d, its parts %d", seed, name, whole, parts)
			}
			if name == "one way" && float64(whole) != seen {
				t.Errorf("seed %d, %s: %d tokens, want %.0f", seed, name, whole, seen)
			}
			if name == "two ways" && float64(whole) > 1.02*truth {
				t.Errorf("seed %d, %s: %d of %.0f tokens", seed, name, whole, truth)
			}
		}
	}
}

// Catches an engine that works on its device in hours in which it did not run, or not in those in which it ran for less
// than the distance of two queries; hours that depend on the part of the day that is asked for; and a restart with
// another model that is overlooked.
func TestHoursOfWork(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	midnight := noon.Truncate(24 * time.Hour)
	put := func(engine, model string, from, to float64) {
		for at := from; at < to; at += 1. / 360 {
			m.Add(ofToken(fleet.SeriesEngineDevice, engine, fleet.LabelUUID, "GPU-1", fleet.LabelServedModel, model), midnight.Add(time.Duration(at*float64(time.Hour))), 1)
		}
	}
	put("before", "m", -3, -1)
	put("batch", "m", 10.1, 10.15) // three minutes
	put("swapped", "a", -2, 12.5)
	put("swapped", "b", 12.6, 14.5)
	put("late", "m", 23.99, 30)
	want := map[string]Hours{"batch m": 1 << 10, "swapped a": 1<<13 - 1, "swapped b": 1<<12 | 1<<13 | 1<<14, "late m": 1 << 23}
	for _, part := range [][2]float64{{0, 24}, {5, 12.25}, {23.5, 23.6}, {11, 11.5}} {
		from, to := midnight.Add(time.Duration(part[0]*float64(time.Hour))), midnight.Add(time.Duration(part[1]*float64(time.Hour)))
		use := readTokens(t, m, from, to)
		got := map[string]Hours{}
		for _, w := range use.Works {
			got[w.ID+" "+w.Model] = w.Hours
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", part, diff)
		}
		var changes []float64
		for _, at := range use.Changes(from, to) {
			changes = append(changes, at.Sub(midnight).Hours())
		}
		list := map[float64][]float64{24: {10, 11, 12, 13, 15, 23}, 12.25: {10, 11, 12}}[part[1]]
		if diff := cmp.Diff(list, changes); diff != "" {
			t.Errorf("%v: changes (-want +got):\n%s", part, diff)
		}
	}
}

// clipped is a store whose ranges end at a moment, because that is now.
type clipped struct {
	*querytest.Memory
	now time.Time
}

func (c clipped) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	if end.After(c.now) {
		end = c.now
	}
	return c.Memory.Range(ctx, expr, start, end, step)
}

// Catches an engine that works on nothing until its first hour is over.
func TestHourThatIsNotOver(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := range 60 {
		m.Add(ofToken(fleet.SeriesEngineDevice, "new", fleet.LabelUUID, "GPU-1"), noon.Add(time.Duration(10+i)*10*time.Second), 1)
	}
	to := noon.Add(12 * time.Minute)
	use := readTokens(t, clipped{m, to}, noon.Add(-time.Hour), to)
	if len(use.Works) != 1 || use.Works[0].Hours != 1<<12 {
		t.Errorf("%+v", use.Works)
	}
}
