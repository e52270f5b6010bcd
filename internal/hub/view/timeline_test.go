package view

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/queue"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
)

// oneEvent is a log with the start of a pod of team red.
type oneEvent events.Event

// Events implements events.Log.
func (l oneEvent) Events(_ context.Context, q events.Query) ([]events.Event, error) {
	for key, want := range q.Attributes {
		if l.Attributes[key] != want {
			return nil, nil
		}
	}
	return []events.Event{events.Event(l)}, nil
}

// Catches a pod that is not found by its name or taken for an older one of that name, moments that PromQL does not find in a real
// store, and a team that sees the pods of others.
func TestTimelinePage(t *testing.T) {
	t.Parallel()
	s, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	begin := noon.Add(-time.Hour)
	put := func(name string, from, to int, value func(s int) float64, pairs ...string) {
		a := s.Appender(t.Context())
		set := labels.FromStrings(append([]string{fleet.LabelName, name}, pairs...)...)
		for s := from; s <= to; s += 10 {
			a.Gauge(set, begin.Add(time.Duration(s)*time.Second).UnixMilli(), value(s))
		}
		if _, err := a.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	job := []string{queue.LabelScheduler, "kubernetes", queue.LabelCluster, "east", queue.LabelQueue, "ml", queue.LabelTeam, "red", queue.LabelJob, "u2", queue.LabelJobName, "train-0", queue.LabelReason, "gpu"}
	put(queue.SeriesWaiting, 610, 890, func(int) float64 { return 8 }, job...)
	put(queue.SeriesWaitingTime, 610, 890, func(s int) float64 { return float64(s - 600) }, job...)
	held := func(uid string) []string {
		return []string{fleet.LabelUUID, "GPU-1", fleet.LabelKind, "job", fleet.LabelWorkload, "train", fleet.LabelTeam, "red", fleet.LabelNamespace, "ml", fleet.LabelPod, "train-0", fleet.LabelPodUID, uid}
	}
	put(fleet.SeriesAllocation, 0, 300, func(int) float64 { return 1 }, held("u1")...)
	put(fleet.SeriesAllocation, 1000, 3600, func(int) float64 { return 1 }, held("u2")...)
	put(fleet.SeriesAllocatedTime, 1000, 3600, func(s int) float64 { return float64(s - 990) }, held("u2")...)
	put(fleet.SeriesActiveTime, 1000, 3600, func(s int) float64 { return float64(max(0, s-1503)) }, held("u2")...)
	unix := func(s int) string { return fmt.Sprint(begin.Add(time.Duration(s) * time.Second).Unix()) }
	log := oneEvent{Time: begin.Add(980 * time.Second), Name: "scheduler.job.started", Attributes: map[string]string{
		"k8s.pod.uid": "u2", "gpu.workload.team": "red",
		"scheduler.job.created_time": unix(600), "scheduler.job.scheduled_time": unix(900), "scheduler.job.started_time": unix(980),
	}}
	h := Handler(s, Accounts{}, log, at(noon))
	blue := access.Scope{Team: "blue"}
	scoped := Handler(hub.ScopedStore(s, blue), Accounts{}, hub.ScopedEvents(log, blue), at(noon))
	f := func(path, want string) {
		t.Helper()
		code, body := get(t, h, path+"&from="+strconv.FormatInt(begin.Unix(), 10))
		got := fmt.Sprint(code)
		if code == 200 {
			var a timelineAnswer
			if err := json.Unmarshal([]byte(body), &a); err != nil {
				t.Fatal(err)
			}
			got = a.ID
			for _, m := range a.Moments {
				got += fmt.Sprintf(" %v %s", time.UnixMilli(m.Time).Sub(begin).Seconds(), strings.TrimSpace(m.What+" "+m.Text))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	const all = "u2 600 created 600 waits gpu 900 scheduled 980 started 1000 held 1500 active"
	f("/timeline?pod=ml/train-0", all)
	f("/timeline?scheduler=kubernetes&cluster=east&id=u2", all)
	f("/timeline?pod=ml/other", "404")
	f("/timeline?pod=ml", "400")
	f("/timeline?x=", "400")
	f("/timeline?scheduler=slurm&id=4", "4")
	h = scoped
	f("/timeline?pod=ml/train-0", "404")
	f("/timeline?id=u2", "u2")
}
