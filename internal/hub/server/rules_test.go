//go:build linux

package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/rules"
	"github.com/gpumeter/gpumeter/internal/hub/triage"
)

// Catches a finding from before a restart of the hub that is never told to be over, and one that is
// alerted on although somebody acknowledged it.
func TestHubRulesRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now().Truncate(time.Second)
	var store *hub.Store
	var s *Server
	var w *rules.Watch
	var load func(time.Time) error
	start := func() {
		t.Helper()
		var err error
		if store, err = hub.Open(dir, hub.Options{}); err != nil {
			t.Fatal(err)
		}
		s, w = &Server{log: zap.NewNop(), store: store}, &rules.Watch{}
		once := s.loader(w, func(string) bool { return true })
		load = func(at time.Time) error { return once(t.Context(), at) }
	}
	look := func(at time.Time, hosts ...string) {
		t.Helper()
		a := store.Appender(t.Context())
		for _, host := range hosts {
			a.Gauge(promlabels.FromStrings("__name__", "gpu_up", "host_name", host, "gpu_uuid", "G"+host, "gpu_index", "0"), at.UnixMilli(), 1)
		}
		if _, err := a.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := load(at); err != nil {
			t.Fatal(err)
		}
		if err := s.judgeFleet(t.Context(), store, w, at); err != nil {
			t.Fatal(err)
		}
	}
	states := func() []string {
		t.Helper()
		list, err := store.Events(t.Context(), events.Query{Names: []string{"gpu.finding"}})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range list {
			out = append(out, e.Attributes["gpu.finding.state"]+" "+e.Attributes["host.name"]+" "+e.Attributes["gpu.finding.since"])
		}
		return out
	}
	// told returns the value of the series and the state of the alert.
	told := func(at time.Time) string {
		t.Helper()
		list, err := store.Instant(t.Context(), findingSeries, at)
		alerts := s.triaged(w.Alerts())
		if err != nil || len(list) != 1 || len(alerts) != 1 {
			t.Fatal(list, alerts, err)
		}
		return fmt.Sprint(list[0].Value, " ", alerts[0].State, " ", alerts[0].Annotations["suppressed_by"])
	}
	start()
	look(now.Add(-30*time.Minute), "a", "b")
	for i := range 10 {
		look(now.Add(time.Duration(i-20)*time.Minute), "a")
	}
	since := " b " + now.Add(-20*time.Minute).UTC().Format(time.RFC3339)
	if diff := cmp.Diff([]string{"open" + since}, states()); diff != "" {
		t.Fatal(diff)
	}
	if got := told(now.Add(-11 * time.Minute)); got != "1 firing " {
		t.Error(got)
	}
	var err error
	if s.marks, err = triage.Load(filepath.Join(dir, "triage.json"), func() time.Time { return now }); err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/findings/"+w.Alerts()[0].Annotations["finding"]+"/acknowledge", nil)
	answer := httptest.NewRecorder()
	s.marks.Handler(store)(answer, r, access.Grant{Name: "ops"})
	if answer.Code != http.StatusOK {
		t.Fatal(answer.Body)
	}
	look(now.Add(-10*time.Minute), "a")
	if got := told(now.Add(-10 * time.Minute)); got != "0 suppressed ops" {
		t.Errorf("an acknowledged finding is alerted on: %s", got)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	start()
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range 3 {
		look(now.Add(time.Duration(i-5)*time.Minute), "a", "b")
	}
	if diff := cmp.Diff([]string{"closed" + since, "open" + since}, states()); diff != "" {
		t.Error(diff)
	}
	list, err := store.Instant(t.Context(), findingSeries, now)
	if err != nil || len(list) != 0 || len(w.Alerts()) != 0 {
		t.Errorf("%v %v %v", list, w.Alerts(), err)
	}
}

// Catches a hub whose clock was two days ahead for a minute: its own samples made those of all
// agents too old, for good.
func TestHubClockAhead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now().Truncate(time.Second)
	open := func(clock time.Time) (*Server, *hub.Store) {
		t.Helper()
		store, err := hub.Open(dir, hub.Options{Now: func() time.Time { return clock }})
		if err != nil {
			t.Fatal(err)
		}
		return &Server{log: zap.NewNop(), store: store}, store
	}
	send := func(store *hub.Store, at time.Time) hub.Result {
		t.Helper()
		a := store.Appender(t.Context())
		a.Gauge(promlabels.FromStrings("__name__", "gpu_up", "host_name", "a"), at.UnixMilli(), 1)
		r, err := a.Commit()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	finding := rules.Finding{Rule: rules.OverQuota, Severity: "WARN", Labels: map[string]string{"quota": "x"}}
	file := filepath.Join(t.TempDir(), "quotas.yaml")
	put(t, file, "quotas: [{team: nlp, gpus: 1}]")
	q, err := newQuotas(t.Context(), []string{file}, nil, cost.Prices{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	for _, empty := range []bool{true, false} { // also before the first agent
		ahead := now.Add(48 * time.Hour)
		s, store := open(ahead)
		w := &rules.Watch{}
		for i := range 3 {
			at := ahead.Add(time.Duration(i) * time.Minute)
			if !empty {
				send(store, now.Add(time.Duration(i-10)*time.Minute))
			}
			if err := errors.Join(s.tell(t.Context(), w, []rules.Finding{finding}, at), s.judgeQuotas(t.Context(), store, q, at)); err != nil {
				t.Fatal(err)
			}
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s, store := open(now)
	defer store.Close()
	for _, late := range []time.Duration{23 * time.Hour, time.Hour, 0} {
		if r := send(store, now.Add(-late)); r.Accepted != 1 {
			t.Errorf("a sample %v late: %+v", late, r)
		}
	}
	w := &rules.Watch{}
	for i := range 2 {
		at := now.Add(time.Duration(i) * time.Minute)
		send(store, at)
		if err := s.tell(t.Context(), w, []rules.Finding{finding}, at); err != nil {
			t.Fatal(err)
		}
	}
	list, err := store.Instant(t.Context(), findingSeries, now.Add(time.Minute))
	if err != nil || len(list) != 1 || list[0].Value != 1 {
		t.Errorf("the finding after the clock was corrected: %v %v", list, err)
	}
}
