//go:build linux

package cli

import (
	"encoding/csv"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/query"
)

func explainPrices(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "prices.yaml")
	text := `currency: EUR
prices:
- match: {model: H100}
  rates:
  - {from: 2026-01-01, kind: on_demand, per_hour: 2}
  - {from: 2026-10-14T06:20:00Z, kind: owned, capex: 35064, years: 4}
power:
- rates: [{from: 2026-01-01, per_kwh: 0.2, pue: 1.5}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Catches an explanation that a person cannot follow from the samples and the prices to the number,
// or whose formats differ.
func TestReportExplain(t *testing.T) {
	t.Parallel()
	url, prices := fakePrometheus(t, reportFleet()), explainPrices(t)
	output := func(args ...string) string {
		got, err := reportOutput(t, append(args, "--url", url, "--from", "2026-10-14T02:10:00Z", "--to", "2026-10-15T00:00:00Z", "--prices", prices, "--by", "team,model", "--explain", "red<b>,H100")...)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := `how red<b>, H100 was made: cost by team,model, 2026-10-14 04:10 to 2026-10-15 02:00 CEST, EUR
computed from samples of ` + url + `, prices of ` + prices + `

FROM              TO                PRICE        HELD S        USED S        IDLE S      ENERGY J       USED      IDLE    ENERGY      TOTAL               FIRST SAMPLE                LAST SAMPLE

g1 (H100) on n1: job-red<b>, team red<b>, pod red<b>
2026-10-14 04:10  2026-10-14 08:20  p1     15000.000000  11250.000000   3750.000000   7500000.000   6.250000  2.083333  0.000000   8.333333  1130880 s at 04:08:00.000  1146000 s at 08:20:00.000
2026-10-14 08:20  2026-10-15 02:00  p2+e1  63600.000000  47700.000000  15900.000000  31800000.000  13.250000  4.416667  2.650000  20.316667  1146000 s at 08:20:00.000  1209600 s at 02:00:00.000

sum                                        78600.000000  58950.000000  19650.000000  39300000.000  19.500000  6.500000  2.650000  28.650000

in the report
TEAM    MODEL  GPUS  GPU-HOURS   USED  IDLE  UNKNOWN  FREE  ENERGY  TOTAL
red<b>  H100      1      21.83  19.50  6.50     0.00  0.00    2.65  28.65

prices
p1  2.000000000 EUR a device hour, from 2026-01-01 01:00 to 2026-10-14 08:20: line 5, prices[0].rates[0], match {model: "H100"}, {from: 2026-01-01, kind: on_demand, per_hour: 2}
p2  1.000000000 EUR a device hour, from 2026-10-14 08:20: line 6, prices[0].rates[1], match {model: "H100"}, {from: '2026-10-14T06:20:00Z', kind: owned, capex: 35064, years: 4}
e1  0.300000000 EUR a kWh, from 2026-01-01 01:00: line 8, power[0].rates[0], match {}, {from: 2026-01-01, per_kwh: 0.2, pue: 1.5}

price changes
2026-10-14 08:20  p1 -> p2

not counted
nothing that the store knows of
`
	if diff := cmp.Diff(want, output("--time-zone", "Europe/Berlin")); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	rows, err := csv.NewReader(strings.NewReader(output("-o", "csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	first := strings.Split("n1;g1;;H100;job-red<b>;red<b>;pod red<b>;2026-10-14T02:10:00Z;2026-10-14T03:00:00Z;samples;3000.000000;2250.000000;750.000000;0.000000;0.000000;1500000.000;0.000;"+
		"1.250000;0.416667;0.000000;0.000000;0.000000;1.666667;EUR;2.000000000;prices[0].rates[0];0.000000000;power[0].rates[0];2026-10-14T02:08:00Z;1130880;2026-10-14T03:00:00Z;1134000;false", ";")
	if diff := cmp.Diff(first, rows[1]); diff != "" || len(rows) != 1+23 { // an hour is divided by a price change
		t.Errorf("csv has %d rows (-want +got):\n%s", len(rows), diff)
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	var sum int64
	for _, row := range rows[1:] {
		v, err := strconv.ParseInt(strings.Replace(row[column["cost"]], ".", "", 1), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += v
	}
	if sum != 28_650_000 {
		t.Errorf("the lines of csv add up to %d", sum)
	}
	type amounts = map[string]json.Number
	var r struct {
		ComputedFrom []string `json:"computed_from"`
		Holders      []struct{ Lines []json.RawMessage }
		Sum          amounts
	}
	if err := json.Unmarshal([]byte(output("-o", "json")), &r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{cost.FromSamples}, r.ComputedFrom); diff != "" || len(r.Holders) != 1 || len(r.Holders[0].Lines) != 23 {
		t.Errorf("json (-want +got):\n%s", diff)
	}
	whole, err := reportOutput(t, "-o", "json", "--url", url, "--from", "2026-10-14T02:10:00Z", "--to", "2026-10-15T00:00:00Z", "--prices", prices)
	if err != nil {
		t.Fatal(err)
	}
	var report struct{ Groups []map[string]any }
	d := json.NewDecoder(strings.NewReader(whole))
	d.UseNumber()
	if err := d.Decode(&report); err != nil {
		t.Fatal(err)
	}
	row := amounts{}
	for _, g := range report.Groups {
		for name, v := range g {
			if _, ok := r.Sum[name]; ok && g["name"] == "red<b>" {
				row[name] = v.(json.Number)
			}
		}
	}
	if diff := cmp.Diff(row, r.Sum); diff != "" {
		t.Errorf("(-report +sum):\n%s", diff)
	}
}

// Catches an explanation of nothing: of a row that does not exist, or that has no samples, and flags
// that are ignored.
func TestReportExplainErrors(t *testing.T) {
	t.Parallel()
	url := fakePrometheus(t, reportFleet())
	for want, args := range map[string][]string{
		`no row is "rad<b>": the closest are "red<b>", `:   {"--explain", "rad<b>"},
		`no row is "red<b>": the closest are "red<b>,H100`: {"--explain", "red<b>", "--by", "team,model"},
		"gpumeter report coverage lists why":               {"--explain", "(not seen)"},
		"only table, csv and json":                         {"--explain", "red<b>", "-o", "html"},
		"coverage lists devices, not rows":                 {"coverage", "--explain", "red<b>"},
		"use --findings and --quotas without it":           {"--explain", "red<b>", "--findings"},
	} {
		_, err := reportOutput(t, append(args, "--url", url, "--day", "2026-10-14")...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

// Catches an explanation that adds up only on one kind of store: the hub's own, which keeps the usage
// of past hours, and the same hub behind its URL.
func TestExplainHub(t *testing.T) {
	t.Parallel()
	store, _ := answerStore(t)
	server := httptest.NewServer(hub.NewHandler(store, nil, hub.HandlerOptions{}))
	t.Cleanup(server.Close)
	client, err := query.Open(query.Config{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	prices, err := cost.Parse([]byte(answerPrices))
	if err != nil {
		t.Fatal(err)
	}
	by, err := dimensions([]string{"workload"})
	if err != nil {
		t.Fatal(err)
	}
	from, to := demoNow.Add(-answerAge+7*time.Minute), demoNow.Add(-3*time.Minute)
	for name, s := range map[string]query.Store{"store": store, "url": client} {
		bill, err := cost.Bill(t.Context(), s, prices, from, to, cost.Options{})
		if err != nil {
			t.Fatal(err)
		}
		sources, readings := map[string]int{}, 0
		for _, g := range bill.By(by...) {
			e, err := cost.Explain(t.Context(), s, prices, &bill, cost.ExplainOptions{By: by, Row: g.Keys})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(g.Amounts, e.Sum); diff != "" {
				t.Errorf("%s: %s (-row +sum):\n%s", name, g.Name, diff)
			}
			for _, h := range e.Holders {
				for _, l := range h.Lines {
					sources[l.Source]++
					if l.Start.Before != nil && l.End.Before != nil {
						readings++
					}
				}
			}
		}
		if readings == 0 || name == "store" && (sources[cost.FromKept] == 0 || sources[cost.FromSamples] == 0) {
			t.Errorf("%s: %d lines have samples; sources %v", name, readings, sources)
		}
	}
}
