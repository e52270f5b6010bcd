package queue

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches a moment that is taken from another job, that follows from what a weighted counter has, an expected start that
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
		"100 created ", "100 waits gpu", "580 waits cpu", "905 scheduled ", "909 sandboxed ", "940 started ", "960 held ", "1200 active ", "3600 ended failed",
	}
	f("a pod", pod, []Record{ended, started}, all...)
	f("told twice, in another order", pod, []Record{started, ended, started}, all...)
	f("the agent of the node told when", pod, []Record{started, {Time: at(948), Name: "gpu.workload.start"}},
		"100 created ", "100 waits gpu", "580 waits cpu", "905 scheduled ", "909 sandboxed ", "940 started ", "948 held ", "1200 active ")
	f("no records", pod, nil, "100 created ", "100 waits gpu", "570 waits cpu", "960 held ", "1200 active ")
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
	f("a Slurm job in the queue", job, []Record{queued}, "1500 created ", "2010 active ")
	f("a Slurm job", job, []Record{queued, over}, "1500 created ", "1600 released ", "1980 started ", "2010 active ", "3000 ended completed")
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

// Catches a job that is older than the period and seems to get its device, and to begin its work, in it, because its counters are
// weighted: half a device for three hours counts as much as a whole one for half that time.
func TestTimelineOfPartsOfDevices(t *testing.T) {
	from := now.Add(-2 * time.Hour)
	f := func(name string, first, rate float64, since time.Duration, want ...string) {
		t.Helper()
		m := querytest.NewMemory()
		for at := from.Add(since); !at.After(now); at = at.Add(time.Minute) {
			l := query.Labels{fleet.LabelName: fleet.SeriesActiveTime, fleet.LabelPodUID: "u", fleet.LabelUUID: "GPU-1"}
			m.Add(l, at, first+rate*at.Sub(from.Add(since)).Seconds())
		}
		list, err := Timeline(t.Context(), m, JobID{Scheduler: Kubernetes, ID: "u"}, nil, from, now)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range list {
			got = append(got, fmt.Sprint(m.Time.Sub(from), " ", m.What))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("half a device for three hours", 1800, 0.5, time.Minute)
	f("and hardly used", 1, 0.001, time.Minute)
	f("its agent was away for an hour", 5400, 0.5, time.Hour)
	f("half a device since then", 30, 0.5, time.Hour, "1h0m0s active")
	f("held since then, and first used later", 0, 0.5, time.Hour, "1h0m0s active")
}

// Catches a job that was requeued and seems to have run from its first start to its first end, or to have ended although it
// runs again, whatever the order of its records.
func TestTimelineOfRequeuedJob(t *testing.T) {
	begin := now.Add(-2 * time.Hour)
	record := func(name, state string, start, end int) Record {
		r := Record{Name: name, Attributes: map[string]string{"slurm.job.state": state}}
		for key, s := range map[string]int{"slurm.job.start_time": start, "slurm.job.end_time": end} {
			if s > 0 {
				r.Attributes[key] = fmt.Sprint(begin.Unix() + int64(s))
			}
		}
		return r
	}
	f := func(name string, records []Record, want ...string) {
		t.Helper()
		for range 2 {
			list, err := Timeline(t.Context(), querytest.NewMemory(), JobID{Scheduler: "slurm", ID: "7"}, records, begin, now)
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
			slices.Reverse(records)
		}
	}
	first := record("slurm.job.end", "node_fail", 100, 200)
	f("it ran twice", []Record{first, record("slurm.job.end", "completed", 300, 900)}, "300 started ", "900 ended completed")
	f("it runs again", []Record{first, record("slurm.job", "running", 300, 9000)}, "300 started ")
	f("it ran, and the queue said so before", []Record{record("slurm.job", "running", 100, 9000), first}, "100 started ", "200 ended node_fail")
	f("it waits again", []Record{first, record("slurm.job", "pending", 5000, 9000)}, "100 started ", "200 ended node_fail")
	f("canceled before it ran", []Record{record("slurm.job.end", "cancelled", 0, 150)}, "150 ended cancelled")
}
