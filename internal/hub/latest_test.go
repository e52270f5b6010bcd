package hub

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"

	"github.com/gpumeter/gpumeter/internal/query"
)

// latestQueries are the kinds of queries that latest evaluates itself.
var latestQueries = []string{
	`a`, `{__name__=~"a|b"}`, `a{x="1"}`, `a{x!="1"}`, `nothing`,
	`sum(a)`, `count(a)`, `(sum by (x) ((a)))`, `avg by (x, y) (a)`, `min by (y) (a)`, `max by (z) (a)`, `max by (__name__, x) ({__name__=~"a|b"})`,
	`max without (way) (a)`, `sum by (x) (max without (way) (a))`, `sum by (way, x) (max without (way) (a))`, `count without (x) (max by (x, y) (a))`,
	`sum without (y) (max without (way) ({__name__=~"a|b"}))`, `avg(sum by (x) (a))`, `sum by (x, x) (b)`, `count by (nothing) (b)`,
}

// Catches an answer of latest that differs from the engine's: in values to the last bit, in
// labels, or for samples that are stale or late.
func TestLatestIsTheEngines(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			s, err := Open(t.TempDir(), Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			begin := time.Now().Add(-time.Hour).Truncate(time.Minute)
			fillAtRandom(t, s, r, begin)
			compared := 0
			for range 60 {
				at := begin.Add(time.Duration(r.Int64N(int64(50*time.Minute/time.Millisecond))) * time.Millisecond)
				if r.IntN(2) == 0 {
					at = at.Truncate(time.Minute) // lookback ends exactly on a sample
				}
				for _, expr := range latestQueries {
					compared += compareLatest(t, s, expr, at)
				}
			}
			if compared < 2000 {
				t.Errorf("only %d samples were compared", compared)
			}
		})
	}
}

// fillAtRandom writes 40 minutes of series that end, pause, arrive late, and contain NaN.
func fillAtRandom(t *testing.T, s *Store, r *rand.Rand, begin time.Time) {
	t.Helper()
	var late []func(*Appender)
	for tick := range 40 {
		app := s.Appender(t.Context())
		for n := range 24 {
			l := labels.FromStrings("__name__", string("ab"[n%2]), "x", fmt.Sprint(n%3), "y", fmt.Sprint(n%5), "way", fmt.Sprint(n%4))
			v := r.NormFloat64() * math.Pow(10, float64(r.IntN(20)-10))
			switch r.IntN(20) {
			case 0:
				v = math.NaN()
			case 1:
				v = math.Float64frombits(value.StaleNaN)
			case 2:
				v = math.Inf(r.IntN(2)*2 - 1)
			case 3:
				v = math.MaxFloat64
			case 4, 5, 6:
				continue
			}
			at := begin.Add(time.Duration(tick) * time.Minute).UnixMilli()
			if (n+tick/8)%4 == 0 {
				continue // a pause longer than the lookback
			}
			if r.IntN(10) == 0 {
				late = append(late, func(app *Appender) { app.Gauge(l, at-r.Int64N(90_000), v) })
				continue
			}
			app.Gauge(l, at, v)
		}
		if _, err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	app := s.Appender(t.Context())
	for _, write := range late {
		write(app)
	}
	if _, err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// compareLatest returns the number of samples in the answer.
func compareLatest(t *testing.T, s *Store, expr string, at time.Time) int {
	t.Helper()
	q, ok := s.latestOf(expr)
	if !ok {
		t.Fatalf("%s is left to the engine", expr)
	}
	got, ok, err := s.latest(t.Context(), q, at)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return 0 // left to the engine
	}
	result, done, err := s.instant(t.Context(), expr, at)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	vector, err := result.Vector()
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(bitsOf(samplesOf(vector)), bitsOf(got)); diff != "" {
		t.Errorf("%s at %v (-engine +latest):\n%s", expr, at.UTC(), diff)
	}
	return len(got)
}

func samplesOf(v promql.Vector) []query.Sample {
	out := make([]query.Sample, len(v))
	for i, x := range v {
		out[i] = query.Sample{Labels: x.Metric.Map(), Time: time.UnixMilli(x.T), Value: x.F}
	}
	return out
}

// bitsOf returns samples sorted, with comparable values.
func bitsOf(list []query.Sample) []string {
	slices.SortFunc(list, func(a, b query.Sample) int { return cmp.Compare(a.Labels.Key(), b.Labels.Key()) })
	out := make([]string, len(list))
	for i, s := range list {
		bits := math.Float64bits(s.Value)
		if math.IsNaN(s.Value) {
			bits = value.NormalNaN // any NaN is equal
		}
		out[i] = fmt.Sprintf("%v %d %x", s.Labels, s.Time.UnixMilli(), bits)
	}
	return out
}

// Catches a shortcut for expressions that it does not support.
func TestLatestLeavesTheRest(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, expr := range []string{
		`a offset 1m`, `a @ 5`, `a @ end()`, `rate(a[5m])`, `sum(a offset 1m)`, `topk(1, a)`, `a + a`, `1`, `sum(`, `stddev(a)`, `quantile(0.5, a)`,
		`count_values("x", a)`, `group(a)`, `-a`, `a[5m]`, `max(-a)`,
	} {
		if _, ok := s.latestOf(expr); ok {
			t.Errorf("%s was evaluated without the engine", expr)
		}
	}
}

// Catches a shortcut that bypasses the query limits.
func TestLatestHasLimits(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), Options{MaxSamples: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Now()
	app := s.Appender(t.Context())
	for n := range 6 {
		app.Gauge(labels.FromStrings("__name__", "a", "n", fmt.Sprint(n)), now.UnixMilli(), 1)
	}
	if _, err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Instant(t.Context(), "sum(a)", now); err == nil {
		t.Error("six samples were read despite a limit of five")
	}
	if got, err := s.Instant(t.Context(), `sum(a{n!="0"})`, now); err != nil || len(got) != 1 || got[0].Value != 5 {
		t.Errorf("the sum of five is %v, %v", got, err)
	}
}
