//go:build linux

package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cli/billing"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// reportSeries grow by rate a second since start.
type reportSeries struct {
	name  string
	label map[string]string
	rate  float64
	start time.Time
}

var reportStart = time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)

// reportFleet is a team that uses its device, one that does not, and a device that nobody
// holds and whose model has no price.
func reportFleet() []reportSeries {
	var out []reportSeries
	add := func(uuid, model, team string, active, watts float64) {
		l := map[string]string{"gpu_uuid": uuid, "gpu_model": model, "gpu_workload_kind": "unallocated", "host_name": "n1"}
		if team != "" {
			l["gpu_workload_kind"], l["gpu_workload_name"], l["gpu_workload_team"], l["k8s_pod_uid"] = "job", "job-"+team, team, team
			out = append(out, reportSeries{"gpu_workload_active_time_seconds_total", l, active, reportStart})
		}
		out = append(out, reportSeries{"gpu_workload_allocated_time_seconds_total", l, 1, reportStart}, reportSeries{"gpu_workload_energy_joules_total", l, watts, reportStart})
	}
	add("g1", "H100", "red<b>", 0.75, 500)
	add("g2", "H100", "=blue", 0, 100)
	add("g3", "A100", "", 0, 50)
	return out
}

// fakePrometheus serves the first month of these series.
func fakePrometheus(t *testing.T, list []reportSeries) string {
	store := querytest.NewMemory()
	for _, s := range list {
		l := query.Labels{fleet.LabelName: s.name}
		maps.Copy(l, s.label)
		for d := time.Duration(0); d < 32*24*time.Hour; d += 4 * time.Minute {
			store.Add(l, s.start.Add(d), s.rate*d.Seconds())
		}
	}
	server := httptest.NewServer(hub.NewHandler(store, nil, hub.HandlerOptions{}))
	t.Cleanup(server.Close)
	return server.URL
}

func reportOutput(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, _, err := reportStreams(t, args...)
	return out, err
}

func reportStreams(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	root := newRoot("test")
	var out, notes bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&notes)
	root.SetArgs(append([]string{"report"}, args...))
	err = root.ExecuteContext(t.Context())
	return out.String(), notes.String(), err
}

func reportPrices(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "prices.yaml")
	text := "currency: EUR\nprices: [{match: {model: H100}, rates: [{from: 2026-01-01, kind: on_demand, per_hour: 2}]}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The table must add up, and note what has no price.
func TestReportTable(t *testing.T) {
	t.Parallel()
	url := fakePrometheus(t, reportFleet())
	got, err := reportOutput(t, "--url", url, "--day", "2026-10-14", "--prices", reportPrices(t))
	if err != nil {
		t.Fatal(err)
	}
	want := `cost by team, 2026-10-14 00:00 to 2026-10-15 00:00 UTC, EUR

TEAM           GPUS  GPU-HOURS   USED   IDLE  UNKNOWN  FREE  ENERGY  TOTAL
=blue             1      24.00   0.00  48.00     0.00  0.00    0.00  48.00
red<b>            1      24.00  36.00  12.00     0.00  0.00    0.00  48.00
(unallocated)     1      24.00      -      -        -     -       -      -
total             3      72.00  36.00  60.00     0.00  0.00    0.00  96.00

No price for A100: 24.0 GPU-hours are not included in any cost.
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got, err = reportOutput(t, "energy", "--url", url, "--from", "2026-10-14", "--to", "2026-10-14T10:00:00Z", "--by", "model", "--columns", "gpus,kwh,watts")
	if err != nil {
		t.Fatal(err)
	}
	want = `energy by model, 2026-10-14 00:00 to 2026-10-14 10:00 UTC

MODEL  GPUS   kWh  WATTS
H100      2  6.00    300
A100      1  0.50     50
total     3  6.50    217

Costs are absent because there are no prices: use --prices.
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Spreadsheets must get all digits and no formula, programs all that there is, and a
// browser a page that asks for nothing and runs nothing.
func TestReportFormats(t *testing.T) {
	t.Parallel()
	url, prices := fakePrometheus(t, reportFleet()), reportPrices(t)
	output := func(format string, more ...string) string {
		got, err := reportOutput(t, append([]string{"--url", url, "--month", "2026-10", "--prices", prices, "-o", format}, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	table, notes, err := reportStreams(t, "--url", url, "--month", "2026-10", "--prices", prices, "-o", "csv", "--columns", "used_hours,idle_cost", "--by", "team,model")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(table)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	const period = "EUR 2026-10-01T00:00:00Z 2026-11-01T00:00:00Z none"
	want := [][]string{
		append(strings.Fields("team model used_hours idle_cost unpriced_hours unpriced_kwh not_seen_hours not_seen_cost"), "currency", "from", "to", "simulated"),
		append(strings.Fields("'=blue H100 0.000000000 1488.000000 0.000000000 0.000000 0.000000000 0.000000"), strings.Fields(period)...),
		append(strings.Fields("red<b> H100 558.000000000 372.000000 0.000000000 0.000000 0.000000000 0.000000"), strings.Fields(period)...),
		append([]string{"(unallocated)", "A100", "0.000000000", "", "744.000000000", "0.000000", "0.000000000", ""}, strings.Fields(period)...),
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("csv (-want +got):\n%s", diff)
	}
	if !strings.Contains(notes, "No price for A100: 744.0 GPU-hours are not included in any cost.\n") {
		t.Errorf("the notes of csv are %q", notes)
	}
	var r struct {
		Priced bool
		Groups []struct {
			Name     string
			Used     json.Number `json:"used_seconds"`
			IdleCost json.Number `json:"idle_cost"`
		}
	}
	if err := json.Unmarshal([]byte(output("json")), &r); err != nil {
		t.Fatal(err)
	}
	if !r.Priced || len(r.Groups) != 3 || r.Groups[1].Used != "2008800.000000" || r.Groups[1].IdleCost != "372.000000" {
		t.Errorf("json: %+v", r)
	}
	page := output("html", "--findings")
	for _, bad := range []string{"<script", "http://", "https://", "red<b>", "@import", "url("} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	for _, good := range []string{"red&lt;b&gt;", "2976.00", "prefers-color-scheme: dark", "No price for A100", "--p: 50.0%"} {
		if !strings.Contains(page, good) {
			t.Errorf("the page lacks %s:\n%s", good, page)
		}
	}
}

// Catches a report that says "no prices" about a hub that has prices, and one that shows the
// prices of all teams to a team.
func TestReportHubPrices(t *testing.T) {
	t.Parallel()
	store := fakePrometheus(t, reportFleet())
	answer := ""
	target, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/page/prices" {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, answer)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(hub.Close)
	f := func(name, with string, want ...string) {
		t.Helper()
		answer = with
		got, err := reportOutput(t, "--url", hub.URL, "--day", "2026-10-14")
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: lacks %q:\n%s", name, w, got)
			}
		}
	}
	text, err := os.ReadFile(reportPrices(t))
	if err != nil {
		t.Fatal(err)
	}
	file, _ := json.Marshal(map[string]string{"currency": "EUR", "file": string(text)})
	f("a hub with prices", string(file), "cost by team, 2026-10-14 00:00 to 2026-10-15 00:00 UTC, EUR", "  96.00\n", "\nPrices are those of the hub.\n")
	f("a team", `{"currency":"EUR"}`, "usage by team", "\nThe hub has prices that this token may not read: the hub's page has your costs.\n")
	f("a hub without prices", `{}`, "usage by team", "no prices: use --prices")
	f("another store", `<html>`, "usage by team", "no prices: use --prices")
}

// Invalid flags must be rejected before any query, without printing secrets.
func TestReportRefuses(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--by rack":                         "unknown --by",
		"--by team,team":                    "--by has team twice",
		"-o xml":                            "unknown --output",
		"waste":                             "invalid argument",
		"--columns x":                       "unknown column",
		"--last 7d --day 2026-10-14":        "only one of",
		"--month 10":                        "--month",
		"--day x":                           "--day",
		"--to 2026-10-14":                   "--to needs --from",
		"--from x":                          "--from",
		"--last -1h":                        "--last",
		"--from 1h --to 2h":                 "ends before it begins",
		"--month 2999-01":                   "has not begun",
		"--from 2000-01-01":                 "longer than two years",
		"--match x":                         "--match",
		"--prices /does/not/exist":          "cannot read the prices",
		"--header s3cret":                   "--header must be",
		"--url http://u:s3cret@h:x/":        "--url",
		"--url http://localhost:1":          "is a hub running?",
		"--token-file /does/not/exist/file": "cannot read token or password",
	} {
		_, err := reportOutput(t, strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// An unfinished month must end now, with a note.
func TestReportPeriod(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 10, 14, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		p        billing.Period
		from, to string
		note     bool
	}{
		{billing.Period{}, "2026-10-13T12:00:00Z", "2026-10-14T12:00:00Z", false},
		{billing.Period{Last: "7d"}, "2026-10-07T12:00:00Z", "2026-10-14T12:00:00Z", false},
		{billing.Period{Month: "2026-10"}, "2026-10-01T00:00:00Z", "2026-10-14T12:00:00Z", true},
		{billing.Period{Month: "2026-02"}, "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z", false},
		{billing.Period{From: "36h", To: "2026-10-14 11:00"}, "2026-10-13T00:00:00Z", "2026-10-14T11:00:00Z", false},
	} {
		from, to, note, err := tt.p.Edges(now)
		got := []any{from.Format(time.RFC3339), to.Format(time.RFC3339), note != "", err}
		if diff := cmp.Diff([]any{tt.from, tt.to, tt.note, nil}, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.p, diff)
		}
	}
}

// An exceeded quota must be in the report.
func TestReportQuotas(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "quotas.yaml")
	if err := os.WriteFile(file, []byte("quotas: [{team: \"red*\", gpu_hours_per_month: 300, money_per_month: 10000}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := reportOutput(t, "--url", fakePrometheus(t, reportFleet()), "--day", "2026-10-14", "--prices", reportPrices(t), "--quotas", file)
	if err != nil {
		t.Fatal(err)
	}
	want := `QUOTA       UNIT    USED     LIMIT
red*   gpu_hours  336.00    300.00  over
red*       money  672.00  10000.00
`
	if !strings.Contains(got, want) {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}
