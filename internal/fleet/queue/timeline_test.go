package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches a moment that is taken from another job, that follows from a sample instead of what it counts, an expected start that
// is taken for one, and reasons that are repeated.
func TestTimeline(t *testing.T) {
	begin := now.Add(-2 * time.Hour)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	unix := func(s int) string { return fmt.Sprint(at(s).Unix()) }
	m := querytest.NewMemory()
	for s := 120; s < 900; s += 30 {
		reason := "gpu"
		if s >= 600 {
			reason = "cpu"
		}
		for id, created := range map[string]int{"u1": 100, "u2": 10} {
			add(m, at(s), "kubernetes", SeriesWaiting, 8, LabelJob, id, LabelReason, reason)
			add(m, at(s), "kubernetes", SeriesWaitingTime, float64(s-created), LabelJob, id, LabelReason, reason)
		}
	}
	for s := 960; s < 3600; s += 10 {
		for i, first := range []int{1204, 1300} {
			l := func(name string) query.Labels {
				return query.Labels{fleet.LabelName: name, fleet.LabelPodUID: "u1", fleet.LabelUUID: fmt.Sprint("GPU-", i), fleet.LabelKind: "job"}
			}
			m.Add(l(fleet.SeriesAllocatedTime), at(s), float64(s-950))
			m.Add(l(fleet.SeriesActiveTime), at(s), float64(max(0, s-first)))
		}
	}
	started := Record{Time: at(940), Name: "scheduler.job.started", Attributes: map[string]string{
		"scheduler.job.created_time": unix(100), "scheduler.job.scheduled_time": unix(905), "scheduler.job.sandboxed_time": unix(909), "scheduler.job.started_time": unix(940),
		"scheduler.job.initialized_time": "soon",
	}}
	ended := Record{Time: at(3600), Name: "scheduler.job.ended", Attributes: map[string]string{
		"scheduler.job.created_time": unix(100), "scheduler.job.scheduled_time": unix(905), "scheduler.job.ended_time": unix(3600), "scheduler.job.result": "failed",
	}}
	f := func(name string, j JobID, records []Record, want ...string) {
		t.Helper()
		list, err := Timeline(t.Context(), m, j, records, begin, now)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range list {
			got = append(got, fmt.Sprintf("%v %s %s", m.Time.Sub(begin).Seconds(), m.What, m.Text))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	pod := JobID{Scheduler: Kubernetes, ID: "u1"}
	all := []string{
		"100 created ", "100 waits gpu", "580 waits cpu", "905 scheduled ", "909 sandboxed ", "940 started ", "950 held ", "1204 active ", "3600 ended failed",
	}
	f("a pod", pod, []Record{ended, started}, all...)
	f("told twice, in another order", pod, []Record{started, ended, started}, all...)
	f("the agent of the node told when", pod, []Record{started, {Time: at(948), Name: "gpu.workload.start"}},
		"100 created ", "100 waits gpu", "580 waits cpu", "905 scheduled ", "909 sandboxed ", "940 started ", "948 held ", "1204 active ")
	f("no records", pod, nil, "100 created ", "100 waits gpu", "570 waits cpu", "950 held ", "1204 active ")
	f("another", JobID{Scheduler: Kubernetes, ID: "u3"}, nil)

	for s := 2010; s < 3000; s += 10 {
		m.Add(query.Labels{fleet.LabelName: fleet.SeriesActiveTime, fleet.LabelSlurmJob: "7", fleet.LabelSlurmCluster: "prod"}, at(s), float64(s-2000))
		m.Add(query.Labels{fleet.LabelName: fleet.SeriesActiveTime, fleet.LabelSlurmJob: "7", fleet.LabelSlurmCluster: "test"}, at(s), float64(s-1000))
	}
	queued := Record{Name: "slurm.job", Attributes: map[string]string{"slurm.job.submit_time": unix(1500), "slurm.job.start_time": unix(9000), "slurm.job.end_time": unix(9900), "slurm.job.state": "pending"}}
	over := Record{Name: "slurm.job.end", Attributes: map[string]string{
		"slurm.job.submit_time": unix(1500), "slurm.job.eligible_time": unix(1600), "slurm.job.start_time": unix(1980), "slurm.job.end_time": unix(3000), "slurm.job.state": "completed",
	}}
	job := JobID{Scheduler: "slurm", Cluster: "prod", ID: "7"}
	f("a Slurm job in the queue", job, []Record{queued}, "1500 created ", "2000 active ")
	f("a Slurm job", job, []Record{queued, over}, "1500 created ", "1600 released ", "1980 started ", "2000 active ", "3000 ended completed")
}

// Catches a job that waits anew at each sample, where samples are farther apart than the steps of the search.
func TestTimelineOfRareSamples(t *testing.T) {
	m := querytest.NewMemory()
	for i := range 30 {
		add(m, now.Add(time.Duration(4*i-120)*time.Minute), Kubernetes, SeriesWaiting, 8, LabelJob, "u", LabelReason, "gpu")
	}
	got, err := Timeline(t.Context(), m, JobID{Scheduler: Kubernetes, ID: "u"}, nil, now.Add(-3*time.Hour), now)
	if err != nil || len(got) != 1 || got[0].What != AtWaits || got[0].Text != "gpu" {
		t.Errorf("%v %v, want one moment from which on it waits", got, err)
	}
}
