package cost

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/cost/worldtest"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// keeper is a store that keeps all hours but the last.
type keeper struct {
	query.Store
	hours *fleet.Hours
	until time.Time
}

func (k keeper) Usage(ctx context.Context, midnight, at time.Time) (*fleet.Day, error) {
	out := &fleet.Day{}
	if !midnight.Before(at) {
		return out, nil
	}
	used, err := k.hours.Between(ctx, nil, midnight, []time.Time{at})
	if err != nil {
		return nil, err
	}
	used.AddTo(out)
	out.Sort()
	if out.Kept = k.until; at.Before(k.until) {
		out.Kept = at.Truncate(time.Hour)
	}
	return out, nil
}

// explainedPrices change often, and differ by team.
func explainedPrices(t *testing.T, r *rand.Rand, begin, end time.Time) Prices {
	var b strings.Builder
	moment := func() string {
		return begin.Add(time.Duration(r.Int64N(int64(end.Sub(begin))))).Format(time.RFC3339Nano)
	}
	b.WriteString("currency: EUR\nexchange:\n  USD:\n  - {from: 2020-01-01, rate: 0.9}\n")
	fmt.Fprintf(&b, "  - {from: %q, rate: 0.95}\nprices:\n", moment())
	for _, match := range []string{`{team: "team-a-*"}`, `{model: "H*"}`, `{model: "*0*"}`} {
		fmt.Fprintf(&b, "- match: %s\n  rates:\n  - {from: 2020-01-01, kind: on_demand, per_hour: %d.%09d, currency: USD}\n", match, r.IntN(9), r.IntN(1e9))
		fmt.Fprintf(&b, "  - {from: %q, kind: owned, capex: %d, years: 3}\n", moment(), 1000+r.IntN(40000))
		fmt.Fprintf(&b, "  - {from: %q, kind: spot, per_hour: 0.%03d}\n", moment(), r.IntN(1000))
	}
	fmt.Fprintf(&b, "power:\n- rates:\n  - {from: 2020-01-01, per_kwh: 0.%03d, pue: 1.%02d, co2_g_per_kwh: %d}\n  - {from: %q, per_kwh: 0.2}\n", r.IntN(1000), r.IntN(90), r.IntN(900), moment())
	return mustParse(t, b.String())
}

// Catches an explanation that does not explain the number: over random fleets, hostile ones too,
// with price changes and periods that start and end within an hour, from kept usage and from a store
// without any, the lines of a row add up to the row of the report, to the last digit of every amount,
// by the hour and merged.
func TestExplainAddsUp(t *testing.T) {
	t.Parallel()
	seeds := uint64(20)
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 4))
			f := worldtest.New(seed, noon.Add(9*time.Hour+30*time.Minute), time.Duration(170+r.IntN(60))*time.Minute, false) // over midnight
			if seed%2 == 1 {
				f.Hostile()
			}
			f.Run()
			var store query.Store = f.Store
			if seed%4 > 1 {
				store = keeper{f.Store, fleet.NewHours(f.Store), f.End.Truncate(time.Hour)}
			}
			p := explainedPrices(t, r, f.Begin, f.End)
			from, to := f.Begin.Add(time.Duration(r.IntN(3000_000))*time.Millisecond), f.End.Add(-time.Duration(r.IntN(3000_000))*time.Millisecond)
			bill := mustBill(t, store, p, from, to)
			for _, names := range []string{"team", "model", "workload,model"} {
				var by []Dimension
				for name := range strings.SplitSeq(names, ",") {
					d, _ := DimensionOf(name)
					by = append(by, d)
				}
				groups := bill.By(by...)
				explains(t, store, p, &bill, &groups[r.IntN(len(groups))], by, r.IntN(2) == 0)
			}
		})
	}
}

// explains compares the lines of an explanation with a row of a report.
func explains(t *testing.T, store query.Store, p Prices, bill *Statement, g *Group, by []Dimension, hourly bool) {
	t.Helper()
	e, err := Explain(t.Context(), store, p, bill, ExplainOptions{By: by, Row: g.Keys, Hourly: hourly})
	if err != nil {
		t.Fatal(err)
	}
	var sum Amounts
	for i := range e.Holders {
		h := &e.Holders[i]
		var of Amounts
		last := bill.From
		for j := range h.Lines {
			l := &h.Lines[j]
			of = of.Add(l.Amounts)
			if l.From.Before(last) || !l.From.Before(l.To) || l.To.After(bill.To) || hourly && l.To.Sub(l.From.Truncate(time.Hour)) > time.Hour {
				t.Errorf("%s: a line from %s to %s", g.Name, l.From, l.To)
			}
			last = l.To
			price, priced := p.At(h.Labels, l.From)
			if priced != (l.Price > 0) || priced && e.Prices[l.Price-1].PerHour != price.PerHour || l.PerHour != price.PerHour || l.Cost != l.Total() {
				t.Errorf("%s: a line at %d costs %s, the price is %d", g.Name, l.PerHour, l.Cost, price.PerHour)
			}
			if want := price.PerHour.Capacity(l.Time()) - l.Capacity(); want < -5 || want > 5 { // used, idle and the rest are rounded one by one
				t.Errorf("%s: %s at %d cost %s", g.Name, l.Time().Duration(), price.PerHour, l.Capacity())
			}
		}
		if diff := cmp.Diff(h.Sum, of); diff != "" {
			t.Errorf("%s: a holder and its lines (-holder +lines):\n%s", g.Name, diff)
		}
		sum = sum.Add(of)
	}
	if diff := cmp.Diff(g.Amounts, sum); diff != "" {
		t.Errorf("%s: the row of the report and its lines (-row +lines):\n%s", g.Name, diff)
	}
	if diff := cmp.Diff(g.Amounts, e.Sum); diff != "" {
		t.Errorf("%s: the row of the report and the sum (-row +sum):\n%s", g.Name, diff)
	}
}

// Catches an explanation without the samples, the entry of the price file, the price change or the
// omissions that made the number.
func TestExplain(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := range 241 { // two hours before noon to two hours after it
		one(m, noon.Add(time.Duration(i-120)*time.Minute), float64(i)*60, float64(i)*30, "host_name", "n1", "gpu_workload_team", "red")
	}
	one(m, noon.Add(20*time.Minute), 7200, 0, "host_name", "n1", "gpu_uuid", "late", "gpu_workload_team", "red", "k8s_pod_uid", "v") // the store did not see it begin
	one(m, noon.Add(21*time.Minute), -1, 0, "host_name", "n1", "gpu_uuid", "late", "gpu_workload_team", "red", "k8s_pod_uid", "v")
	one(m, noon.Add(22*time.Minute), 7320, 0, "host_name", "n1", "gpu_uuid", "late", "gpu_workload_team", "red", "k8s_pod_uid", "v")
	p := mustParse(t, `
currency: EUR
exchange: {USD: [{from: 2026-01-01, rate: 0.875}]}
prices:
- match: {team: blue}
  rates: [{from: 2026-01-01, kind: spot, per_hour: 1}]
- match: {model: "H1*", team: red}
  rates:
  - {from: 2026-10-14T12:30:00Z, kind: owned, capex: 35064, years: 4} # ours
  - from: 2026-01-01
    kind: on_demand
    currency: USD
    per_hour: 4
power:
- rates: [{from: 2026-01-01, per_kwh: 0.2, pue: 1.5, co2_g_per_kwh: 300}]
`)
	bill := mustBill(t, m, p, noon.Add(-30*time.Second), noon.Add(time.Hour))
	team, _ := DimensionOf("team")
	g, err := bill.Find("red", team)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Explain(t.Context(), m, p, &bill, ExplainOptions{By: []Dimension{team}, Row: g.Keys})
	if err != nil {
		t.Fatal(err)
	}
	day := func(month time.Month) time.Time { return time.Date(2026, month, 1, 0, 0, 0, 0, time.UTC) }
	half := noon.Add(30 * time.Minute)
	at := func(minute int, held float64) *Reading {
		active, energy := held/2, held*500
		return &Reading{noon.Add(time.Duration(minute) * time.Minute), held, &active, &energy}
	}
	zero := 0.0
	joules := func(r *Reading) *Reading { r.Active = &zero; return r }
	labels := func(uuid, pod string) query.Labels {
		return query.Labels{"gpu_uuid": uuid, "gpu_model": "H100", "gpu_workload_kind": "job", "gpu_workload_name": "j", "k8s_pod_uid": pod, "host_name": "n1", "gpu_workload_team": "red"}
	}
	before := Amounts{Used: 915e6, Idle: 915e6, Energy: 915e6, Carbon: 114_375, UsedCost: 889_584, IdleCost: 889_584}
	after := Amounts{Used: 900e6, Idle: 900e6, Energy: 900e6, Carbon: 112_500, UsedCost: 250_000, IdleCost: 250_000, EnergyCost: 75_000}
	late := Amounts{Idle: 120e6, Energy: 60e6, Carbon: 7_500, IdleCost: 116_666}
	want := &Explanation{
		Row: []string{"red"}, From: bill.From, To: bill.To, Currency: "EUR",
		Holders: []Holder{
			{
				Node: "n1", Device: "g", Model: "H100", Name: "j", Team: "red", Identity: "pod u", Labels: labels("g", "u"), Sum: before.Add(after),
				Lines: []Line{
					{
						From: bill.From, To: half, Source: FromSamples, Price: 1, Power: 1, PerHour: 3_500_000_000, Amounts: before, Cost: before.Total(),
						Start: Edge{at(-1, 7140), at(0, 7200), 1}, End: Edge{at(30, 9000), at(31, 9060), 1},
					},
					{
						From: half, To: bill.To, Source: FromSamples, Price: 2, Power: 1, PerHour: 1_000_000_000, PerKWh: 300_000_000, Amounts: after, Cost: after.Total(),
						Start: Edge{at(30, 9000), at(31, 9060), 1}, End: Edge{at(60, 10800), at(61, 10860), 1},
					},
				},
			},
			{
				Node: "n1", Device: "late", Model: "H100", Name: "j", Team: "red", Identity: "pod v", Labels: labels("late", "v"), Sum: late,
				Lines: []Line{{
					From: noon, To: half, Source: FromSamples, Price: 1, Power: 1, PerHour: 3_500_000_000, Amounts: late, Cost: late.Total(),
					Start: Edge{nil, joules(at(20, 7200)), 1}, End: Edge{joules(at(22, 7320)), nil, 1},
				}},
			},
		},
		Prices: []Entry{
			{
				Number: 1, Where: "prices[1].rates[1]", Line: 10, Match: map[string]string{"model": "H1*", "team": "red"}, Text: "{from: 2026-01-01, kind: on_demand, currency: USD, per_hour: 4}",
				From: day(1), To: half, Kind: OnDemand, PerHour: 3_500_000_000, Exchange: "0.875",
			},
			{
				Number: 2, Where: "prices[1].rates[0]", Line: 9, Match: map[string]string{"model": "H1*", "team": "red"}, Text: "{from: '2026-10-14T12:30:00Z', kind: owned, capex: 35064, years: 4}",
				From: half, Kind: Owned, PerHour: 1_000_000_000,
			},
		},
		Power: []Entry{{
			Number: 1, Where: "power[0].rates[0]", Line: 15, Match: map[string]string{}, Text: "{from: 2026-01-01, per_kwh: 0.2, pue: 1.5, co2_g_per_kwh: 300}",
			From: day(1), PerKWh: 300_000_000, Milligrams: 450_000,
		}},
		Changes:    []Change{{half, false, 1, 2}},
		NotCounted: NotCounted{Twice: map[string]Seconds{}, Unseen: map[string]fleet.Unseen{"late": {Accounts: 1, Held: 7200e6}}, Refused: 2},
		Sum:        before.Add(after).Add(late),
	}
	if diff := cmp.Diff(want, e, cmpopts.IgnoreUnexported(Holder{}, Line{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(g.Amounts, e.Sum); diff != "" {
		t.Errorf("(-row +sum):\n%s", diff)
	}
}

// Catches a device with two senders whose time that counted once is not said, and time of another
// period that is: two machines that claim one device, or two agents on one machine that count for the
// same workload.
func TestExplainTwice(t *testing.T) {
	t.Parallel()
	model, _ := DimensionOf("model")
	for _, agents := range []map[string][]string{
		{"a": {"host_name", "a", "k8s_pod_uid", "of-a"}, "b": {"host_name", "b", "k8s_pod_uid", "of-b"}},
		{"a": {"instance", "a", "k8s_pod_uid", "p"}, "b": {"instance", "b", "k8s_pod_uid", "p"}},
	} {
		m := querytest.NewMemory()
		for i := range 181 {
			for agent, begin := range map[string]int{"a": 0, "b": 120} { // the second agent comes in the third hour
				if i >= begin {
					one(m, noon.Add(time.Duration(i)*time.Minute), float64(i-begin)*60, 0, agents[agent]...)
				}
			}
		}
		for _, store := range []query.Store{m, keeper{m, fleet.NewHours(m), noon.Add(2 * time.Hour)}} {
			for hours, want := range map[int]map[string]Seconds{2: {}, 3: {"g": 3600e6}} {
				from := noon.Add(time.Duration(hours-1) * time.Hour)
				bill := mustBill(t, store, Prices{}, from, from.Add(time.Hour))
				e, err := Explain(t.Context(), store, Prices{}, &bill, ExplainOptions{By: []Dimension{model}, Row: []string{"H100"}})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, e.NotCounted.Twice); diff != "" {
					t.Errorf("%v, hour %d of %T (-want +got):\n%s", agents, hours, store, diff)
				}
				if diff := cmp.Diff(bill.Total, e.Sum); diff != "" {
					t.Errorf("%v, hour %d of %T (-bill +sum):\n%s", agents, hours, store, diff)
				}
			}
		}
	}
}

// Catches a line of kept usage that claims samples which are gone, and one of the open hour that
// claims to be kept.
func TestExplainSources(t *testing.T) {
	t.Parallel()
	m, open := querytest.NewMemory(), querytest.NewMemory()
	for i := range 181 {
		at := noon.Add(time.Duration(i) * time.Minute)
		if one(m, at, float64(i)*60, 0); i > 100 {
			one(open, at, float64(i)*60, 0)
		}
	}
	store := keeper{open, fleet.NewHours(m), noon.Add(2 * time.Hour)}
	bill := mustBill(t, store, Prices{}, noon, noon.Add(150*time.Minute))
	model, _ := DimensionOf("model")
	e, err := Explain(t.Context(), store, Prices{}, &bill, ExplainOptions{By: []Dimension{model}, Row: []string{"H100"}, Hourly: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range e.Holders[0].Lines {
		got = append(got, fmt.Sprintf("%s %s gone=%v", l.From.Format("15:04"), l.Source, l.Gone()))
	}
	if diff := cmp.Diff([]string{"12:00 kept gone=true", "13:00 kept gone=false", "14:00 samples gone=false"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// crowd is a store that has kept the usage of many devices, each held all the time.
type crowd int

func (c crowd) Usage(_ context.Context, midnight, at time.Time) (*fleet.Day, error) {
	out := &fleet.Day{Kept: at, Known: true}
	for i := range int(c) {
		l := query.Labels{"gpu_uuid": fmt.Sprint("g", i), "gpu_model": "H100", "gpu_workload_kind": "job"}
		out.Add(fleet.DayRow{Key: fleet.KeyOf(l), Labels: l, Sums: fleet.Sums{Held: Seconds(at.Sub(midnight).Microseconds())}})
	}
	return out, nil
}

func (crowd) Instant(context.Context, string, time.Time) ([]query.Sample, error) { return nil, nil }

func (crowd) Range(context.Context, string, time.Time, time.Time, time.Duration) ([]query.Series, error) {
	return nil, nil
}

func (crowd) Raw(context.Context, string, time.Time, time.Time) ([]query.Series, error) {
	return nil, nil
}

// Catches an explanation that fills the memory, and one that is refused although its merged lines are
// few.
func TestExplainIsBounded(t *testing.T) {
	t.Parallel()
	store, model := crowd(2500), []Dimension{{}}
	model[0], _ = DimensionOf("model")
	bill := mustBill(t, store, Prices{}, noon, noon.Add(41*time.Hour))
	for hourly, want := range map[bool]string{true: "choose a shorter period", false: ""} {
		e, err := Explain(t.Context(), store, Prices{}, &bill, ExplainOptions{By: model, Row: []string{"H100"}, Hourly: hourly})
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("by the hour: %v", err)
			}
			continue
		}
		if err != nil || len(e.Holders) != 2500 || len(e.Holders[0].Lines) != 1 {
			t.Errorf("merged: %v", err)
		}
	}
}

// Catches a misspelled row that is not told from an empty one, and rows that cannot be named.
func TestFind(t *testing.T) {
	t.Parallel()
	row := func(team, model string) Row {
		return Row{Labels: query.Labels{"gpu_workload_kind": "job", "gpu_workload_team": team, "gpu_model": model}, Amounts: Amounts{Used: 1}}
	}
	s := Statement{Rows: []Row{row("red", "H100"), row("blue", "H100"), row("blue", "A100"), row("a,b", "c"), row("a", "b,c"), row("far away and long", "x")}}
	team, _ := DimensionOf("team")
	model, _ := DimensionOf("model")
	for name, tt := range map[string]struct {
		row  string
		by   []Dimension
		want string
	}{
		"one":        {"red", []Dimension{team}, "red"},
		"two":        {"blue,A100", []Dimension{team, model}, "blue / A100"},
		"a comma":    {"a,b", []Dimension{team}, "a,b"},
		"ambiguous":  {"a,b,c", []Dimension{team, model}, `2 rows are "a,b,c"`},
		"misspelled": {"Rad", []Dimension{team}, `no row is "Rad": the closest are "red", "a", "a,b", "blue", "far away and long"`},
		"half":       {"blue", []Dimension{team, model}, `no row is "blue": the closest are "a,b,c", "a,b,c", "blue,A100", "blue,H100", "red,H100"`},
	} {
		g, err := s.Find(tt.row, tt.by...)
		got := g.Name
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
