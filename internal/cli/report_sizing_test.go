//go:build linux

package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/demo"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/view"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/remote"
)

// sizingStore returns a hub's store in which some machines of the demo have lived for the last nine hours.
func sizingStore(t *testing.T, hosts ...string) *hub.Store {
	t.Helper()
	store, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return demoNow }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	to, err := demo.Into(store)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range demo.Fleet() {
		if !strings.Contains(strings.Join(hosts, " "), m.Host) {
			continue
		}
		n, err := demo.NewNode(m, demoNow.Add(-demo.Age), to, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		for at := demoNow.Add(-9 * time.Hour); !at.After(demoNow); at = at.Add(2 * time.Minute) {
			n.Tick(t.Context(), at)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

// sizingFacts is what a surface says of a workload: devices and those of them that were used, the advice and what it saves.
type sizingFacts struct {
	Devices, Used int
	Advice        string
	PerDay        string
}

// Catches a careless job or a hoarder that the report does not show, formats and a page that differ, and a saving that differs from that
// of the finding about the same waste. The report reads the store by PromQL, the page from the hours that the hub keeps.
func TestReportSizing(t *testing.T) {
	t.Parallel()
	store := sizingStore(t, "h100-02", "a100-01")
	server := httptest.NewServer(hub.NewHandler(store, nil, hub.HandlerOptions{}))
	t.Cleanup(server.Close)
	prices, err := cost.Parse(demoPrices)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(file, demoPrices, 0o600); err != nil {
		t.Fatal(err)
	}
	from, to := demoNow.Add(-8*time.Hour), demoNow
	args := []string{"sizing", "--url", server.URL, "--from", from.Format(time.RFC3339), "--to", to.Format(time.RFC3339), "--prices", file}
	output := func(format string) string {
		t.Helper()
		text, err := reportOutput(t, append(args, "-o", format)...)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	perDay := func(v *float64) string {
		if v == nil {
			return ""
		}
		return fmt.Sprintf("%.2f", *v)
	}

	page := view.Handler(store, view.Cost(store, prices, nil), nil, view.Options{Now: func() time.Time { return demoNow }, Facts: local.Vendors()})
	ask := func(path string, into any) {
		t.Helper()
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s?from=%d&to=%d", path, from.Unix(), to.Unix()), nil))
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s %v", path, w.Code, w.Body, err)
		}
	}
	var shown struct {
		Simulated string
		Workloads []struct {
			Name, Because string
			Devices       int
			Used          *float64
			Advice        []struct {
				Text   string
				PerDay *float64
			}
		}
	}
	ask("/sizing", &shown)
	want := map[string]sizingFacts{}
	for _, w := range shown.Workloads {
		f := sizingFacts{w.Devices, -1, w.Because, ""}
		if w.Used != nil {
			f.Used = int(math.Round(*w.Used))
		}
		if len(w.Advice) > 0 {
			f.Advice, f.PerDay = w.Advice[0].Text, perDay(w.Advice[0].PerDay)
		}
		want[w.Name] = f
	}
	for name, must := range map[string]sizingFacts{
		"segmentation-dev": {8, 0, "used none of 8 GPUs", want["segmentation-dev"].PerDay},
		"md-sweep":         {4, 1, "used 1 of 4 GPUs: ask for 1", want["md-sweep"].PerDay},
	} {
		if diff := cmp.Diff(must, want[name]); diff != "" || want[name].PerDay == "" || shown.Simulated != "all" {
			t.Errorf("%s on the page, %+v (-want +got):\n%s", name, shown, diff)
		}
	}
	var waste struct {
		Findings []struct {
			Owner  struct{ Name string }
			PerDay *float64
		}
	}
	ask("/waste", &waste)
	for _, f := range waste.Findings {
		if got := perDay(f.PerDay); got != want[f.Owner.Name].PerDay {
			t.Errorf("the finding about %s saves %s a day, the advice %s", f.Owner.Name, got, want[f.Owner.Name].PerDay)
		}
	}

	// The same hub with its page, which also has the peaks that the hub keeps.
	var asked atomic.Int32
	whole := httptest.NewServer(hub.NewHandler(store, nil, hub.HandlerOptions{View: func(access.Scope, query.Store, events.Log) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/"+remote.PeaksPage) {
				asked.Add(1)
			}
			page.ServeHTTP(w, r)
		})
	}}))
	t.Cleanup(whole.Close)
	samples := output("json")
	args[2] = whole.URL
	if diff := cmp.Diff(samples, output("json")); diff != "" || asked.Load() == 0 {
		t.Errorf("%d questions about peaks (-from samples +from hours):\n%s", asked.Load(), diff)
	}

	var report struct {
		Simulated string
		Workloads []struct {
			Owner   struct{ Name string }
			Devices int
			Used    *float64 `json:"devices_used"`
			Because string
			Advice  []struct {
				Text   string
				PerDay *float64 `json:"saves_per_day"`
			}
		}
	}
	if err := json.Unmarshal([]byte(output("json")), &report); err != nil {
		t.Fatal(err)
	}
	inJSON := map[string]sizingFacts{}
	for _, w := range report.Workloads {
		f := sizingFacts{w.Devices, -1, w.Because, ""}
		if w.Used != nil {
			f.Used = int(math.Round(*w.Used))
		}
		if len(w.Advice) > 0 {
			f.Advice, f.PerDay = w.Advice[0].Text, perDay(w.Advice[0].PerDay)
		}
		inJSON[w.Owner.Name] = f
	}
	if diff := cmp.Diff(want, inJSON); diff != "" || report.Simulated != "all" {
		t.Errorf("json (-page +report):\n%s", diff)
	}
	rows, err := csv.NewReader(strings.NewReader(output("csv"))).ReadAll()
	if err != nil || len(rows) < 1+len(want) {
		t.Fatal(len(rows), err)
	}
	table, html := output("table"), output("html")
	for name, f := range want {
		line := regexp.MustCompile(`(?m)^.*` + name + ` .*$`).FindString(table)
		if !strings.Contains(line, f.Advice) || !strings.Contains(line, f.PerDay) {
			t.Errorf("the table says of %s: %q, want %+v", name, line, f)
		}
		if !strings.Contains(html, f.Advice) || !strings.Contains(html, "<td>"+f.PerDay+"</td>") && f.PerDay != "" {
			t.Errorf("the page of the report lacks %+v of %s", f, name)
		}
	}
	if !strings.Contains(table, "SIMULATED") || !strings.Contains(html, "SIMULATED") {
		t.Error("a report on a demo does not say so")
	}
}

// Catches flags that are ignored.
func TestReportSizingErrors(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--findings", "--explain=x", "--quotas=x", "--columns=gpus"} {
		if _, err := reportOutput(t, "sizing", flag); err == nil || !strings.Contains(err.Error(), "sizing does not take") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
