package serving

import (
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

// grown is what an engine counted, as text.
func grown(t *testing.T, store query.Store, from, to time.Time) map[string]Tokens {
	t.Helper()
	use, err := ReadTokens(t.Context(), store, from, to, fleet.MeterOptions{})
	if err != nil {
		t.Fatal(err)
	}
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
	use, err := ReadTokens(t.Context(), m, noon, noon.Add(time.Hour), fleet.MeterOptions{})
	if err != nil || use.Missed != 1 || use.Refused != 0 {
		t.Errorf("%v, %d missed, %d refused", err, use.Missed, use.Refused)
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
