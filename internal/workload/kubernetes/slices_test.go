package kubernetes

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/hami"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet"
)

const (
	gib  = 1 << 30
	gpu1 = "GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71"
	gpu2 = "GPU-53a2dede-36d7-7055-9a89-123456789012"
)

// sliced is a node with two GPUs, each offered three times by HAMi, of which a container was allocated some.
func sliced(ids []string, own []hami.Slice, err error) *node {
	n := &node{
		answered: true,
		state:    kubeapi.State{Synced: true},
		Snapshot: kubelet.Snapshot{
			Time: time.Now(), Allocations: []kubelet.Allocation{gave("ml", "chat", "main", ids...)},
			Offered: map[string][]string{"nvidia.com/gpu": strings.Fields(gpu1 + "-0 " + gpu1 + "-1 " + gpu1 + "-2 " + gpu2 + "-0 " + gpu2 + "-1 " + gpu2 + "-2")},
		},
		pods: []kubeapi.Pod{{UID: "u1", Namespace: "ml", Name: "chat", Phase: "Running", Owner: kubeapi.Owner{Kind: "pod", Name: "chat"}, SlicesErr: err}},
	}
	if own != nil {
		n.pods[0].Slices = map[string][]hami.Slice{"main": own}
	}
	return n
}

// Catches a slice that is looked for on the device whose replica the kubelet happened to pick, and annotations that give a container
// what the kubelet did not: devices of others, or of another sharing, or more than there are replicas.
func TestSlices(t *testing.T) {
	one := []hami.Slice{{Device: gpu2, Memory: 8 * gib, Compute: 0.3}}
	granted := func(id string, held, replicas int, limit workload.Limit) workload.Grant {
		return workload.Grant{Device: workload.Ref{Resource: "nvidia.com/gpu", IDs: []string{id}}, Held: held, Replicas: replicas, Limit: limit}
	}
	f := func(what string, n *node, refused bool, want ...workload.Grant) {
		t.Helper()
		s := n.source()
		got := append([]workload.Grant(nil), s.Grants()...)
		for i := range got {
			if got[i].Workload.ID != "pod/u1/main" {
				t.Errorf("%s: the grant is of %s", what, got[i].Workload.ID)
			}
			got[i].Workload = workload.Workload{}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		said := false
		for _, st := range s.Statuses() {
			said = said || st.Source == fromHAMi && st.Reason == workload.Failed && strings.Contains(st.Detail, "ml/chat")
		}
		if said != refused {
			t.Errorf("%s: refused: %v, want %v", what, said, refused)
		}
	}
	limit := workload.Limit{Memory: 8 * gib, Compute: 0.3}
	f("on another device than the kubelet picked", sliced([]string{gpu1 + "-2"}, one, nil), false, granted(gpu2, 1, 3, limit))
	f("two slices of one device", sliced([]string{gpu1 + "-0", gpu1 + "-1"}, append(one, one...), nil), false,
		granted(gpu2, 2, 3, workload.Limit{Memory: 16 * gib, Compute: 0.6}))
	f("two devices", sliced([]string{gpu1 + "-0", gpu1 + "-1"}, append([]hami.Slice{{Device: gpu1, Memory: gib}}, one...), nil), false,
		granted(gpu1, 1, 3, workload.Limit{Memory: gib}), granted(gpu2, 1, 3, limit))
	both := sliced([]string{gpu1 + "-2"}, one, nil)
	both.Allocations = append(both.Allocations, gave("ml", "chat", "side", gpu1+"-0"))
	both.pods[0].Slices["side"] = one
	if list := both.source().Grants(); len(list) != 2 || list[0].Held != 1 || list[1].Held != 1 || list[0].Limit != limit || list[1].Limit != limit {
		t.Errorf("two containers on one device: %+v", list)
	}
	f("more slices than replicas", sliced([]string{gpu1 + "-0"}, append(one, one...), nil), true)
	f("a device that is not offered", sliced([]string{gpu1 + "-0"}, []hami.Slice{{Device: "GPU-9", Memory: gib}}, nil), true)
	f("text that is not one", sliced([]string{gpu1 + "-0"}, nil, errors.New("malformed")), true)
	unknown := granted(gpu1+"-0", 1, 1, workload.Limit{})
	f("no annotation: nobody knows which device", sliced([]string{gpu1 + "-0"}, nil, nil), false, unknown)
	f("a whole device", sliced([]string{gpu1}, one, nil), false, granted(gpu1, 1, 1, workload.Limit{}))
	f("a replica of time slicing", sliced([]string{gpu1 + "::2"}, one, nil), false, granted(gpu1, 1, 1, workload.Limit{}))
	n := sliced(nil, one, nil)
	n.Allocations = nil
	f("nothing from the kubelet", n, false)
	n = sliced([]string{gpu1 + "-0"}, one, nil)
	n.pods[0].Phase = "Succeeded"
	f("a pod that has ended", n, false)
	n = sliced([]string{gpu1 + "-0"}, one, nil)
	n.Offered = nil
	f("what is offered is not known", n, false, granted(gpu2, 1, 1, limit))
}
