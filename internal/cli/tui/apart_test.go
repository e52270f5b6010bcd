package tui

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches hosts of the same name in two clusters that are counted and shown as one, and a finding
// about one of them that appears on the other.
func TestApart(t *testing.T) {
	t.Parallel()
	s := Snapshot{
		Devices:  []Device{{Host: "n1", Cluster: "a", UUID: "g1"}, {Host: "n1", Cluster: "b", UUID: "g2"}, {Host: "n2", Cluster: "a", UUID: "g3"}},
		Findings: []Finding{{Host: "n1", Cluster: "b"}, {Host: "n2", Cluster: "a"}, {Host: "gone", Cluster: "a"}},
	}
	s.Apart()
	got := []string{}
	for _, d := range s.Devices {
		got = append(got, d.Host)
	}
	for _, f := range s.Findings {
		got = append(got, f.Host)
	}
	if diff := cmp.Diff([]string{"n1 @a", "n1 @b", "n2", "n1 @b", "n2", "gone"}, got); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	if n := s.totals().hosts; n != 3 {
		t.Errorf("%d hosts", n)
	}
}
