package queue

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

var now = time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)

// add adds a sample of the cluster east, with labels in pairs.
func add(m *querytest.Memory, at time.Time, kind, name string, v float64, labels ...string) {
	l := query.Labels{fleet.LabelName: name, LabelCluster: "east", LabelScheduler: kind, "job": "gpumeter"}
	for i := 0; i < len(labels); i += 2 {
		l[labels[i]] = labels[i+1]
	}
	m.Add(l, at, v)
}

// Catches a list that is filled from another series, a sample that two senders report and that counts twice, a job of the
// last hour that still waits, and two schedulers of one name that are mixed up.
func TestAt(t *testing.T) {
	m := querytest.NewMemory()
	kube := func(name string, v float64, labels ...string) { add(m, now, "kubernetes", name, v, labels...) }
	kube(SeriesUp, 1)
	kube(SeriesJobs, 2, LabelQueue, "ml", LabelTeam, "red", LabelState, "pending")
	kube(SeriesPendingJobs, 2, LabelQueue, "ml", LabelTeam, "red", LabelReason, "cpu")
	kube(SeriesPending, 12, LabelQueue, "ml", LabelTeam, "red", LabelModel, "H100", LabelReason, "cpu")
	kube(SeriesPending, 12, LabelQueue, "ml", LabelTeam, "red", LabelModel, "H100", LabelReason, "cpu", "instance", "scraped")
	kube(SeriesPending, 4, LabelQueue, "ml", LabelTeam, "", LabelModel, "H100", LabelReason, "gpu")
	kube(SeriesAllocated, 12, LabelQueue, "ml", LabelTeam, "red", LabelModel, "H100")
	kube(SeriesDevices, 12, LabelModel, "H100", LabelDeviceState, "free")
	kube(SeriesStranded, 8, LabelModel, "H100", LabelCause, "cpu")
	kube(SeriesPlaceable, 1, LabelModel, "H100", LabelSize, "8")
	kube(SeriesPlaceable, 12, LabelModel, "H100", LabelSize, "1")
	kube(SeriesPlaceable, 7, LabelModel, "H100", LabelSize, "many")
	kube(SeriesFragmented, 0.333, LabelModel, "H100", LabelSize, "8")
	kube(SeriesUnusable, 0.778)
	job := func(name string, v float64, id, reason string) {
		kube(name, v, LabelQueue, "ml", LabelTeam, "red", LabelModel, "H100", LabelReason, reason, LabelJob, id, LabelJobName, "name-"+id)
	}
	job(SeriesWaiting, 4, "young", "gpu")
	job(SeriesWaitingTime, 60, "young", "gpu")
	job(SeriesWaiting, 8, "old", "cpu")
	job(SeriesWaitingTime, 3600, "old", "cpu")
	kube(SeriesWaiting, 4, LabelQueue, "other", LabelTeam, "other", LabelReason, "other", LabelJob, "other", LabelJobName, "other")
	add(m, now, "kueue", SeriesUsed, 12, LabelQueue, "train", LabelModel, "h100")
	add(m, now, "kueue", SeriesNominal, 8, LabelQueue, "train", LabelModel, "h100")
	add(m, now, "kueue", SeriesBorrowed, 4, LabelQueue, "train", LabelModel, "h100")
	add(m, now, "kueue", SeriesFairShare, 0.5, LabelQueue, "train")
	add(m, now.Add(-time.Hour), "kubernetes", SeriesPendingJobs, 9, LabelQueue, "old", LabelReason, "gpu")
	add(m, now, "slurm", SeriesUp, 0)
	got, err := At(t.Context(), m, now)
	want := []Cluster{
		{
			Name: "east", Scheduler: "kubernetes", Up: optional.Flag(true),
			Jobs:        []Count{{Key{Queue: "ml", Team: "red", State: "pending"}, 2}},
			PendingJobs: []Count{{Key{Queue: "ml", Team: "red", Reason: "cpu"}, 2}},
			Waiting: []Job{
				{ID: "old", Name: "name-old", Queue: "ml", Team: "red", Model: "H100", Reason: "cpu", Devices: 8, Seconds: optional.Of(3600.)},
				{ID: "young", Name: "name-young", Queue: "ml", Team: "red", Model: "H100", Reason: "gpu", Devices: 4, Seconds: optional.Of(60.)},
				{ID: "other", Name: "other", Queue: "other", Team: "other", Reason: "other", Devices: 4},
			},
			Pending: []Count{
				{Key{Queue: "ml", Team: "red", Model: "H100", Reason: "cpu"}, 12}, {Key{Queue: "ml", Model: "H100", Reason: "gpu"}, 4},
			},
			Allocated:  []Count{{Key{Queue: "ml", Team: "red", Model: "H100"}, 12}},
			Devices:    []Count{{Key{Model: "H100", State: "free"}, 12}},
			Stranded:   []Count{{Key{Model: "H100", Cause: "cpu"}, 8}},
			Placeable:  []Count{{Key{Model: "H100", Size: 1}, 12}, {Key{Model: "H100", Size: 8}, 1}},
			Fragmented: []Count{{Key{Model: "H100", Size: 8}, 0.333}},
			Unusable:   optional.Of(0.778),
		},
		{Name: "east", Scheduler: "kueue", Queues: []Queue{
			{Queue: "train", FairShare: optional.Of(0.5)},
			{Queue: "train", Model: "h100", Used: optional.Of(12.), Nominal: optional.Of(8.), Borrowed: optional.Of(4.)},
		}},
		{Name: "east", Scheduler: "slurm", Up: optional.Flag(false)},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Fatalf("%v (-want +got):\n%s", err, diff)
	}
	teams := By(got[0].Pending, func(k *Key) bool { *k = Key{Team: k.Team}; return true })
	if diff := cmp.Diff([]Count{{Key{Team: "red"}, 12}, {Key{}, 4}}, teams); diff != "" {
		t.Errorf("by team (-want +got):\n%s", diff)
	}
	if n := Sum(got[0].Pending, func(k Key) bool { return k.Reason != "gpu" }); n != 12 {
		t.Errorf("%v are pending for other reasons than devices, want 12", n)
	}
}
