package slurm

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/slurm"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Catches a job that counts on each of its nodes, one that was requeued and does not count again, and one whose start nobody knows.
func TestRunOfJob(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	f := func(j slurm.Job, node string, want *workload.Job) {
		t.Helper()
		if diff := cmp.Diff(want, Job{Job: j}.run("prod", node)); diff != "" {
			t.Errorf("%+v on %s (-want +got):\n%s", j, node, diff)
		}
	}
	j := slurm.Job{ID: "7", Partition: "gpu", NodeList: "gn[3-5]", Submit: at(10), Eligible: at(20), Start: at(30)}
	want := &workload.Job{ID: "slurm/prod/7/30", Scheduler: "slurm", Cluster: "prod", Queue: "gpu", Created: at(20), Started: at(30)}
	f(j, "gn3", want)
	f(j, "gn4", nil)
	f(j, "gn9", nil)
	j.Start, want.ID, want.Started = at(90), "slurm/prod/7/90", at(90)
	f(j, "gn3", want)
	j.Start = time.Time{}
	f(j, "gn3", nil)
	j.Start, j.Ambiguous = at(30), true
	f(j, "gn3", nil)
}
