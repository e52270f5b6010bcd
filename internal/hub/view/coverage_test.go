package view

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches a cost page that does not say what it lacks, and one that tells a team about the
// prices of others, or about time that others held.
func TestCostPageCoverage(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 10, 14, 12, 0, 0, 0, time.UTC)
	m := querytest.NewMemory()
	for s := 0; s <= 1200; s += 10 { // away after 20 of 60 minutes
		l := query.Labels{"gpu_uuid": "g", "gpu_index": "3", "gpu_model": "H100", "host_name": "n1", "gpu_workload_kind": "unallocated"}
		for name, v := range map[string]float64{fleet.SeriesUp: 1, fleet.SeriesUnallocatedTime: float64(s)} {
			series := query.Labels{"__name__": name}
			maps.Copy(series, l)
			m.Add(series, noon.Add(time.Duration(s)*time.Second), v)
		}
	}
	const file = "currency: EUR\nprices: [{rates: [{from: 2020-01-01, kind: spot, per_hour: 3}]}]\n"
	prices, err := cost.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	get := func(h http.Handler, path string, into any) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s %v", path, w.Code, w.Body, err)
		}
	}
	now := func() time.Time { return noon.Add(time.Hour) }
	accounts := Cost(m, prices, nil)
	whole := Handler(m, accounts, nil, Options{Now: now})
	accounts.Cover = nil // as the server does
	team := Handler(m, accounts, nil, Options{Now: now, Team: "a"})

	const path = "/cost?from=1791979200&to=1791982800" // noon and an hour later
	type gpu struct {
		UUID, Node, Index    string
		Known, Unknown, Cost float64
		Why                  []string
	}
	type nobody struct {
		Devices    int
		Time, Cost float64
	}
	type coverage struct {
		Known, Unknown, Cost float64
		GPUs                 []gpu
		NotSeen              nobody
	}
	var got struct {
		Coverage *coverage
		Total    struct{ Time, Cost float64 }
	}
	get(whole, path, &got)
	if got.Total.Time != 1200 || got.Total.Cost != 1 {
		t.Errorf("the total of what is known is %+v", got.Total)
	}
	want := &coverage{Known: 1200, Unknown: 2400, Cost: 2, GPUs: []gpu{{"g", "n1", "3", 1200, 2400, 2, []string{"not_seen_since"}}}, NotSeen: nobody{1, 2400, 2}}
	if diff := cmp.Diff(want, got.Coverage); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got.Coverage = nil
	if get(team, path, &got); got.Coverage != nil {
		t.Errorf("a team has %+v", got.Coverage)
	}
	for _, tt := range []struct {
		h    http.Handler
		want pricesAnswer
	}{{whole, pricesAnswer{Currency: "EUR", File: file}}, {team, pricesAnswer{Currency: "EUR", Team: "a"}}} {
		var got pricesAnswer
		get(tt.h, "/prices", &got)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("prices (-want +got):\n%s", diff)
		}
	}
}
