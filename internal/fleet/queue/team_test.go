package queue

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// Catches a partition of Slurm, or a queue of a queueing system, that seems to be a team; a pod without a team belongs to its
// namespace.
func TestTeamsWithoutTeam(t *testing.T) {
	counts := []Count{{Key{Queue: "gpu", Team: "red"}, 4}, {Key{Queue: "gpu"}, 2}}
	clusters := []Cluster{{Scheduler: Kubernetes, Allocated: counts}, {Scheduler: slurm, Allocated: counts, Pending: counts}, {Scheduler: "kueue", Pending: counts}}
	got := Teams(clusters, &fleet.Fleet{}, nil)
	want := []Team{{Team: "red", Given: 8, Waiting: 8}, {Given: 2, Waiting: 4}, {Team: "gpu", Given: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
