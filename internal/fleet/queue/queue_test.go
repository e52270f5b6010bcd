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
	l := query.Labels{fleet.LabelName: name, fleet.LabelSchedulerCluster: "east", fleet.LabelScheduler: kind, "job": "gpumeter"}
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
	kube(fleet.SeriesSchedulerUp, 1)
	kube(fleet.SeriesQueueJobs, 2, fleet.LabelQueue, "ml", fleet.LabelQueueTeam, "red", fleet.LabelQueueState, "pending")
	kube(fleet.SeriesQueueWaiting, 2, fleet.LabelQueue, "ml", fleet.LabelQueueTeam, "red", fleet.LabelQueueReason, "cpu")
	kube(fleet.SeriesQueuePending, 12, fleet.LabelQueue, "ml", fleet.LabelQueueTeam, "red", fleet.LabelQueueModel, "H100", fleet.LabelQueueReason, "cpu")
	kube(fleet.SeriesQueuePending, 12, fleet.LabelQueue, "ml", fleet.LabelQueueTeam, "red", fleet.LabelQueueModel, "H100", fleet.LabelQueueReason, "cpu", "instance", "scraped")
	kube(fleet.SeriesQueuePending, 4, fleet.LabelQueue, "ml", fleet.LabelQueueTeam, "", fleet.LabelQueueModel, "H100", fleet.LabelQueueReason, "gpu")
	kube(fleet.SeriesQueueAllocated, 12, fleet.LabelQueue, "ml", fleet.LabelQueueTeam, "red", fleet.LabelQueueModel, "H100")
	kube(fleet.SeriesQueueDevices, 12, fleet.LabelQueueModel, "H100", fleet.LabelQueueDeviceState, "free")
	kube(fleet.SeriesQueueStranded, 8, fleet.LabelQueueModel, "H100", fleet.LabelQueueStranded, "cpu")
	kube(fleet.SeriesQueuePlaceable, 1, fleet.LabelQueueModel, "H100", fleet.LabelQueueSize, "8")
	kube(fleet.SeriesQueuePlaceable, 12, fleet.LabelQueueModel, "H100", fleet.LabelQueueSize, "1")
	kube(fleet.SeriesQueuePlaceable, 7, fleet.LabelQueueModel, "H100", fleet.LabelQueueSize, "many")
	kube(fleet.SeriesQueueFragmented, 0.333, fleet.LabelQueueModel, "H100", fleet.LabelQueueSize, "8")
	kube(fleet.SeriesQueueUnusable, 0.778)
	add(m, now.Add(-time.Hour), "kubernetes", fleet.SeriesQueueWaiting, 9, fleet.LabelQueue, "old", fleet.LabelQueueReason, "gpu")
	add(m, now, "slurm", fleet.SeriesSchedulerUp, 0)
	got, err := At(t.Context(), m, now)
	want := []Cluster{
		{
			Name: "east", Scheduler: "kubernetes", Up: true,
			Jobs:    []Count{{Key{Queue: "ml", Team: "red", State: "pending"}, 2}},
			Waiting: []Count{{Key{Queue: "ml", Team: "red", Reason: "cpu"}, 2}},
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
		{Name: "east", Scheduler: "slurm"},
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
