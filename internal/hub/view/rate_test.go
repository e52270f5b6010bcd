package view

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// part is a part of a device in a steady hour.
type part struct {
	ratio float64
	row   map[string]string // of the workload; nil: free
}

// Catches an hourly rate of the page that is not the bill of the hour: rules by zone, pool and
// namespace applied to the report only, and shared, free and unknown parts cost something else.
func TestRateIsTheBillOfAnHour(t *testing.T) {
	t.Parallel()
	ml := map[string]string{"gpu_workload_kind": "job", "gpu_workload_name": "train", "k8s_namespace_name": "ml", "gpu_workload_team": "vision", "k8s_pod_uid": "1"}
	web := map[string]string{"gpu_workload_kind": "deployment", "gpu_workload_name": "api", "k8s_namespace_name": "web", "k8s_pod_uid": "2"}
	unknown := map[string]string{"gpu_workload_kind": "unattributed"}
	other := map[string]string{"gpu_workload_kind": "other"}
	devices := map[string]struct {
		machine map[string]string
		parts   []part
	}{
		"held":      {map[string]string{"host_name": "n1"}, []part{{1, ml}}},
		"free":      {map[string]string{"host_name": "n1"}, []part{{1, nil}}},
		"half":      {map[string]string{"host_name": "n1"}, []part{{0.5, ml}, {0.5, nil}}},
		"shared":    {map[string]string{"host_name": "n1"}, []part{{0.25, ml}, {0.75, web}}},
		"taken":     {map[string]string{"host_name": "n1"}, []part{{1, web}, {0, ml}}}, // ml uses it without an allocation
		"unknown":   {map[string]string{"host_name": "n1"}, []part{{0.5, unknown}, {0.25, other}, {0.25, nil}}},
		"zone":      {map[string]string{"host_name": "n2", "cloud_availability_zone": "eu-1a"}, []part{{1, web}}},
		"zonefree":  {map[string]string{"host_name": "n2", "cloud_availability_zone": "eu-1a"}, []part{{1, nil}}},
		"pool":      {map[string]string{"host_name": "n3", "k8s_node_label_pool": "spot"}, []part{{1, ml}}},
		"node":      {map[string]string{"host_name": "n4", "k8s_node_name": "gold"}, []part{{1, nil}}},
		"cluster":   {map[string]string{"host_name": "n5", "k8s_cluster_name": "south"}, []part{{1, web}}},
		"unpriced":  {map[string]string{"host_name": "n6", "gpu_model": "MI300X"}, []part{{1, web}}},
		"partprice": {map[string]string{"host_name": "n6", "gpu_model": "MI300X"}, []part{{0.5, ml}, {0.5, web}}},
	}
	prices := map[string]string{
		"model":     `- {match: {model: "H100*"}, rates: [{from: 2020-01-01, kind: spot, per_hour: 8.30}]}`,
		"zone":      `- {match: {zone: "eu-*"}, rates: [{from: 2020-01-01, kind: spot, per_hour: 16}]}`,
		"pool":      `- {match: {k8s.node.label.pool: spot}, rates: [{from: 2020-01-01, kind: spot, per_hour: 1.1}]}`,
		"namespace": `- {match: {namespace: ml}, rates: [{from: 2020-01-01, kind: spot, per_hour: 3}]}`,
		"team":      `- {match: {team: vision}, rates: [{from: 2020-01-01, kind: spot, per_hour: 2.5}]}`,
		"node":      `- {match: {node: gold}, rates: [{from: 2020-01-01, kind: owned, capex: 8766, years: 1}]}`,
		"cluster":   `- {match: {cluster: south}, rates: [{from: 2020-01-01, kind: owned, capex: 17532, years: 1}]}`,
	}
	const watts = 500.
	m := querytest.NewMemory()
	for uuid, d := range devices {
		add := func(name string, at time.Time, v float64, more map[string]string) {
			l := query.Labels{fleet.LabelName: name, "gpu_uuid": uuid, "gpu_model": "H100", "gpu_index": "0", "gpu_vendor": "nvidia", "instance": "agent"}
			maps.Copy(l, d.machine)
			maps.Copy(l, more)
			m.Add(l, at, v)
		}
		for s := -3600.; s <= 0; s += 30 {
			at := noon.Add(time.Duration(s) * time.Second)
			add(fleet.SeriesUp, at, 1, nil)
			add(fleet.SeriesPower, at, watts, nil)
			free := 0.
			for _, p := range d.parts {
				row, gauge, counter := p.row, fleet.SeriesAllocation, fleet.SeriesAllocatedTime
				if row == nil {
					row, gauge, counter = map[string]string{"gpu_workload_kind": "unallocated"}, "", fleet.SeriesUnallocatedTime
					free += p.ratio
				}
				if gauge != "" {
					add(gauge, at, p.ratio, row)
				}
				add(counter, at, (s+3600)*p.ratio, row)
				if row["gpu_workload_name"] == "train" { // the others are not measured
					add(fleet.SeriesActiveTime, at, (s+3600)*p.ratio/2, row)
				}
				add(fleet.SeriesEnergy, at, (s+3600)*p.ratio*watts, row)
			}
			add(fleet.SeriesUnallocated, at, free, map[string]string{"gpu_workload_kind": "unallocated"})
		}
	}
	// An agent that does not know the holders of its device: the device costs what it costs free.
	m.Add(query.Labels{fleet.LabelName: fleet.SeriesUp, "gpu_uuid": "lonely", "gpu_model": "H100", "host_name": "n9", "k8s_node_label_pool": "spot", "k8s_namespace_name": "ml"}, noon, 1)
	const power = "\npower: [{match: {cluster: south}, rates: [{from: 2020-01-01, per_kwh: 0.2, pue: 1.5}]}, {rates: [{from: 2020-01-01, per_kwh: 0.1}]}]\n"
	f := func(lonely float64, rules ...string) {
		t.Helper()
		text := "currency: USD\nprices:\n"
		for _, r := range rules {
			text += prices[r] + "\n"
		}
		p, err := cost.Parse([]byte(text + power))
		if err != nil {
			t.Fatal(err)
		}
		bill, err := cost.Bill(t.Context(), m, p, noon.Add(-time.Hour), noon, cost.Options{})
		if err != nil {
			t.Fatal(err)
		}
		want, owned := map[string]*float64{}, map[string]float64{}
		for uuid := range devices {
			want[uuid] = nil
		}
		for i := range bill.Rows {
			r := &bill.Rows[i]
			if uuid := r.Labels["gpu_uuid"]; r.Priced() {
				sum := money(r.Total())
				if want[uuid] != nil {
					sum += *want[uuid]
				}
				want[uuid] = &sum
			}
			if o, ok := fleet.OwnerOf(r.Labels); ok && r.Priced() && fleet.IsWorkload(o.Kind) {
				owned[o.Name] += money(r.Total())
			}
		}
		var page struct {
			Headline struct{ CostPerHour *float64 }
			GPUs     struct {
				UUID []string
				Rate []*float64
			}
		}
		h := Handler(m, Cost(m, p, nil), nil, at(noon))
		code, body := get(t, h, "/fleet")
		if err := json.Unmarshal([]byte(body), &page); err != nil || code != http.StatusOK {
			t.Fatal(code, err, body)
		}
		got := map[string]*float64{}
		for i, uuid := range page.GPUs.UUID {
			got[uuid] = page.GPUs.Rate[i]
		}
		near := cmpopts.EquateApprox(0, 1e-5)
		if r := got["lonely"]; r == nil && lonely != 0 || r != nil && math.Abs(*r-lonely) > 1e-9 {
			t.Errorf("%v: a device without holders costs %s, want %v", rules, orNothing(r), lonely)
		}
		delete(got, "lonely") // in no bill
		if diff := cmp.Diff(want, got, near); diff != "" {
			t.Errorf("%v (-bill of an hour +rate on the page):\n%s", rules, diff)
		}
		if whole := money(bill.Total.Total()) + lonely; page.Headline.CostPerHour == nil || math.Abs(*page.Headline.CostPerHour-whole) > 1e-4 {
			t.Errorf("%v: the headline has %s, the bill %v", rules, orNothing(page.Headline.CostPerHour), whole)
		}
		samePage(t, h, &bill)
		var list struct {
			Workloads []struct {
				Name    string
				PerHour *float64
			}
		}
		if code, body = get(t, h, "/workloads"); code != http.StatusOK {
			t.Fatal(code, body)
		}
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		per := map[string]float64{}
		for _, w := range list.Workloads {
			if w.PerHour != nil {
				per[w.Name] += *w.PerHour
			}
		}
		if diff := cmp.Diff(owned, per, near); diff != "" {
			t.Errorf("%v: workloads (-bill of an hour +rate on the page):\n%s", rules, diff)
		}
	}
	f(8.3, "model")
	f(8.3, "zone", "model")
	f(1.1, "pool", "zone", "model")
	f(8.3, "namespace", "model")
	f(8.3, "team", "namespace", "node", "model")
	f(1.1, "cluster", "pool", "zone", "team", "node", "model")
	f(0, "namespace")
}

func orNothing(v *float64) string {
	if v == nil {
		return "nothing"
	}
	return fmt.Sprint(*v)
}

// samePage compares the cost page with the groups of a report: the same rows under the same names,
// and the same used, idle and free.
func samePage(t *testing.T, h http.Handler, bill *cost.Statement) {
	t.Helper()
	code, body := get(t, h, fmt.Sprintf("/cost?from=%d&to=%d", bill.From.Unix(), bill.To.Unix()))
	type row struct {
		Team                                                                    string
		Time, UsedTime, IdleTime, UnmeasuredTime, FreeTime                      float64
		Cost, UsedCost, IdleCost, UnmeasuredCost, FreeCost, EnergyCost, Nothing *float64
	}
	var page struct {
		Total row
		Teams []row
	}
	if err := json.Unmarshal([]byte(body), &page); err != nil || code != http.StatusOK {
		t.Fatal(code, err, body)
	}
	of := func(name string, a cost.Amounts) row {
		known := a.Unmeasured == 0 || a.Unmeasured != a.Allocated()
		amount := func(m cost.Money, known bool) *float64 {
			if !a.Priced() || !known {
				return nil
			}
			return new(money(m))
		}
		return row{
			name, a.Time().Float(), a.Used.Float(), a.Idle.Float(), a.Unmeasured.Float(), a.Unallocated.Float(),
			amount(a.Total(), true), amount(a.UsedCost, known), amount(a.IdleCost, known), amount(a.UnmeasuredCost, true), amount(a.UnallocatedCost, true), amount(a.EnergyCost, true), nil,
		}
	}
	want := page
	want.Total, want.Teams = of("", bill.Total), nil
	team, _ := cost.DimensionOf("team")
	for _, g := range bill.By(team) {
		want.Teams = append(want.Teams, of(g.Name, g.Amounts))
	}
	if diff := cmp.Diff(want, page, cmpopts.EquateApprox(1e-9, 1e-9)); diff != "" || len(want.Teams) < 4 {
		t.Errorf("(-report +page):\n%s", diff)
	}
}
