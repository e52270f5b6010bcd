package tokens

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// days is a store of three days, with a sample every four minutes.
type days struct {
	*querytest.Memory
	begin time.Time
}

func newDays() days {
	return days{querytest.NewMemory(), time.Date(2026, 11, 14, 0, 0, 0, 0, time.UTC)}
}

// add adds a series between two hours. It begins with value(0).
func (d days) add(name string, from, to float64, value func(hours float64) float64, labels ...map[string]string) {
	l := query.Labels{fleet.LabelName: name}
	for _, more := range labels {
		maps.Copy(l, more)
	}
	into := d.Into(l)
	for at := d.at(from); !at.After(d.at(to)); at = at.Add(4 * time.Minute) {
		into(at, value(at.Sub(d.at(from)).Hours()))
	}
}

func (d days) at(hours float64) time.Time {
	return d.begin.Add(time.Duration(hours * float64(time.Hour)).Round(time.Second))
}

// holds lets a workload hold a device of a machine, and use it for half of the time.
func (d days) holds(workload, host, uuid string, from, to float64) {
	l := map[string]string{fleet.LabelHost: host, fleet.LabelUUID: uuid, fleet.LabelModel: "H100"}
	for name, perHour := range map[string]float64{fleet.SeriesAllocatedTime: 3600, fleet.SeriesActiveTime: 1800, fleet.SeriesEnergy: 3600 * 300} {
		d.add(name, from, to, func(hours float64) float64 { return perHour * hours }, served(workload), l)
	}
}

// runs lets an engine work on a device, and compute output.
func (d days) runs(engine, workload, host, model, uuid string, from, to float64, out func(hours float64) float64) {
	l := map[string]string{fleet.LabelHost: host, fleet.LabelEngine: engine, fleet.LabelProvider: "vllm", fleet.LabelServedModel: model}
	d.add(fleet.SeriesEngineDevice, from, to, func(float64) float64 { return 1 }, served(workload), l, map[string]string{fleet.LabelUUID: uuid, fleet.LabelModel: "H100"})
	d.add(fleet.SeriesTokensOut, from, to, out, served(workload), l)
}

func hourly(n float64) func(float64) float64 {
	return func(hours float64) float64 { return n * hours }
}

// read returns what was served between two hours.
func (d days) read(t *testing.T, r *Reader, from, to float64) *Bill {
	t.Helper()
	b, err := r.Read(t.Context(), d.at(from), d.at(to), d.at(200))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sharedDays is a store with each way in which engines begin, end, and share GPUs.
func sharedDays() days {
	d := newDays()
	// A notebook trains for 71 hours on its GPU, and serves for the last one.
	d.holds("notebook", "n1", "GPU-1", 0.1, 73)
	d.runs("e1", "notebook", "n1", "tuned", "GPU-1", 71.2, 73, hourly(1000))
	// An engine serves one model until the middle of the second day, then another one that hardly anybody asks.
	d.holds("swap", "n1", "GPU-2", 0.1, 73)
	d.runs("e2", "swap", "n1", "old", "GPU-2", 0.2, 36.5, hourly(1e6))
	d.runs("e2", "swap", "n1", "new", "GPU-2", 36.7, 73, hourly(10))
	// An engine spans two machines. The agent of the second one sees processes on its GPU, and no engine.
	d.holds("span", "n1", "GPU-3", 0.1, 73)
	d.holds("span", "n2", "GPU-4", 0.1, 73)
	d.holds("span", "n1", "GPU-9", 0.1, 73) // it has another GPU on the first one, which is not the engine's
	d.runs("e3", "span", "n1", "deepseek", "GPU-3", 0.2, 73, hourly(1000))
	// Two models of a workload share a GPU. One of them has ever more to do. The GPU on the other machine is nobody's.
	d.holds("pair", "n1", "GPU-5", 0.1, 73)
	d.holds("pair", "n2", "GPU-6", 0.1, 73)
	d.runs("e5", "pair", "n1", "large", "GPU-5", 0.2, 73, hourly(1000))
	d.runs("e6", "pair", "n1", "small", "GPU-5", 0.3, 73, func(hours float64) float64 { return 20 * hours * hours })
	// A workload without an engine.
	d.holds("train", "n2", "GPU-7", 0.1, 73)
	return d
}

// hoursOf returns the device hours of groups.
func hoursOf(groups []Group) map[string]string {
	out := map[string]string{}
	for i := range groups {
		out[groups[i].Name] = fmt.Sprintf("%.2f", groups[i].Time().Hours())
	}
	return out
}

// Catches a model that pays for hours in which it did not run, and half an engine that is free because it runs on a
// machine that serves no metrics.
func TestHoursOfModels(t *testing.T) {
	t.Parallel()
	d := sharedDays()
	r := reader(t, d, fourAnHour)
	b := d.read(t, r, 0, 72)
	got := hoursOf(b.By(servingDimension("model")))
	delete(got, "large")
	delete(got, "small")
	// In hour 36 one model ended and the other began: they divide it by the tokens of an hour.
	want := map[string]string{"tuned": "1.00", "old": "36.90", "new": "35.00", "deepseek": "143.80"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// On the first two days the notebook had no engine, so it is a workload like train.
	want = map[string]string{"notebook (no engine)": "23.00", "pair (no engine)": "71.90", "span (no engine)": "71.90"}
	if diff := cmp.Diff(want, hoursOf(b.RestBy(servingDimension("workload")))); diff != "" {
		t.Errorf("without an engine (-want +got):\n%s", diff)
	}
	if got := hoursOf(b.RestBy(servingDimension("engine"))); len(got) != 1 || got[NoEngine] != "166.80" || fmt.Sprintf("%.2f", b.Remote.Hours()) != "71.90" {
		t.Errorf("%v, %.2f hours on other machines", got, b.Remote.Hours())
	}
}

// Catches days that do not add up to their month, model by model, and models that with what had no engine do not add up
// to the bill, also if a price begins in between.
func TestDaysAddUp(t *testing.T) {
	t.Parallel()
	d := sharedDays()
	prices := "currency: EUR\nprices: [{rates: [{from: 2026-01-01, kind: on_demand, per_hour: 4.01}, {from: '2026-11-15T07:20:00Z', kind: on_demand, per_hour: 3.07}]}]\n"
	r := reader(t, d, prices)
	whole := d.read(t, r, 0, 72)
	type sum struct {
		cost.Amounts
		serving.Tokens
	}
	sumOf := func(list ...*Bill) map[string]sum {
		out := map[string]sum{}
		for _, b := range list {
			for _, rows := range [][]Row{b.Rows, b.Rest} {
				for _, x := range rows {
					key := x.key.owner + " " + x.key.model + x.key.device
					out[key] = sum{out[key].Add(x.Amounts), out[key].Plus(x.Tokens)}
				}
			}
		}
		return out
	}
	fresh := reader(t, d, prices) // keeps nothing yet
	if diff := cmp.Diff(sumOf(whole), sumOf(d.read(t, fresh, 48, 72), d.read(t, fresh, 0, 24), d.read(t, fresh, 24, 48))); diff != "" {
		t.Errorf("(-whole +days):\n%s", diff)
	}
	bill, err := cost.Bill(t.Context(), d, parsed(t, prices), d.at(0), d.at(72), cost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	total, rest := whole.Total(), whole.RestTotal()
	got, want := total.Add(rest.Amounts), cost.Amounts{}
	for _, row := range bill.Rows {
		if w := row.Labels[fleet.LabelWorkload]; w != "train" && w != "notebook" {
			want = want.Add(row.Amounts)
		}
	}
	last, err := cost.Bill(t.Context(), d, parsed(t, prices), d.at(48), d.at(72), cost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range last.Rows { // it had an engine on the last day
		if row.Labels[fleet.LabelWorkload] == "notebook" {
			want = want.Add(row.Amounts)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-bill +models):\n%s", diff)
	}
	// A part of a day, too, where the GPU has one model at a time.
	halves, all := sumOf(d.read(t, r, 24, 30.3), d.read(t, r, 30.3, 48)), sumOf(d.read(t, r, 24, 48))
	for _, sums := range []map[string]sum{halves, all} {
		maps.DeleteFunc(sums, func(key string, _ sum) bool {
			return key == "deployment///pair/ large" || key == "deployment///pair/ small" || key == "deployment///swap/ new" || key == "deployment///swap/ old"
		})
	}
	if diff := cmp.Diff(all, halves); diff != "" || len(all) != 3 {
		t.Errorf("(-day +halves):\n%s", diff)
	}
}

// Catches a cost per token that is missing because the price began later, and one that divides the money of some days by
// the tokens of all.
func TestPriceBegins(t *testing.T) {
	t.Parallel()
	d := newDays()
	d.holds("w", "n1", "GPU-1", 0, 72)
	d.runs("e", "w", "n1", "m", "GPU-1", 0, 72, hourly(1e6))
	b := d.read(t, reader(t, d, "currency: EUR\nprices: [{rates: [{from: '2026-11-15T06:00:00Z', kind: on_demand, per_hour: 2}]}]\n"), 0, 72)
	total := b.Total()
	// 84 EUR for 42 hours; of the days without a gap, 48 EUR for 24 million.
	all, unpriced := total.LeftOut()
	if v, ok := total.PerMillion.Get(); !ok || v != 2 || total.Amounts.Total() != 84e6 || all.Hours() != 48 || unpriced.Hours() != 30 {
		t.Errorf("%v a million, %v in total, %v of %v hours have no price", v, total.Amounts.Total(), unpriced.Hours(), all.Hours())
	}
}

// Catches days that are read again although they are over, and days that are kept although samples can still arrive.
func TestKeptDays(t *testing.T) {
	t.Parallel()
	d := sharedDays()
	r := reader(t, d, fourAnHour)
	now := d.at(72.5)
	read := func() (*Bill, int) {
		t.Helper()
		before := d.Asked()
		b, err := r.Read(t.Context(), d.at(0), d.at(72.4), now)
		if err != nil {
			t.Fatal(err)
		}
		return b, d.Asked() - before
	}
	first, all := read()
	now = now.Add(time.Minute)
	second, some := read()
	if first.Total().Amounts != second.Total().Amounts || some > all/4 {
		t.Errorf("%d queries, then %d", all, some)
	}
	// Samples of an engine on the first and on the last day arrive.
	d.holds("late", "n3", "GPU-8", 0.1, 72)
	d.runs("e8", "late", "n3", "late", "GPU-8", 20, 23, hourly(1000))
	d.runs("e9", "late", "n3", "later", "GPU-8", 50.1, 53, hourly(1000))
	now = now.Add(again + time.Minute)
	third, _ := read()
	got := hoursOf(third.By(servingDimension("model")))
	if got["late"] != "" || got["later"] != "3.00" {
		t.Errorf("of a settled day %s, of the last one %s", got["late"], got["later"])
	}
	// They are bounded.
	for i := range 100 {
		r.keep(d.at(float64(-24*i)), now.Add(time.Duration(-i)*time.Minute), &Bill{Rows: make([]Row, maxKept/40)})
	}
	if len(r.kept) > 41 || r.rows > maxKept || r.kept[d.at(-99*24)] == nil {
		t.Errorf("%d days with %d rows", len(r.kept), r.rows)
	}
}
