//go:build linux

package inspect

import (
	"testing"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// Catches a job that cannot be selected by its ID, its array's ID or both, and a process without a
// known workload that is selected.
func TestChoice(t *testing.T) {
	t.Parallel()
	w := workload.Workload{ID: "pod/u1/c", Kind: "deployment", Name: "llm", Attributes: map[string]string{
		"k8s.namespace.name": "ml", "k8s.pod.name": "llm-0", "slurm.job.id": "9", "slurm.array.job.id": "7", "slurm.array.task.id": "2",
	}}
	for _, c := range []Choice{{}, {PIDs: []uint{1, 4242}}, {Pod: "ml/llm-0"}, {Job: "9"}, {Job: "7"}, {Job: "7_2"}} {
		if !c.Takes(4242, &w) {
			t.Errorf("%+v does not select the process", c)
		}
	}
	for _, c := range []Choice{{PIDs: []uint{1}}, {Pod: "ml/llm-1"}, {Pod: "x/llm-0"}, {Job: "2"}, {Job: "7_3"}} {
		if c.Takes(4242, &w) {
			t.Errorf("%+v selects the process", c)
		}
	}
	for _, c := range []Choice{{Pod: "ml/llm-0"}, {Job: "9"}} {
		if c.Takes(4242, nil) {
			t.Errorf("%+v selects a process without a known workload", c)
		}
	}
}
