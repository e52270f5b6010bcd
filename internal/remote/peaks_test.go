package remote

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches peaks that change on their way from the hub, and a store without them that fails a report or says that there are none.
func TestRemotePeaks(t *testing.T) {
	at := time.UnixMilli(1791936001234)
	list := []query.Sample{
		{Labels: query.Labels{fleet.LabelName: "x", fleet.LabelUUID: "a", fleet.LabelPod: `"é`, "job": "scrape"}, Time: at, Value: 0.1 + 0.2},
		{Labels: query.Labels{fleet.LabelUUID: "b"}, Time: at, Value: math.Inf(1)},
		{Labels: query.Labels{fleet.LabelUUID: "c"}, Time: at, Value: 0},
	}
	ask := func(code int, body string) ([]query.Sample, string, error) {
		t.Helper()
		path := ""
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			path = r.URL.String()
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		c, err := query.Open(query.Config{URL: s.URL, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		got, err := New(c).OverTime(t.Context(), "max_over_time", "x", 7*24*time.Hour, at)
		return got, path, err
	}
	body, err := json.Marshal(NewPeaks(list))
	if err != nil {
		t.Fatal(err)
	}
	got, path, err := ask(http.StatusOK, string(body))
	want := []query.Sample{{Labels: query.Labels{fleet.LabelUUID: "a", fleet.LabelPod: `"é`}, Time: at, Value: 0.1 + 0.2}, {Labels: query.Labels{fleet.LabelUUID: "c"}, Time: at}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || path != "/api/page/peaks?f=max_over_time&name=x&until=1791936001234&window=604800" {
		t.Errorf("%s: %v (-want +got):\n%s", path, err, diff)
	}
	if _, _, err := ask(http.StatusNotFound, `{"error":"not found"}`); !errors.Is(err, fleet.ErrNotKept) {
		t.Errorf("a store without peaks: %v", err)
	}
	if _, _, err := ask(http.StatusOK, `{`); err == nil || errors.Is(err, fleet.ErrNotKept) {
		t.Errorf("a broken answer: %v", err)
	}
	if _, _, err := ask(http.StatusBadGateway, `{"error":"x"}`); err == nil || errors.Is(err, fleet.ErrNotKept) {
		t.Errorf("a hub that fails: %v", err)
	}
}
