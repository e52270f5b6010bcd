package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Series of the receivers and those of the processor would not join if an attribute were
// empty in one and absent in the other, and a changing order would create new series.
func TestIdentity(t *testing.T) {
	w := Workload{ID: "pod/u1/train", Kind: "deployment", Name: "llm", Attributes: map[string]string{
		"slurm.qos": "high", "k8s.pod.name": "llm-0", "k8s.pod.uid": "", "k8s.pod.label.app": "x",
	}}
	want := []Attribute{
		{"gpu.workload.kind", "deployment"},
		{"gpu.workload.name", "llm"},
		{"k8s.pod.label.app", "x"},
		{"k8s.pod.name", "llm-0"},
		{"slurm.qos", "high"},
	}
	for range 20 {
		if diff := cmp.Diff(want, w.Identity()); diff != "" {
			t.Fatal(diff)
		}
	}
}

// Each attribute is documented once, with a meaning.
func TestMeanings(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range Meanings() {
		if seen[m.Key] || m.Text == "" {
			t.Errorf("%q: duplicate %t, meaning %q", m.Key, seen[m.Key], m.Text)
		}
		seen[m.Key] = true
	}
}
