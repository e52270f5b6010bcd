//go:build linux

package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/cli/billing"
	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/rules"
	"github.com/gpumeter/gpumeter/internal/hub/view"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/scheduler/accounting"
	"github.com/gpumeter/gpumeter/internal/slurm"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// facts are what is asked about a device.
type facts struct {
	Watts, Celsius, Busy optional.Float
	Part                 optional.Float // of the device that is held
	Held, Idle           bool
	Owners               string
	PerHour              optional.Float
}

// truth is what the nodes themselves know at the last tick, and what is idle by its role.
func truth(ticks []node.Tick, prices cost.Prices) map[string]facts {
	out := map[string]facts{}
	for _, t := range ticks {
		for i := range t.Readings {
			r := &t.Readings[i]
			if r.ID.Parent != "" {
				continue
			}
			f := facts{Watts: r.Power().Draw(), Celsius: r.Temperature(), Busy: r.Busy}
			part := 0.0
			var owners []string
			for _, h := range r.Holders {
				if h.Ended || h.Kind == workload.Unallocated || h.Allocation == 0 {
					continue
				}
				o, _ := fleet.OwnerOf(ownerLabels(&h.Workload))
				f.Held = true
				part += h.Allocation
				f.Idle = f.Idle || o.Name == "hoarder" || o.Job == "8"
				owners = append(owners, o.Label())
			}
			slices.Sort(owners)
			f.Owners = strings.Join(slices.Compact(owners), ", ")
			f.Part = optional.Of(part)
			f.PerHour = fleet.Rate(chargesOf(t, r, prices.Hourly))
			out[r.ID.UUID] = f
		}
	}
	out["GPU-sliced"] = facts{
		Watts: optional.Of(200), Celsius: optional.Of(55), Busy: optional.Of(0.5), Part: optional.Of(1), Held: true, Owners: "ml/left, ml/right",
		PerHour: optional.Of(43830./(5*8766) + 0.30*1.2*0.2),
	}
	return out
}

// onPage is what the page's API says.
func onPage(t *testing.T, h http.Handler) (map[string]facts, map[string]float64) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/fleet", nil))
	var a struct {
		IdleAfter float64
		Headline  map[string]float64
		Owners    []fleet.Owner
		GPUs      struct {
			UUID                                              []string
			Utilization, Power, Temperature, Held, Idle, Rate []*float64
			Owners                                            [][]int
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("%v in %s", err, w.Body)
	}
	value := func(p *float64) optional.Float {
		if p == nil {
			return optional.Float{}
		}
		return optional.Of(*p)
	}
	out := map[string]facts{}
	for i, uuid := range a.GPUs.UUID {
		f := facts{
			Watts: value(a.GPUs.Power[i]), Celsius: value(a.GPUs.Temperature[i]), Busy: value(a.GPUs.Utilization[i]),
			Part: value(a.GPUs.Held[i]), Held: *a.GPUs.Held[i] > 0, Idle: a.GPUs.Idle[i] != nil && *a.GPUs.Idle[i] >= a.IdleAfter, PerHour: value(a.GPUs.Rate[i]),
		}
		var owners []string
		for _, n := range a.GPUs.Owners[i] {
			owners = append(owners, a.Owners[n].Label())
		}
		slices.Sort(owners)
		f.Owners = strings.Join(owners, ", ")
		out[uuid] = f
	}
	return out, a.Headline
}

// inTop is what gpumeter top --url shows.
func inTop(t *testing.T, store query.Store, prices cost.Prices) map[string]facts {
	t.Helper()
	s, err := askStore(t.Context(), store, fleet.NewReader(store, fleet.Options{Price: prices.Hourly}), demoNow, pricing{prices, prices.Currency})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]facts{}
	for i := range s.Devices {
		d := &s.Devices[i]
		if d.Profile != "" {
			continue
		}
		idle, known := d.Idle.Get()
		f := facts{Watts: d.Power, Celsius: d.Celsius, Busy: d.Utilization, Held: d.Held, Idle: d.Held && known && idle >= fleet.IdleAfter.Seconds(), PerHour: d.Cost}
		part := 0.0
		var owners []string
		for _, o := range d.Owners {
			if o.Share > 0 {
				part += o.Share
				owners = append(owners, o.Label)
			}
		}
		slices.Sort(owners)
		f.Owners, f.Part = strings.Join(slices.Compact(owners), ", "), optional.Of(part)
		out[d.UUID] = f
	}
	return out
}

// The page shows four digits.
var fourDigits = cmp.Comparer(func(a, b optional.Float) bool {
	x, ok := a.Get()
	y, also := b.Get()
	return ok == also && math.Abs(x-y) <= 1e-3*max(1, math.Abs(x))
})

// One question has one answer: what the nodes measured is what the page, the terminal, plain
// PromQL, every format of the report, the bill and Slurm's accounting say, for every kind of
// device and of holder.
func TestOneAnswer(t *testing.T) {
	t.Parallel()
	prices, err := cost.Parse([]byte(answerPrices))
	if err != nil {
		t.Fatal(err)
	}
	store, ticks := answerStore(t)
	want := truth(ticks, prices)
	page := view.Handler(store, view.Cost(store, prices, nil), nil, view.Options{Now: func() time.Time { return demoNow }})
	for _, tick := range ticks {
		for i := range tick.Readings {
			if r := &tick.Readings[i]; r.ID.Vendor == "amd" && !want[r.ID.UUID].Celsius.OK() {
				t.Error("a device without an edge sensor has no temperature: no rule can judge it")
			}
		}
	}
	shown, headline := onPage(t, page)
	if diff := cmp.Diff(want, shown, fourDigits); diff != "" {
		t.Errorf("the page (-nodes +page):\n%s", diff)
	}
	if diff := cmp.Diff(want, inTop(t, store, prices), fourDigits); diff != "" {
		t.Errorf("top (-nodes +top):\n%s", diff)
	}

	t.Run("PromQL", func(t *testing.T) { plainQueries(t, store, want, headline) })
	t.Run("report", func(t *testing.T) { hoursAndMoney(t, store, ticks, page) })
	t.Run("rules", func(t *testing.T) {
		found, err := rules.Evaluate(t.Context(), store, demoNow)
		if err != nil || len(found) > 0 {
			t.Errorf("a fleet as it should be has the findings %+v, %v", found, err)
		}
		waste, err := cost.FindingsOf(t.Context(), store, prices, demoNow.Add(-answerAge), demoNow, cost.Rules{Held: time.Minute}, cost.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var idle []string
		for _, f := range waste {
			if f.Rule == cost.IdleHolder || f.Rule == cost.NeverUsed {
				idle = append(idle, f.Devices...)
			}
		}
		for uuid, f := range want {
			if uuid == "GPU-sliced" { // one of its two holders is idle: that is waste, and the device is busy
				continue
			}
			if f.Idle != slices.Contains(idle, uuid) {
				t.Errorf("%s is idle: %v, and among what is wasted: %v", uuid, f.Idle, idle)
			}
		}
	})
}

// plainQueries are what a person writes first.
func plainQueries(t *testing.T, store query.Store, want map[string]facts, headline map[string]float64) {
	watts, busy, measured := 0.0, 0.0, 0
	held, idle := 0.0, 0.0
	for _, f := range want {
		w, _ := f.Watts.Get()
		watts += w
		if b, ok := f.Busy.Get(); ok {
			busy += b
			measured++
		}
		if f.Held {
			held++
		}
		if f.Idle {
			idle++
		}
	}
	ask := func(expr string) float64 {
		t.Helper()
		list, err := store.Instant(t.Context(), expr, demoNow)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %v, %v", expr, list, err)
		}
		return list[0].Value
	}
	memory, err := store.Instant(t.Context(), "gpu_memory_used_bytes", demoNow)
	if err != nil {
		t.Fatal(err)
	}
	bytes, seen := 0.0, map[string]bool{}
	for _, s := range memory {
		if seen[s.Labels[fleet.LabelUUID]] {
			t.Errorf("gpu_memory_used_bytes has a second series of %s", s.Labels[fleet.LabelUUID])
		}
		seen[s.Labels[fleet.LabelUUID]] = true
		bytes += s.Value
	}
	got := map[string]float64{
		"watts": ask("sum(gpu_power_draw_watts)"), "busy": ask("avg(gpu_utilization_ratio)"), "gpus": ask("count(gpu_up)"), "memory": ask("sum(gpu_memory_used_bytes)"),
		"headline watts": headline["watts"], "headline busy": headline["utilization"], "headline gpus": headline["gpus"],
		"headline held": headline["held"], "headline idle": headline["idle"],
	}
	wanted := map[string]float64{
		"watts": watts, "busy": busy / float64(measured), "gpus": float64(len(want)), "memory": bytes,
		"headline watts": watts, "headline busy": busy / float64(measured), "headline gpus": float64(len(want)), "headline held": held, "headline idle": idle,
	}
	if diff := cmp.Diff(wanted, got, cmpopts.EquateApprox(1e-6, 0)); diff != "" {
		t.Errorf("(-nodes +queries):\n%s", diff)
	}
}

// hoursAndMoney compares the hours of workloads that the nodes counted with all that is made
// of them.
func hoursAndMoney(t *testing.T, store *hub.Store, ticks []node.Tick, page http.Handler) {
	hours := map[string]float64{"ml/left": answerAge.Hours() / 2, "ml/right": answerAge.Hours() / 2} // they share a device
	for _, tick := range ticks {
		for i := range tick.Readings {
			for _, h := range tick.Readings[i].Holders {
				if o, ok := fleet.OwnerOf(ownerLabels(&h.Workload)); ok {
					hours[o.Label()] += h.Allocated / 3600
				}
			}
		}
	}
	w := httptest.NewRecorder()
	target := fmt.Sprintf("/workloads?from=%d&to=%d&at=%d", demoNow.Add(-answerAge).Unix(), demoNow.Unix(), demoNow.Unix())
	page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	var a struct {
		Workloads []struct {
			fleet.Owner
			HeldTime, Cost float64
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("%v in %s", err, w.Body)
	}
	onPage, money := map[string]float64{}, map[string]float64{}
	for _, x := range a.Workloads {
		onPage[x.Label()] += x.HeldTime / 3600
		money[x.Label()] += x.Cost
	}
	near := cmpopts.EquateApprox(0, 1e-6)
	if diff := cmp.Diff(hours, onPage, near); diff != "" {
		t.Errorf("hours on the page (-nodes +page):\n%s", diff)
	}

	server := httptest.NewServer(hub.NewHandler(store, nil, hub.HandlerOptions{}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(file, []byte(answerPrices), 0o600); err != nil {
		t.Fatal(err)
	}
	report := func(format string) string {
		o := report{
			period: billing.Period{From: demoNow.Add(-answerAge).Format(time.RFC3339), To: demoNow.Format(time.RFC3339)}, by: []string{"workload"}, output: format, prices: file,
			columns: []string{"gpu_hours", "cost"}, store: storeFlags{url: server.URL},
		}
		var out bytes.Buffer
		if err := o.run(t.Context(), &out, io.Discard, "cost", demoNow); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	rows, err := csv.NewReader(strings.NewReader(report("csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	table, html := report("table"), report("html")
	inCSV, cents := map[string]float64{}, map[string]float64{}
	for _, row := range rows[1:] {
		if row[0] == "(unallocated)" || row[0] == "total" {
			continue
		}
		inCSV[row[0]], _ = strconv.ParseFloat(row[1], 64)
		cents[row[0]], _ = strconv.ParseFloat(row[2], 64)
		for format, text := range map[string]string{"table": table, "html": html} {
			if figure := fmt.Sprintf("%.2f", cents[row[0]]); !strings.Contains(text, row[0]) || !strings.Contains(text, figure) {
				t.Errorf("%s has no %s with %s", format, row[0], figure)
			}
		}
	}
	if diff := cmp.Diff(hours, inCSV, near); diff != "" {
		t.Errorf("hours in the report (-nodes +csv):\n%s", diff)
	}
	if diff := cmp.Diff(money, cents, near); diff != "" {
		t.Errorf("money (-page +csv):\n%s", diff)
	}
	var inJSON struct {
		Groups []struct {
			Name string
			Used float64 `json:"used_seconds"`
			Idle float64 `json:"idle_seconds"`
			None float64 `json:"unmeasured_seconds"`
		}
	}
	if err := json.Unmarshal([]byte(report("json")), &inJSON); err != nil {
		t.Fatal(err)
	}
	for _, g := range inJSON.Groups {
		if want, ok := hours[g.Name]; ok && math.Abs(want-(g.Used+g.Idle+g.None)/3600) > 1e-6 {
			t.Errorf("%s has %v hours in JSON, want %v", g.Name, (g.Used+g.Idle+g.None)/3600, want)
		}
	}

	var jobs []accounting.Job
	for _, id := range []string{"7", "8"} {
		jobs = append(jobs, accounting.Job{Job: slurm.Job{ID: id, Start: demoNow.Add(-answerAge), End: demoNow, GPUs: 2}})
	}
	used, err := accounting.NewMeter(store).Usage(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	if got := (used[0].Allocated + used[1].Allocated) / 3600; math.Abs(got-hours["chemistry/md"]) > 1e-6 {
		t.Errorf("accounting has %v hours of Slurm's jobs, the nodes %v", got, hours["chemistry/md"])
	}
}
