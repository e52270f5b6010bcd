package slurmctl

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Catches an answer about another job, free GPUs of other partitions, and a node that is named although it takes no jobs.
func TestWhy(t *testing.T) {
	now := time.Date(2026, 11, 19, 12, 0, 0, 0, time.Local)
	gpus := func(total, allocated int64) []GPUs { return []GPUs{{Type: "h100", Total: total, Allocated: allocated}} }
	s := &Snapshot{
		Time: now, Up: true,
		Jobs: []slurm.Job{
			{ID: "1", Tasks: 1, State: "RUNNING", User: "ann", Partition: "gpu", NodeList: "gn1", GPUs: 5},
			{ID: "2", Tasks: 1, State: "PENDING", Reason: "Resources", User: "bob", Partition: "gpu", GPUs: 16, CPUs: 64, Nodes: 2, Priority: 10, Submit: now.Add(-3 * time.Hour), Eligible: now.Add(-2 * time.Hour), Start: now.Add(time.Hour)},
			{ID: "3", ArrayJobID: "3", Tasks: 4, State: "PENDING", Reason: "Priority", User: "eve", Partition: "gpu", GPUs: 1, CPUs: 1, Nodes: 1, Priority: 90, Submit: now.Add(-time.Minute)},
			{ID: "4", Tasks: 1, State: "PENDING", Reason: "JobHeldUser", User: "eve", Partition: "cpu", CPUs: 1, Nodes: 1},
			{ID: "5", Tasks: 1, State: "PENDING", Reason: "Resources", User: "eve", Partition: "full", GPUs: 1, CPUs: 1},
		},
		Nodes: []Node{
			{Name: "gn1", State: "mixed", Partitions: []string{"gpu"}, CPUs: 64, CPUsAllocated: 8, GPUs: gpus(8, 5)},
			{Name: "gn2", State: "mixed", Partitions: []string{"gpu", "all"}, CPUs: 32, CPUsAllocated: 30, GPUs: gpus(8, 0)},
			{Name: "gn3", State: "drained", Partitions: []string{"gpu"}, CPUs: 64, GPUs: gpus(8, 0)},
			{Name: "gn4", State: "idle", Partitions: []string{"other"}, CPUs: 64, GPUs: gpus(8, 0)},
			{Name: "gn5", State: "allocated", Partitions: []string{"full"}, CPUs: 64, GPUs: gpus(8, 8)},
		},
	}
	f := func(id string, want ...string) {
		t.Helper()
		got, err := s.Why(id)
		if diff := cmp.Diff(strings.Join(want, "\n"), strings.Join(got, "\n")); diff != "" || err != nil {
			t.Errorf("job %s: %v (-want +got):\n%s", id, err, diff)
		}
	}
	f("2", "Job 2 of bob has waited 2h 0m for 16 GPUs and 64 CPUs on 2 nodes in gpu: what it asks for is taken.",
		"19 of 24 GPUs in gpu are free: gn2 (8 free) has 2 of 32 CPUs free; gn3 (8 free) is drained; gn1 (3 free) has 3 of 8 GPUs free.",
		"Slurm says: Resources, expected to start on 2026-11-19 13:00; 4 waiting jobs of gpu have a higher priority.")
	f("3", "Job 3 of eve has waited 1m 0s for 1 GPU and 1 CPU on 1 node in gpu: jobs with a higher priority are first.",
		"19 of 24 GPUs in gpu are free: gn2 (8 free) has room for a node's part of it; gn1 (3 free) has room for a node's part of it; gn3 (8 free) is drained.",
		"Slurm says: Priority.")
	f("4", "Job 4 of eve waits for 1 CPU on 1 node in cpu: it is held.", "Slurm says: JobHeldUser.")
	f("5", "Job 5 of eve waits for 1 GPU and 1 CPU on 1 node in full: what it asks for is taken.", "None of 8 GPUs in full is free.", "Slurm says: Resources.")
	f("1", "Job 1 does not wait: it is running on gn1.")
	if _, err := s.Why("99"); err == nil || err.Error() != "job 99 is not in the queue" {
		t.Errorf("no such job: %v", err)
	}
}
