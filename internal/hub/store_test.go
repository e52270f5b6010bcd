package hub

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/query"
)

// now is the time of the tests, not a round number so that nothing fits by chance.
var now = time.Date(2026, 3, 7, 13, 14, 15, 161_000_000, time.UTC)

func openTest(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	if o.Now == nil {
		o.Now = func() time.Time { return now }
	}
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	s.db.DisableCompactions()           // tests do it when they want it: otherwise it depends on the machine when it happens
	t.Cleanup(func() { _ = s.Close() }) // closing twice may fail
	return s
}

func ago(d time.Duration) int64 { return now.Add(-d).UnixMilli() }

func name(n string, more ...string) Labels {
	return labels.FromStrings(append([]string{"__name__", n}, more...)...)
}

func commit(t *testing.T, a *Appender) Result {
	t.Helper()
	r, err := a.Commit()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// show formats series as lines: labels, then seconds before now and value.
func show(series []query.Series) []string {
	var out []string
	for _, s := range series {
		var pairs []string
		for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
			pairs = append(pairs, k+"="+s.Labels[k])
		}
		line := strings.Join(pairs, ",")
		for _, p := range s.Points {
			line += fmt.Sprintf(" %g:%g", now.Sub(p.Time).Seconds(), p.Value)
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

func raw(t *testing.T, s *Store, selector string) []string {
	t.Helper()
	series, err := s.Raw(t.Context(), selector, now.Add(-48*time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return show(series)
}

// Catches a counter whose first value is missing in increase(), a zero stored twice or after
// a restart, and a reset without a zero.
func TestZeroes(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	c := name("c_total")
	add := func(start, at time.Duration, v float64) {
		t.Helper()
		a := s.Appender(t.Context())
		a.Counter(c, ago(start), ago(at), v)
		if r := commit(t, a); r != (Result{Accepted: 1}) {
			t.Fatalf("%+v", r)
		}
	}
	add(100*time.Second, 90*time.Second, 5)
	add(100*time.Second, 80*time.Second, 6)
	add(75*time.Second, 70*time.Second, 7) // a reset that is not visible in the value
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir, Options{})
	add(75*time.Second, 60*time.Second, 8)
	add(55*time.Second, 50*time.Second, 9)
	want := []string{"__name__=c_total 100:0 90:5 80:6 75:0 70:7 60:8 55:0 50:9"}
	if diff := cmp.Diff(want, raw(t, s, "c_total")); diff != "" {
		t.Error(diff)
	}
	got, err := s.Instant(t.Context(), "resets(c_total[5m])", now)
	if err != nil || len(got) != 1 || got[0].Value != 2 {
		t.Errorf("%v %v", got, err)
	}
}

// Catches a zero for a counter whose start is unknown: a sender leaves the start unset, or
// gives its first point as the start, as OpenTelemetry's data model allows.
func TestNoZeroOfUnknownStart(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	for _, at := range []time.Duration{90 * time.Second, 80 * time.Second, 70 * time.Second} {
		a := s.Appender(t.Context())
		a.Counter(name("unset_total"), 0, ago(at), 9e9)
		a.Counter(name("first_total"), ago(90*time.Second), ago(at), 9e9)
		if r := commit(t, a); r != (Result{Accepted: 2}) {
			t.Fatalf("%+v", r)
		}
	}
	want := []string{"__name__=first_total 90:9e+09 80:9e+09 70:9e+09", "__name__=unset_total 90:9e+09 80:9e+09 70:9e+09"}
	if diff := cmp.Diff(want, raw(t, s, `{__name__=~".+_total"}`)); diff != "" {
		t.Error(diff)
	}
}

// Catches a new counter that started hours ago: its zero is out of order, and a zero before
// the window is not stored at all.
func TestZeroOfOldStart(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	a := s.Appender(t.Context())
	a.Gauge(name("other"), ago(0), 1)
	commit(t, a)
	a = s.Appender(t.Context())
	a.Counter(name("hours_total"), ago(3*time.Hour), ago(time.Second), 5)
	a.Counter(name("days_total"), ago(72*time.Hour), ago(time.Second), 5)
	if r := commit(t, a); r != (Result{Accepted: 2}) {
		t.Fatalf("%+v", r)
	}
	want := []string{"__name__=days_total 1:5", "__name__=hours_total 10800:0 1:5"}
	if diff := cmp.Diff(want, raw(t, s, `{__name__=~".+_total"}`)); diff != "" {
		t.Error(diff)
	}
}

// Catches lost out-of-order samples, duplicates that are errors or stored twice, and samples
// outside the window that are accepted or not counted.
func TestTimes(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	g := name("g")
	a := s.Appender(t.Context())
	for _, at := range []int64{10, 5, 1} {
		a.Gauge(g, ago(0)-1000*at, float64(at))
	}
	commit(t, a)
	a = s.Appender(t.Context())
	a.Gauge(g, ago(time.Second), 1)              // a duplicate
	a.Gauge(g, ago(5*time.Second), 5)            // in between
	a.Gauge(g, ago(7*time.Second), 7)            // out of order
	a.Gauge(g, ago(23*time.Hour), 23)            // far out of order
	a.Gauge(g, ago(25*time.Hour), 25)            // too old
	a.Gauge(g, ago(-MaxFuture-time.Second), 100) // too new
	a.Gauge(g, ago(time.Second), 2)              // conflicting value
	r := commit(t, a)
	if r.Accepted != 4 || r.Refused != 3 || !strings.Contains(r.Why, "more than 24h0m0s behind") {
		t.Errorf("%+v", r)
	}
	want := []string{"__name__=g 82800:23 10:10 7:7 5:5 1:1"}
	if diff := cmp.Diff(want, raw(t, s, "g")); diff != "" {
		t.Error(diff)
	}
	for why, n := range map[Reason]uint64{TooOld: 1, Future: 1, Duplicate: 1, Invalid: 0} {
		if got := s.Refusals().Count(why); got != n {
			t.Errorf("%s counted %d times, want %d", reasonLabels[why], got, n)
		}
	}
}

// Catches a sender that is told to drop its samples although a clock is wrong.
func TestWrongClock(t *testing.T) {
	clock := now
	s := openTest(t, t.TempDir(), Options{Now: func() time.Time { return clock }})
	a := s.Appender(t.Context())
	a.Gauge(name("g"), now.Add(26*time.Hour).UnixMilli(), 1)
	if _, err := a.Commit(); err == nil || !strings.Contains(err.Error(), "clock") {
		t.Errorf("an hour ahead: %v", err)
	}
	clock = now.Add(-48 * time.Hour) // the hub's clock
	a = s.Appender(t.Context())
	a.Gauge(name("g"), ago(0), 1)
	if _, err := a.Commit(); err == nil {
		t.Error("the hub accepts future samples although its clock is behind")
	}
	clock = now.Add(48 * time.Hour)
	a = s.Appender(t.Context())
	a.Gauge(name("g"), now.Add(47*time.Hour).UnixMilli(), 1)
	commit(t, a)
	a = s.Appender(t.Context())
	a.Gauge(name("g"), now.Add(46*time.Hour).UnixMilli(), 2)
	if r := commit(t, a); r.Accepted != 1 {
		t.Errorf("%+v", r)
	}
}

// Catches a series that continues after its end, and the end of an unknown series.
func TestEnd(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	a := s.Appender(t.Context())
	a.Gauge(name("g"), ago(20*time.Second), 1)
	a.End(name("never"), ago(10*time.Second))
	commit(t, a)
	a = s.Appender(t.Context())
	a.End(name("g"), ago(10*time.Second))
	commit(t, a)
	for at, want := range map[time.Duration]int{15 * time.Second: 1, 5 * time.Second: 0} {
		if got, err := s.Instant(t.Context(), "g", now.Add(-at)); err != nil || len(got) != want {
			t.Errorf("%s ago: %v %v", at, got, err)
		}
	}
	if diff := cmp.Diff([]string{"__name__=g 20:1"}, raw(t, s, `{__name__!=""}`)); diff != "" {
		t.Error(diff)
	}
}

// Catches existing series that are rejected, and a limit that a restart forgets or that
// prevents the store from opening.
func TestSeriesLimit(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{MaxSeries: 2, NodeSeries: 2})
	add := func(i int, at time.Duration) Result {
		a := s.Appender(t.Context())
		a.Gauge(name("g", "i", fmt.Sprint(i)), ago(at), 1)
		return commit(t, a)
	}
	for i := range 2 {
		if r := add(i, 10*time.Second); r.Accepted != 1 {
			t.Fatalf("%+v", r)
		}
	}
	if r := add(2, 10*time.Second); r.Refused != 1 || !strings.Contains(r.Why, "--backend") {
		t.Errorf("%+v", r)
	}
	if r := add(1, 5*time.Second); r.Accepted != 1 {
		t.Errorf("%+v", r)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir, Options{MaxSeries: 1, NodeSeries: 2})
	if r := add(0, time.Second); r.Accepted != 1 {
		t.Errorf("%+v", r)
	}
	if r := add(2, time.Second); r.Refused != 1 {
		t.Errorf("%+v", r)
	}
}

// Catches buckets that are shifted, wrongly merged or lost.
func TestExponential(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	for i, e := range []Exponential{
		{Scale: 0, Count: 6, Sum: 20, Positive: Buckets{Offset: 0, Counts: []uint64{1, 2, 0, 0, 3}}},
		{Scale: 10, Count: 6, Sum: 20, Zero: 1, Positive: Buckets{Offset: -3, Counts: []uint64{1, 1, 1, 1, 1}}},
		{Scale: 3, Count: 3, Sum: -20, Negative: Buckets{Offset: 5, Counts: []uint64{0, 3}}},
	} {
		a := s.Appender(t.Context())
		a.Exponential(name("h", "i", fmt.Sprint(i)), ago(time.Minute), ago(time.Second), e)
		if r := commit(t, a); r.Accepted != 1 {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	ask := func(expr string) float64 {
		t.Helper()
		got, err := s.Instant(t.Context(), expr, now)
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %v %v", expr, got, err)
		}
		return got[0].Value
	}
	for expr, want := range map[string]float64{
		`histogram_count(h{i="0"})`: 6, `histogram_sum(h{i="0"})`: 20,
		`histogram_fraction(1, 2, h{i="0"}) * 6`:      1, // OTLP's bucket 0 of scale 0 is (1, 2]
		`histogram_fraction(16, 32, h{i="0"}) * 6`:    3,
		`histogram_count(increase(h{i="0"}[5m])) > 5`: 6,
		`histogram_count(h{i="1"})`:                   6,
		`histogram_quantile(0.5, h{i="2"}) < bool 0`:  1,
	} {
		if got := ask(expr); got < want-0.6 || got > want+0.6 {
			t.Errorf("%s is %g, want %g", expr, got, want)
		}
	}
	for _, bad := range []Exponential{
		{Scale: -5, Count: 1, Positive: Buckets{Counts: []uint64{1}}},
		{Scale: 100, Count: 1, Positive: Buckets{Counts: []uint64{1}}},
		{Scale: 0, Count: 1, Positive: Buckets{Offset: 1<<31 - 2, Counts: []uint64{1, 1}}},
		{Scale: 0, Count: 1, Positive: Buckets{Counts: []uint64{5}}},
		{Scale: 0, Count: 1, Positive: Buckets{Counts: make([]uint64, 5000)}},
	} {
		a := s.Appender(t.Context())
		a.Exponential(name("bad"), 0, ago(time.Second), bad)
		if r := commit(t, a); r.Refused != 1 {
			t.Errorf("%+v: %+v", bad.Scale, r)
		}
	}
}

// Catches a query that exhausts memory or time for everyone.
func TestQueryOfDeath(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{MaxSamples: 1000, QueryTimeout: 200 * time.Millisecond, Queries: 1})
	a := s.Appender(t.Context())
	for i := range 600 {
		a.Gauge(name("g", "i", fmt.Sprint(i)), ago(2*time.Second), 1)
		a.Gauge(name("g", "i", fmt.Sprint(i)), ago(time.Second), 1)
	}
	commit(t, a)
	if _, err := s.Instant(t.Context(), "g[1m]", now); err == nil || !strings.Contains(err.Error(), "too many samples") {
		t.Errorf("%v", err)
	}
	if _, err := s.Raw(t.Context(), "g", now.Add(-time.Minute), now); err == nil || !strings.Contains(err.Error(), "too many samples") {
		t.Errorf("%v", err)
	}
	slow := "count_values(\"x\", rand" // not PromQL
	if _, err := s.Instant(t.Context(), slow, now); err == nil {
		t.Error("an invalid expression was evaluated")
	}
	_, err := s.Range(t.Context(), "sum_over_time((vector(1))[1y:1s])", now.Add(-time.Hour), now, time.Second)
	if err == nil {
		t.Error("a year at one-second steps was answered within the timeout")
	}
	if n := s.Refusals().Count(QueryLimit) + s.Refusals().Count(QueryTimeout); n < 3 {
		t.Errorf("%d refusals are counted", n)
	}
	if got, err := s.Instant(t.Context(), "count(g)", now); err != nil || len(got) != 1 {
		t.Errorf("afterwards: %v %v", got, err)
	}
}

// Catches a store that stays locked after Close because a child process that is being started
// still has the lock file open.
func TestLockOfForkedChild(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	child, err := syscall.Dup(int(s.lock.Fd())) // shares the lock, as a child after fork
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(child)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openTest(t, dir, Options{})
}
