//go:build linux

package server

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/rules"
)

// Catches a node whose samples are refused for its number of series, and nobody is told: not on
// the page, not by an alert, not by a series, which counts for the node itself.
func TestNodeOverItsShareIsAFinding(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	clock := now
	store, err := hub.Open(t.TempDir(), hub.Options{NodeSeries: 3, Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	a := store.Appender(t.Context())
	for i := range 5 {
		a.Gauge(promlabels.FromStrings("__name__", "x", "host_name", "bad", "k8s_cluster_name", "c", "i", strconv.Itoa(i)), now.UnixMilli(), 1)
	}
	if _, err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	s, w := &Server{log: zap.NewNop(), store: store}, &rules.Watch{}
	for i := range 2 {
		if err := s.judgeFleet(t.Context(), store, w, now.Add(time.Duration(i)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	want := []rules.Change{{Since: now, Finding: rules.Finding{
		Rule: rules.OverShare, Severity: "WARN", Labels: map[string]string{"host_name": "bad", "k8s_cluster_name": "c", "share": "series"}, Value: 2,
		Reason: "node bad of cluster c: more than 3 series; the hub has refused the samples of further ones since " + now.Format(time.RFC3339),
		Action: `Find out which labels change all the time, starting with topk(10, count by (__name__) ({host_name="bad"})). If all series are needed, raise --max-series-per-node.`,
	}}}
	if diff := cmp.Diff(want, w.Active()); diff != "" {
		t.Error(diff)
	}
	list, err := store.Instant(t.Context(), `gpumeter_fleet_finding{rule="fleet_over_share", host_name="bad", share="series"}`, now.Add(time.Minute))
	if err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
	// Another hub process takes over and finds nothing wrong.
	clock = now.Add(20 * time.Minute)
	next := &rules.Watch{}
	if err := next.Load(t.Context(), store, now.Add(20*time.Minute), func(string) bool { return true }); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := s.judgeFleet(t.Context(), store, next, now.Add(time.Duration(20+i)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	changes, err := store.Events(t.Context(), events.Query{Names: []string{"gpu.finding"}})
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, e := range changes {
		states = append(states, e.Attributes["gpu.finding.state"]+" "+e.Attributes["host.name"]+" "+e.Attributes["gpu.finding.key"])
	}
	if diff := cmp.Diff([]string{"closed bad series", "open bad series"}, states); diff != "" {
		t.Error(diff)
	}
}
