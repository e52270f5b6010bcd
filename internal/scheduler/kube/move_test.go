package kube

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// by returns the metadata of a pod with a controller of a kind.
func by(kind string) object {
	return object{"metadata": object{"ownerReferences": []any{object{"kind": kind, "name": "x", "controller": true}}}}
}

// Each kind of advice, and the pods that nobody can move. Catches a plan after which the pod does not fit, one with more or
// dearer moves than needed, and one that moves what would not come back.
func TestPlan(t *testing.T) {
	const gpuMessage = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
	waits := func(gpus int, cpu string, more ...object) object {
		return pod("w", "", gpus, cpu, append([]object{refused(gpuMessage)}, more...)...)
	}
	f := func(name, want string, nodes []object, pods ...object) {
		t.Helper()
		s := snapshot(t, nodes, pods)
		got := ""
		if plan, ok := NewPlanner(s).Plan(&s.find(t, "w").Demand); ok {
			got = plan.String()
			checkPlan(t, s, &s.find(t, "w").Demand, plan)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	pinned := object{"spec": object{"nodeSelector": object{"kubernetes.io/hostname": "a"}}}
	two := []object{node("a", "64"), node("b", "64")}
	job := by("Job")
	half := func(name, at string, gpus int, more ...object) object {
		return pod(name, at, gpus, "4", append([]object{job}, more...)...)
	}
	f("split pool", "on a if ml/small (1 nvidia.com/gpu, 4 CPUs and 8 GiB of memory) moved to b", two, half("big", "a", 3), half("small", "a", 1), half("other", "b", 4), waits(5, "8"))
	f("it fits already", "", two, half("big", "a", 8), waits(5, "8"))
	f("nothing helps", "", two, half("big", "a", 5), half("other", "b", 5), waits(5, "8"))
	f("two moves", "on a if ml/s1 (2 nvidia.com/gpu, 4 CPUs and 8 GiB of memory) moved to b and ml/s2 (2 nvidia.com/gpu, 4 CPUs and 8 GiB of memory) moved to b",
		two, half("s1", "a", 2), half("s2", "a", 2), half("other", "b", 4), waits(8, "8", pinned))
	f("the CPUs beside free devices", "on a if ml/build (60 CPUs and 8 GiB of memory) moved to b",
		[]object{node("a", "64"), node("b", "64"), node("c", "64")}, pod("build", "a", 0, "60", job), half("o1", "b", 8), half("o2", "c", 8, object{}), waits(8, "8"))
	f("the younger of two", "on a if ml/young (4 nvidia.com/gpu, 4 CPUs and 8 GiB of memory) moved to b", two,
		half("old", "a", 4, started(-5*time.Hour)), half("young", "a", 4, started(-time.Hour)), half("other", "b", 4), waits(4, "8", pinned))
	for what, more := range map[string]object{
		"no controller": {}, "a DaemonSet": by("DaemonSet"), "a static pod": by("Node"), "pinned": merge(by("Job"), pinned),
		"an annotation": merge(by("Job"), object{"metadata": object{"annotations": object{"karpenter.sh/do-not-disrupt": "true"}}}),
		"another one":   merge(by("Job"), object{"metadata": object{"annotations": object{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}}),
		"it ends":       merge(by("Job"), object{"metadata": object{"deletionTimestamp": epoch.Format(time.RFC3339)}}),
	} {
		f(what, "", two, pod("small", "a", 4, "4", more), half("other", "b", 4), waits(5, "8", pinned))
	}
}

func started(after time.Duration) object {
	return object{"status": object{"containerStatuses": []any{object{"state": object{"running": object{"startedAt": epoch.Add(after).Format(time.RFC3339)}}}}}}
}

// checkPlan carries out a plan.
func checkPlan(t *testing.T, s *Snapshot, d *Demand, plan Plan) {
	t.Helper()
	nodes := map[string]*Node{}
	for _, n := range s.Nodes {
		at := *n
		nodes[n.Name] = &at
	}
	for _, m := range plan.Moves {
		from, to := nodes[m.Pod.Node], nodes[m.To]
		if from == to || !m.Pod.fits(to) {
			t.Errorf("%s does not fit on %s", m.Pod.FullName(), m.To)
		}
		from.Left, from.Running = from.Left.plus(m.Pod.Requests), from.Running-1
		to.Left, to.Running = to.Left.minus(m.Pod.Requests), to.Running+1
	}
	if !d.fits(nodes[plan.Node]) {
		t.Errorf("it does not fit on %s after %s", plan.Node, plan)
	}
}

// Random clusters. Catches a plan that cannot be carried out, and one that is not found although moving a single pod is enough.
func TestPlanOfRandomClusters(t *testing.T) {
	for seed := range uint64(300) {
		r := seed
		next := func(n uint64) int { r = r*6364136223846793005 + 1442695040888963407; return int(r >> 33 % n) }
		var nodes, pods []object
		for i := range 3 + next(4) {
			name := fmt.Sprint("n", i)
			nodes = append(nodes, node(name, "32"))
			free := 8
			for j := 0; free > 0 && j < 5; j++ {
				gpus := 1 + next(4)
				if gpus = min(gpus, free); next(4) > 0 {
					pods = append(pods, pod(fmt.Sprintf("p%d-%d", i, j), name, gpus, fmt.Sprint(1+next(8)), by([]string{"Job", "DaemonSet"}[next(2)])))
				}
				free -= gpus
			}
		}
		pods = append(pods, pod("w", "", 1+next(8), fmt.Sprint(1+next(16)), refused("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")))
		s := snapshot(t, nodes, pods)
		d := &s.find(t, "w").Demand
		plan, ok := NewPlanner(s).Plan(d)
		if ok {
			checkPlan(t, s, d, plan)
		}
		if single := oneMove(s, d); single != (ok && len(plan.Moves) == 1) {
			t.Fatalf("seed %d: one move is enough: %v; the plan is %v %v", seed, single, ok, plan)
		}
	}
}

// oneMove reports whether a demand that does not fit would after one move, by trying all.
func oneMove(s *Snapshot, d *Demand) bool {
	if slices.ContainsFunc(s.Nodes, d.fits) {
		return false
	}
	for _, p := range s.Pods {
		for _, from := range s.Nodes {
			freed := *from
			freed.Left, freed.Running = from.Left.plus(p.Requests), from.Running-1
			if p.Node != from.Name || !p.Movable || !d.fits(&freed) {
				continue
			}
			for _, to := range s.Nodes {
				if to != from && p.fits(to) {
					return true
				}
			}
		}
	}
	return false
}
