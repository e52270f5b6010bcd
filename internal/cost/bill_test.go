package cost

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost/worldtest"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

var noon = time.Date(2026, 10, 14, 12, 0, 0, 0, time.UTC)

func mustParse(t *testing.T, text string) Prices {
	t.Helper()
	p, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustBill(t *testing.T, s query.Store, p Prices, from, to time.Time) Statement {
	t.Helper()
	b, err := Bill(t.Context(), s, p, from, to, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// randomPrices returns rules by model and cluster that change at arbitrary moments and leave
// some models unpriced.
func randomPrices(t *testing.T, r *rand.Rand, begin, end time.Time) Prices {
	var b strings.Builder
	moment := func() string {
		return begin.Add(time.Duration(r.Int64N(int64(end.Sub(begin))))).Format(time.RFC3339)
	}
	b.WriteString("currency: EUR\nprices:\n")
	for i, match := range []string{`{gpu_model: "H100*", cluster: prod}`, `{model: "H1?0"}`, `{model: "*A100*"}`, `{model: "MI*"}`} {
		if i > 0 && r.IntN(4) == 0 {
			continue
		}
		fmt.Fprintf(&b, "- match: %s\n  rates:\n  - {from: 2020-01-01, kind: on_demand, per_hour: %d.%09d}\n", match, r.IntN(9), r.IntN(1e9))
		fmt.Fprintf(&b, "  - {from: %q, kind: owned, capex: %d, years: 3}\n", moment(), 1000+r.IntN(40000))
		fmt.Fprintf(&b, "  - {from: %q, kind: spot, per_hour: 0.%03d}\n", moment(), r.IntN(1000))
	}
	fmt.Fprintf(&b, "power:\n- rates:\n  - {from: 2020-01-01, per_kwh: 0.%03d, pue: 1.%02d, co2_g_per_kwh: %d}\n  - {from: %q, per_kwh: 0.2}\n", r.IntN(1000), r.IntN(90), r.IntN(900), moment())
	return mustParse(t, b.String())
}

// byLabels sums the rows that are not empty, by label set.
func byLabels(into map[string]Amounts, s Statement) map[string]Amounts {
	for _, r := range s.Rows {
		key := fmt.Sprint(r.Labels)
		if into[key] = into[key].Add(r.Amounts); into[key] == (Amounts{}) {
			delete(into, key)
		}
	}
	return into
}

// Catches money created or lost by the way a period is divided. Over random fleets, prices,
// restarts, lost state, late samples and changing owners, a day equals the sum of its hours to
// the last millionth, and the parts of a bill equal the bill.
func TestBillAddsUp(t *testing.T) {
	t.Parallel()
	seeds := 8
	if testing.Short() {
		seeds = 2
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			begin, length := noon, 6+r.IntN(20)
			if testing.Short() {
				begin, length = noon.Add(8*time.Hour), 6+r.IntN(4) // over midnight
			}
			f := worldtest.New(seed, begin, time.Duration(length)*time.Hour, false).Run()
			p := randomPrices(t, r, f.Begin, f.End)
			from, to := f.Begin.Add(time.Duration(r.IntN(3600))*time.Second), f.End.Add(-time.Duration(r.IntN(3600))*time.Second)
			addsUp(t, f.Store.Late(r), p, r, from, to) // some samples have not arrived yet
			addsUp(t, f.Store, p, r, from, to)
		})
	}
}

// addsUp compares the bill of a period with the bills of random parts of it.
func addsUp(t *testing.T, m *querytest.Memory, p Prices, r *rand.Rand, from, to time.Time) {
	t.Helper()
	whole := mustBill(t, m, p, from, to)
	check(t, whole)
	parts, total := map[string]Amounts{}, Amounts{}
	for at := from; at.Before(to); {
		next := at.Add(time.Hour)
		if r.IntN(3) == 0 {
			next = at.Add(time.Duration(1+r.IntN(7200_000)) * time.Millisecond)
		}
		if next.After(to) {
			next = to
		}
		b := mustBill(t, m, p, at, next)
		check(t, b)
		byLabels(parts, b)
		total = total.Add(b.Total)
		at = next
	}
	if diff := cmp.Diff(byLabels(map[string]Amounts{}, whole), parts); diff != "" {
		t.Errorf("rows of the whole and of its hours (-whole +hours):\n%s", diff)
	}
	if diff := cmp.Diff(whole.Total, total); diff != "" {
		t.Errorf("total of the whole and of its hours (-whole +hours):\n%s", diff)
	}
}

// check verifies the invariants of every bill.
func check(t *testing.T, s Statement) {
	t.Helper()
	var sum Amounts
	for _, r := range s.Rows {
		sum = sum.Add(r.Amounts)
		if r.Allocated() != r.Used+r.Idle+r.Unmeasured || r.AllocatedCost() != r.UsedCost+r.IdleCost+r.UnmeasuredCost {
			t.Errorf("allocated is not the sum of used, idle and unmeasured: %+v", r)
		}
		if kind := r.Labels["gpu_workload_kind"]; (r.Unallocated != 0) != (kind == "unallocated" && r.Time() != 0) {
			t.Errorf("%s has %d unallocated of %d", kind, r.Unallocated, r.Time())
		}
	}
	if diff := cmp.Diff(s.Total, sum); diff != "" {
		t.Errorf("rows are not the total (-total +rows):\n%s", diff)
	}
	if diff := cmp.Diff(s.Total, s.Workloads.Add(s.Unallocated).Add(s.Unattributed).Add(s.Other)); diff != "" {
		t.Errorf("workloads and the rest are not the fleet's bill (-total +parts):\n%s", diff)
	}
	for _, d := range Dimensions() {
		var sum Amounts
		for _, g := range s.By(d) {
			sum = sum.Add(g.Amounts)
		}
		if diff := cmp.Diff(s.Total, sum); diff != "" {
			t.Errorf("groups by %s are not the total (-total +groups):\n%s", d.Name, diff)
		}
	}
}

// Catches usage counted twice or omitted: without lost samples, the bill has exactly what the
// agents counted, across all changes of owners.
func TestBillIsTheTruth(t *testing.T) {
	t.Parallel()
	seeds := uint64(8)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		f := worldtest.New(seed, noon, 14*time.Hour, true).Run()
		b := mustBill(t, f.Store, Prices{}, f.Begin.Add(-time.Hour), f.End.Add(time.Hour))
		if got := b.Total.Time().Duration().Seconds(); math.Abs(got-f.Held) > 1e-3 {
			t.Errorf("seed %d: the bill has %v s, the agents counted %v s", seed, got, f.Held)
		}
		for _, r := range b.Rows {
			if r.Idle < -1 || r.Used < 0 || r.Energy < 0 { // -1 is rounding
				t.Errorf("seed %d: negative usage: %+v", seed, r)
			}
		}
		if b.Total.Unpriced != b.Total.Time() || b.Total.Priced() || b.Total.Total() != 0 {
			t.Errorf("seed %d: a cost without prices: %+v", seed, b.Total)
		}
	}
}

// one writes the counters of a job on one device.
func one(m *querytest.Memory, at time.Time, held, active float64, more ...string) {
	l := query.Labels{"gpu_uuid": "g", "gpu_model": "H100", "gpu_workload_kind": "job", "gpu_workload_name": "j", "k8s_pod_uid": "u"}
	for i := 0; i < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	for name, v := range map[string]float64{fleet.SeriesAllocatedTime: held, fleet.SeriesActiveTime: active, fleet.SeriesEnergy: held * 500} {
		s := query.Labels{"__name__": name}
		maps.Copy(s, l)
		m.Add(s, at, v)
	}
}

// Each case was once counted twice or not at all.
func TestBillOfCounters(t *testing.T) {
	t.Parallel()
	type point struct {
		minute       float64
		held, active float64
		labels       []string
	}
	blue := []string{"gpu_workload_team", "blue"}
	for name, tt := range map[string]struct {
		points     []point
		used, idle float64
		older      int
	}{
		"it begins in the period":            {[]point{{1, 10, 4, nil}, {30, 1750, 904, nil}}, 904, 846, 0},
		"it began before":                    {[]point{{-10, 400, 100, nil}, {30, 2800, 500, nil}}, 300, 1500, 0},
		"it ended long before the edge":      {[]point{{-10, 400, 100, nil}, {2, 1120, 100, nil}}, 0, 120, 0},
		"the store did not see it begin":     {[]point{{5, 90000, 50000, nil}, {30, 91500, 51000, nil}}, 1000, 500, 1},
		"its state was lost":                 {[]point{{-1, 5000, 5000, nil}, {10, 5660, 5660, nil}, {12, 60, 60, nil}, {20, 540, 540, nil}}, 1140, 0, 0},
		"it was killed and goes back":        {[]point{{-1, 5000, 5000, nil}, {10, 5660, 5660, nil}, {11, 5630, 5630, nil}, {20, 6170, 6170, nil}}, 1140, 0, 0},
		"lost just at the edge":              {[]point{{-1, 5000, 5000, nil}, {1, 30, 30, nil}, {20, 1170, 1170, nil}}, 1170, 0, 0},
		"lost, and higher than before":       {[]point{{-1, 100, 100, nil}, {1, 30, 30, nil}, {20, 1170, 1170, nil}}, 1170, 0, 0},
		"only its activity says it was lost": {[]point{{-1, 100, 100, nil}, {1, 220, 110, nil}, {12, 600, 30, nil}, {20, 1080, 200, nil}}, 205, 935, 0},
		"and that over the edge":             {[]point{{-1, 100, 100, nil}, {9, 540, 30, nil}, {20, 1200, 200, nil}}, 200, 1000, 0},
		"not seen to begin, and later lost":  {[]point{{5, 90000, 50000, nil}, {30, 91500, 51000, nil}, {40, 60, 60, nil}}, 1060, 500, 1},
		"the agent was away for two days":    {[]point{{-3000, 1800, 0, nil}, {10, 1860, 60, nil}}, 60, 0, 0},
		"away, and its state lost":           {[]point{{-3000, 1800, 0, nil}, {10, 60, 60, nil}}, 60, 0, 0},
		"another pod of the agent":           {[]point{{-1, 500, 0, []string{"pod", "a"}}, {2, 680, 0, []string{"pod", "b"}}, {20, 1760, 0, []string{"pod", "b"}}}, 0, 1200, 0},
		"scraped and pushed":                 {[]point{{-1, 500, 0, []string{"job", "a"}}, {2, 680, 0, []string{"job", "b"}}, {2.1, 670, 0, []string{"job", "a"}}, {20, 1760, 0, []string{"job", "b"}}}, 0, 1200, 0},
		"the cluster's name comes later":     {[]point{{-1, 500, 0, nil}, {2, 680, 0, []string{"k8s_cluster_name", "c"}}, {20, 1760, 0, []string{"k8s_cluster_name", "c"}}}, 0, 1200, 0},
		"its team is edited":                 {[]point{{-1, 500, 0, nil}, {2, 680, 0, nil}, {3, 0, 0, blue}, {3, 740, 0, nil}, {5, 120, 0, blue}, {5, 740, 0, nil}, {20, 1020, 0, blue}}, 0, 1200, 0},
		"edited between two scrapes":         {[]point{{1, 0, 0, nil}, {2, 60, 0, nil}, {3, 90, 0, nil}, {3, 30, 0, blue}, {20, 1050, 0, blue}}, 0, 1140, 0},
		"edited there and back":              {[]point{{-1, 500, 0, nil}, {2, 680, 0, nil}, {2, 0, 0, blue}, {4, 680, 0, nil}, {4, 120, 0, blue}, {6, 800, 0, nil}, {6, 120, 0, blue}}, 0, 360, 0},
		"edited before the period":           {[]point{{-4, 500, 0, nil}, {-3, 30, 0, blue}, {-3, 530, 0, nil}, {1, 530, 0, nil}, {1, 270, 0, blue}, {20, 1410, 0, blue}}, 0, 1200, 0},
		"edited while the agent was killed":  {[]point{{-1, 500, 0, nil}, {5, 860, 0, nil}, {7, 60, 0, blue}, {20, 840, 0, blue}}, 0, 300 + 840, 0},
		"a label is added on the way":        {[]point{{-1, 500, 0, nil}, {2, 680, 0, nil}, {3, 740, 0, blue}, {20, 1760, 0, blue}}, 0, 1200, 0},
		"added, and the store adds zeros":    {[]point{{-1, 500, 0, nil}, {-1, 0, 0, blue}, {2, 680, 0, nil}, {3, 740, 0, blue}, {20, 1760, 0, blue}}, 0, 1200, 0},
		"active beyond held by rounding":     {[]point{{1, 60, 60.0000004, nil}, {2, 120, 120.0000006, nil}}, 120, 0, 0},
		"values that no counter has":         {[]point{{1, 60, 60, nil}, {2, -5, 0, []string{"k8s_pod_uid", "bad"}}, {3, 1e300, 0, []string{"k8s_pod_uid", "worse"}}}, 60, 0, 0},
		"nothing happened in it":             {[]point{{-30, 60, 60, nil}}, 0, 0, 0},
		"it begins after the period":         {[]point{{61, 60, 60, nil}}, 0, 0, 0},
		"first seen after it, and lost then": {[]point{{60.5, 120, 0, nil}, {61, 0, 0, nil}}, 0, 90, 0},
		"known before, lost, and seen after": {[]point{{-30, 5000, 0, nil}, {-29, 5060, 0, nil}, {61, 100, 0, nil}, {62, 160, 0, nil}}, 0, 40, 0},
		"read more often than it changes":    {[]point{{58, 0, 0, nil}, {59.9, 0, 0, nil}, {60.1, 0, 0, nil}, {61, 150, 0, nil}}, 0, 90, 0},
		"a sample just at both edges counts": {[]point{{0, 60, 60, nil}, {60, 100, 100, nil}}, 40, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := querytest.NewMemory()
			for _, p := range tt.points {
				one(m, noon.Add(time.Duration(p.minute*float64(time.Minute))), p.held, p.active, p.labels...)
			}
			b := mustBill(t, m, Prices{}, noon, noon.Add(time.Hour))
			got := []float64{b.Total.Used.Duration().Seconds(), b.Total.Idle.Duration().Seconds(), float64(b.Missing.Unseen.Accounts)}
			if diff := cmp.Diff([]float64{tt.used, tt.idle, float64(tt.older)}, got); diff != "" {
				t.Errorf("used, idle, older (-want +got):\n%s", diff)
			}
		})
	}
}

// Catches a period with more device time than fits in it: a counter at its start was taken from
// the last sample before, up to one sampling interval early. A store with a sample every four
// minutes billed 24 h 4 min a day.
func TestBillFitsThePeriod(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := -60; i < 60; i++ {
		one(m, noon.Add(time.Duration(i*4)*time.Minute), float64(i+60)*240, float64(i+60)*120)
	}
	to := noon.Add(time.Hour) // at a sample, as the end of a live period nearly is
	for _, late := range []time.Duration{0, time.Second, 90 * time.Second, 239 * time.Second, 4 * time.Minute} {
		b := mustBill(t, m, Prices{}, noon.Add(late), to)
		half := Seconds((time.Hour - late).Microseconds() / 2)
		if diff := cmp.Diff([]Seconds{half, half}, []Seconds{b.Total.Used, b.Total.Idle}); diff != "" {
			t.Errorf("an hour less %s, used and idle (-want +got):\n%s", late, diff)
		}
	}
}

// Catches a price change applied to usage before it, and energy billed at the price of capacity.
func TestBillOfPrices(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := range 241 {
		one(m, noon.Add(time.Duration(i-120)*time.Minute), float64(i)*60, float64(i)*30)
	}
	p := mustParse(t, `
currency: EUR
prices:
- match: {gpu.model: "H1*"}
  rates:
  - {from: 2026-10-14T12:00:00Z, kind: owned, capex: 35064, years: 4}
  - {from: 2026-01-01, kind: on_demand, per_hour: 3.50}
power:
- rates: [{from: 2026-01-01, per_kwh: 0.10, pue: 1.5, co2_g_per_kwh: 400}]
`)
	b := mustBill(t, m, p, noon.Add(-2*time.Hour), noon.Add(2*time.Hour))
	want := Amounts{
		Used: 2 * 3600e6, Idle: 2 * 3600e6, Energy: 4 * 3600 * 500e3, Carbon: 2 * 600e3,
		UsedCost: 3.5e6 + 1e6, IdleCost: 3.5e6 + 1e6, EnergyCost: 0.15e6,
	}
	if diff := cmp.Diff(want, b.Total); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if b.Currency != "EUR" || b.Total.Total().String() != "9.15" {
		t.Errorf("%s %s", b.Total.Total(), b.Currency)
	}
}

// Catches a bill that reads every sample: raw samples are needed around the edges, and for
// counters with a reset or a gap.
func TestBillReadsEdges(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := range 60 * 30 {
		for g := range 4 {
			one(m, noon.Add(time.Duration(i)*time.Minute), float64(i*60), float64(i*30), "gpu_uuid", fmt.Sprint(g))
		}
	}
	c := &countRaw{Memory: m}
	from, to := noon, noon.Add(30*time.Hour)
	b, err := Bill(t.Context(), c, Prices{}, from, to, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := b.Total.Allocated(), Seconds(4*(60*30-1)*60e6); got != want { // up to the last sample
		t.Errorf("%d us, want %d", got, want)
	}
	if c.raw != 15*time.Minute*4*4 || m.Asked() > 80 { // four counters at both ends and two midnights
		t.Errorf("raw samples of %s were read, in %d queries", c.raw, m.Asked())
	}
}

type countRaw struct {
	*querytest.Memory
	raw time.Duration
}

func (c *countRaw) Raw(ctx context.Context, s string, from, to time.Time) ([]query.Series, error) {
	c.raw += to.Sub(from)
	return c.Memory.Raw(ctx, s, from, to)
}

// Catches workloads of two clusters in one group because they have the same name, and groups by
// several keys that do not add up.
func TestBy(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i, l := range [][]string{
		{"k8s_cluster_name", "east", "gpu_workload_team", "a"},
		{"k8s_cluster_name", "west", "gpu_workload_team", "a"},
		{"k8s_cluster_name", "west", "gpu_workload_name", "k", "gpu_workload_team", "b"},
	} {
		uuid := []string{"gpu_uuid", fmt.Sprint(i), "k8s_pod_uid", fmt.Sprint(i)}
		one(m, noon, 0, 0, append(uuid, l...)...)
		one(m, noon.Add(time.Minute), float64(60*(i+1)), 0, append(uuid, l...)...)
	}
	s := mustBill(t, m, Prices{}, noon.Add(-time.Second), noon.Add(time.Minute))
	f := func(want [][]string, names ...string) {
		t.Helper()
		var dims []Dimension
		for _, name := range names {
			d, _ := DimensionOf(name)
			dims = append(dims, d)
		}
		var got [][]string
		for _, g := range s.By(dims...) {
			got = append(got, append(g.Keys, g.Time().Duration().String(), fmt.Sprint(g.Workloads)))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", names, diff)
		}
	}
	f([][]string{{"k", "3m0s", "1"}, {"j @west", "2m0s", "1"}, {"j @east", "1m0s", "1"}}, "workload")
	f([][]string{{"k", "west", "3m0s", "1"}, {"j", "west", "2m0s", "1"}, {"j", "east", "1m0s", "1"}}, "workload", "cluster")
	f([][]string{{"a", "H100", "3m0s", "2"}, {"b", "H100", "3m0s", "1"}}, "team", "model")
	if devices, workloads := s.Counts(); devices != 3 || workloads != 3 {
		t.Errorf("%d devices, %d workloads", devices, workloads)
	}
}

// Catches a bill that does not report that the store's data begins within the period.
func TestBillSaysSince(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	one(m, noon.Add(3*time.Hour), 10, 10)
	b := mustBill(t, m, Prices{}, noon, noon.Add(6*time.Hour))
	if d := b.Since.Sub(noon); d < 2*time.Hour || d > 4*time.Hour {
		t.Errorf("Since is %v", b.Since)
	}
	for i := range 60 { // the agent was away for hours
		one(m, noon.Add(-3*time.Hour+time.Duration(i)*time.Minute), float64(i), 0)
	}
	if b := mustBill(t, m, Prices{}, noon, noon.Add(6*time.Hour)); !b.Since.IsZero() {
		t.Errorf("Since is %v, but there is older data", b.Since)
	}
	if _, err := Bill(t.Context(), m, Prices{}, noon, noon, Options{}); err == nil {
		t.Error("an empty period has a bill")
	}
}
