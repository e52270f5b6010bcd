package view

import (
	"encoding/json"
	"slices"
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
	"github.com/gpumeter/gpumeter/internal/query"
)

// queueHub returns a hub whose cluster has 16 H100, of which 4 are free in front of jobs that wait for 12, and 8 free
// others for which nothing waits. Half of the 20 jobs that red submitted in the last hour waited up to a minute, the others up to an
// hour.
func queueHub(t *testing.T) *hub.Store {
	t.Helper()
	s, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	a := s.Appender(t.Context())
	put := func(name string, value func(part float64) float64, pairs ...string) {
		set := labels.FromStrings(append([]string{fleet.LabelName, name}, pairs...)...)
		for at := noon.Add(-time.Hour); !at.After(noon); at = at.Add(time.Minute) {
			a.Gauge(set, at.UnixMilli(), value(at.Sub(noon.Add(-time.Hour)).Hours()))
		}
	}
	stands := func(v float64) func(float64) float64 { return func(float64) float64 { return v } }
	kube := func(name string, v float64, pairs ...string) {
		put(name, stands(v), append([]string{queue.LabelScheduler, "kubernetes", queue.LabelCluster, "east"}, pairs...)...)
	}
	const h100, other = "NVIDIA-H100-80GB-HBM3", "Gaudi_3"
	kube(queue.SeriesUp, 1)
	put(queue.SeriesUp, stands(0), queue.LabelScheduler, "slurm", queue.LabelCluster, "east")
	for _, n := range []struct {
		model, state string
		n            float64
	}{{h100, "allocated", 12}, {h100, "free", 4}, {h100, "drained", 0}, {h100, "down", 0}, {other, "free", 8}} {
		kube(queue.SeriesDevices, n.n, queue.LabelModel, n.model, queue.LabelDeviceState, n.state)
	}
	kube(queue.SeriesStranded, 2, queue.LabelModel, h100, queue.LabelCause, "cpu")
	kube(queue.SeriesPlaceable, 1, queue.LabelModel, h100, queue.LabelSize, "2")
	kube(queue.SeriesUnusable, 0.75)
	gone := []string{queue.LabelQueue, "ml", queue.LabelTeam, "green", queue.LabelModel, "B200", queue.LabelReason, "affinity", queue.LabelJob, "u-gone", queue.LabelJobName, "gone"}
	kube(queue.SeriesWaiting, 1, gone...)
	kube(queue.SeriesWaitingTime, 30, gone...)
	for _, j := range []struct {
		team, id, reason string
		gpus, seconds    float64
	}{{"red", "u-old", "cpu", 8, 7200}, {"blue", "u-young", "gpu", 4, 60}, {"blue", "u-gated", "held", 2, 90}} {
		team := []string{queue.LabelQueue, "ml", queue.LabelTeam, j.team, queue.LabelModel, h100, queue.LabelReason, j.reason}
		kube(queue.SeriesPending, j.gpus, team...)
		kube(queue.SeriesPendingJobs, 1, queue.LabelQueue, "ml", queue.LabelTeam, j.team, queue.LabelReason, j.reason)
		one := append(slices.Clone(team), queue.LabelJob, j.id, queue.LabelJobName, j.id[2:])
		kube(queue.SeriesWaiting, j.gpus, one...)
		kube(queue.SeriesWaitingTime, j.seconds, one...)
	}
	kube(queue.SeriesAllocated, 12, queue.LabelQueue, "ml", queue.LabelTeam, "red", queue.LabelModel, h100)
	kube(queue.SeriesJobs, 3, queue.LabelQueue, "ml", queue.LabelTeam, "red", queue.LabelState, "pending")
	put(queue.SeriesUsed, stands(12), queue.LabelScheduler, "kueue", queue.LabelCluster, "east", queue.LabelQueue, "train")
	put(queue.SeriesNominal, stands(8), queue.LabelScheduler, "kueue", queue.LabelCluster, "east", queue.LabelQueue, "train")
	waits := []string{queue.LabelScheduler, "kubernetes", queue.LabelCluster, "east", queue.LabelQueue, "ml"}
	grows := func(v float64) func(float64) float64 { return func(part float64) float64 { return v * part } }
	put(fleet.HistogramCount(queue.HistogramWait), grows(20), waits...)
	put(fleet.HistogramSum(queue.HistogramWait), grows(20*900), waits...)
	for bound, n := range map[string]float64{"60": 10, "3600": 20, "+Inf": 20} {
		put(fleet.Buckets(queue.HistogramWait), grows(n), append([]string{fleet.LabelBucket, bound}, waits...)...)
	}
	device := []string{fleet.LabelUUID, "GPU-1", fleet.LabelIndex, "0", fleet.LabelModel, "NVIDIA H100 80GB HBM3", fleet.LabelVendor, "nvidia", fleet.LabelHost, "n1"}
	put(fleet.SeriesUp, stands(1), device...)
	holder := append(slices.Clone(device), fleet.LabelKind, "job", fleet.LabelWorkload, "train", fleet.LabelTeam, "red", fleet.LabelPodUID, "u")
	put(fleet.SeriesAllocation, stands(1), holder...)
	put(fleet.SeriesWorkloadUtilization, stands(0.5), holder...)
	if _, err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	return s
}

// Catches money for free devices for which nobody waits, a job that somebody holds counted as one that waits for devices, names of
// models that schedulers and drivers write differently, a team that sees the jobs of others, a scheduler
// without jobs that does not answer and is not there, and one of which a team cannot know that and seems not to answer, or to have nothing free,
// and all devices that seem free in front of a job for a model that is not there.
func TestQueuePage(t *testing.T) {
	t.Parallel()
	s := queueHub(t)
	accounts := Accounts{
		Currency: "USD",
		Price:    func(query.Labels, time.Time) (fleet.Hourly, bool) { return fleet.Hourly{Device: 2}, true },
	}
	var body string
	ask := func(store query.Store, team string) queueAnswer {
		t.Helper()
		var code int
		h := Handler(store, accounts, nil, Options{Now: func() time.Time { return noon }, Team: team, ShortModel: func(m string) string { return m }})
		code, body = get(t, h, "/queue?from="+strconv.FormatInt(noon.Add(-time.Hour).Unix(), 10))
		if code != 200 {
			t.Fatal(code, body)
		}
		var a queueAnswer
		if err := json.Unmarshal([]byte(body), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	got := ask(s, "")
	want := queueAnswer{
		At: noon.Unix(), To: noon.Unix(), From: noon.Add(-time.Hour).Unix(), Currency: "USD",
		Clusters: []queueSource{{"east", "kubernetes", new(true), 3, 14, 0.75}, {"east", "kueue", nil, 0, 0, 0}, {"east", "slurm", new(false), 0, 0, 0}},
		Pools: []queuePool{
			{
				Cluster: "east", Model: "NVIDIA H100 80GB HBM3", All: 16, Allocated: 12, Free: 4, Pending: 12, Blocked: 4, PerDay: 4 * 24 * 2,
				Stranded: map[string]float64{"cpu": 2}, Placeable: map[int]float64{2: 1},
			},
			{Cluster: "east", Model: "Gaudi 3", All: 8, Free: 8, Stranded: map[string]float64{}, Placeable: map[int]float64{}},
		},
		Jobs: []queueJob{
			{Cluster: "east", Scheduler: "kubernetes", Queue: "ml", Team: "red", ID: "u-old", Name: "old", Model: "NVIDIA H100 80GB HBM3", Reason: "cpu", Because: queue.Because("cpu"), GPUs: 8, Seconds: 7200, Free: 4},
			{Cluster: "east", Scheduler: "kubernetes", Queue: "ml", Team: "blue", ID: "u-gated", Name: "gated", Model: "NVIDIA H100 80GB HBM3", Reason: "held", Because: queue.Because("held"), GPUs: 2, Seconds: 90, Free: 4},
			{Cluster: "east", Scheduler: "kubernetes", Queue: "ml", Team: "blue", ID: "u-young", Name: "young", Model: "NVIDIA H100 80GB HBM3", Reason: "gpu", Because: queue.Because("gpu"), GPUs: 4, Seconds: 60, Free: 4},
			{Cluster: "east", Scheduler: "kubernetes", Queue: "ml", Team: "green", ID: "u-gone", Name: "gone", Model: "B200", Reason: "affinity", Because: queue.Because("affinity"), GPUs: 1, Seconds: 30, Free: 0},
		},
		Teams:  []queueTeam{{Team: "red", Asked: 20, Given: 12, Waiting: 8, Busy: 0.5}, {Team: "blue", Asked: 6, Waiting: 6}},
		Queues: []queueShare{{Cluster: "east", Scheduler: "kueue", Queue: "train", Used: 12, Nominal: 8}},
		Missed: missed{Time: 4 * 3600, Cost: 4 * 2}, // 4 of 8 and 4 that were waited for, for an hour
		Waits:  []queueWait{{"east", "kubernetes", "ml", 20, 900, 60, 60 + 0.9*3540, 0}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	own := ask(hub.ScopedStore(s, access.Scope{Team: "blue"}), "blue")
	if len(own.Jobs) != 2 || own.Jobs[0].Name != "gated" || own.Jobs[1].Name != "young" || len(own.Teams) != 1 || len(own.Pools)+len(own.Queues)+len(own.Waits) != 0 {
		t.Errorf("blue sees %+v", own)
	}
	if n := strings.Count(body, `"free":null`); n != 2 {
		t.Errorf("%d jobs have no number of free devices, want 2, for blue sees no devices: %s", n, body)
	}
	if diff := cmp.Diff([]queueSource{{"east", "kubernetes", nil, 2, 6, 0}}, own.Clusters); diff != "" {
		t.Errorf("schedulers that blue sees (-want +got):\n%s", diff)
	}
}
