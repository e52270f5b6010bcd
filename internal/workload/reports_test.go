package workload

import (
	"fmt"
	"testing"
	"time"
)

// Catches a report that stands for ever, and a memory that grows with what senders make up.
func TestReports(t *testing.T) {
	now := time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)
	var r Reports
	if r.Reported("a", "training.steps", now) {
		t.Error("reported before")
	}
	r.Watch("a", now)
	if r.Report("b", "training.steps", now) || !r.Report("a", "training.steps", now) {
		t.Error("only a is watched")
	}
	if !r.Reported("a", "training.steps", now.Add(ReportedFor)) || r.Reported("a", "training.steps", now.Add(ReportedFor+1)) || r.Reported("a", "training.loss", now) {
		t.Error("a report of the steps stands for five minutes")
	}
	for i := range 3 * maxReports {
		r.Report(fmt.Sprint(i), "training.steps", now)
		r.Watch(fmt.Sprint(i), now)
	}
	if len(r.last) > maxReports || len(r.watched) > maxReports {
		t.Errorf("%d and %d are remembered", len(r.last), len(r.watched))
	}
	later := now.Add(2 * ReportedFor)
	if r.Report("late", "training.steps", later); !r.Reported("late", "training.steps", later) {
		t.Error("there is no room for a report after others have ended")
	}
}

// The job of a workload stays when its instance is replaced.
func TestJob(t *testing.T) {
	a := Workload{ID: "pod/1/c", Kind: "job", Name: "llm", Attributes: map[string]string{"k8s.namespace.name": "ml", "k8s.pod.name": "llm-0"}}
	b := Workload{ID: "pod/2/c", Kind: "job", Name: "llm", Attributes: map[string]string{"k8s.namespace.name": "ml", "k8s.pod.name": "llm-1"}}
	c := Workload{ID: "pod/3/c", Kind: "job", Name: "llm", Attributes: map[string]string{"k8s.namespace.name": "other", "k8s.pod.name": "llm-0"}}
	d := Workload{ID: "process/root/python3", Kind: "process", Name: "python3"}
	if a.JobKey() == "" || a.JobKey() != b.JobKey() || a.JobKey() == c.JobKey() || d.JobKey() != "" {
		t.Errorf("%q %q %q %q", a.JobKey(), b.JobKey(), c.JobKey(), d.JobKey())
	}
}
