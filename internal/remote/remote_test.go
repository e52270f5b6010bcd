package remote

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches usage that changes on its way from the hub, an unknown value that becomes zero, and a store
// that is no hub, or fails, and is believed to have no usage.
func TestRemoteUsage(t *testing.T) {
	day := time.Date(2026, 10, 14, 0, 0, 0, 0, time.UTC)
	a, b := query.Labels{"gpu_uuid": "a", "gpu_workload_team": `réd, "q"`}, query.Labels{"gpu_uuid": "b"}
	want := &fleet.Day{
		Known: true, Refused: 2, Dropped: 7, Twice: map[string]fleet.Seconds{"a\xffn1": 7}, Kept: day.Add(time.Hour),
		Rows: []fleet.DayRow{
			{Key: fleet.KeyOf(a), Labels: a, Sums: fleet.Sums{Held: 86400e6, Active: 0, HasActive: true, Energy: 1<<53 + 1, HasEnergy: true}},
			{Key: fleet.KeyOf(b), Labels: b, Sums: fleet.Sums{Held: 1, Unmeasured: 1}},
		},
		Late:   []fleet.LateRow{{Labels: b, Held: 3, At: day.Add(1234 * time.Millisecond)}},
		Hourly: map[string]*fleet.DayHours{"a\xffn1": {0: 7, 23: 3600}, "b\xff": &wholeDay},
	}
	remote := func(code int, contentType, body string, path *string) *Store {
		t.Helper()
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if path != nil {
				*path = r.URL.String()
			}
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(code)
			fmt.Fprint(w, body)
		}))
		t.Cleanup(s.Close)
		c, err := query.Open(query.Config{URL: s.URL, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return New(c)
	}
	body, err := json.Marshal(NewDay(want, nil))
	if err != nil {
		t.Fatal(err)
	}
	var path string
	got, err := remote(200, "application/json", string(body), &path).Usage(t.Context(), day, day.Add(time.Hour))
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(fleet.Day{}), cmpopts.EquateComparable(fleet.RowKey{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	store := remote(200, "application/json", string(body), &path)
	for _, asked := range []bool{true, false} {
		path = ""
		hourly, err := store.Hourly(t.Context(), day, day.Add(time.Hour))
		if diff := cmp.Diff(want.Hourly, hourly); diff != "" || err != nil || asked != (path != "") {
			t.Errorf("%v, asked for %q (-want +got):\n%s", err, path, diff)
		}
	}
	some := remote(200, "application/json", string(body), &path).Narrow([]string{"a", "b&c"}).(*Store)
	if _, err := some.Usage(t.Context(), day, day.Add(time.Hour)); err != nil || path != "/api/page/usage?day=2026-10-14&until=1791939600000&uuid=a&uuid=b%26c" {
		t.Errorf("asked for %s, %v", path, err)
	}
	if got := NewDay(want, []string{"b"}); len(got.Rows) != 1 || len(got.Twice) != 0 || len(got.Late) != 1 || len(got.Hourly) != 1 {
		t.Errorf("one device is %+v", got)
	}
	if _, err := remote(200, "application/json", string(body), &path).Usage(t.Context(), day, day.Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if path != "/api/page/usage?day=2026-10-14&until=1791939600000" {
		t.Errorf("asked for %s", path)
	}
	f := func(code int, contentType, body, want string) {
		t.Helper()
		if _, err := remote(code, contentType, body, nil).Usage(t.Context(), day, day.Add(time.Hour)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d %s: %v, want %s", code, contentType, err, want)
		}
	}
	f(404, "text/plain", "404 page not found", fleet.ErrNotKept.Error())
	f(404, "application/json", `{"error":"not found"}`, fleet.ErrNotKept.Error())
	f(200, "text/html", "<html>", fleet.ErrNotKept.Error())
	f(504, "application/json", `{"error":"late"}`, "504 Gateway Timeout")
	f(200, "application/json", `[]`, "is invalid")
}
