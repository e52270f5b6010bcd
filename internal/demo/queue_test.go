//go:build linux

package demo

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/simulated"
)

// theScript is the script of the whole fleet.
var theScript = sync.OnceValues(func() (*simulated.Cluster, error) { return script(Fleet(), testNow.Add(-Age)) })

// clusterAt returns the cluster of the fleet at a time since boot.
func clusterAt(t *testing.T, up time.Duration) *kube.Snapshot {
	t.Helper()
	c, err := theScript()
	if err != nil {
		t.Fatal(err)
	}
	v := simulated.NewWatch(c, local.Vendors(), teamLabel).View(c.Start.Add(up))
	if v.Err != nil || v.Snapshot.Refused > 0 {
		t.Fatalf("%+v", v)
	}
	return v.Snapshot
}

// Catches a demo whose queue does not show what it is there to show: each job that waits, what for, and why.
func TestDemoQueue(t *testing.T) {
	t.Parallel()
	s := clusterAt(t, Age)
	var got []string
	for _, p := range s.Pods {
		if p.State.Waits() && p.Namespace != "ci" {
			got = append(got, fmt.Sprintf("%s of %s waits for %d: %s", p.FullName(), p.Team, p.Whole(s.Vendors), s.Reason(p)))
		}
	}
	want := []string{
		"product/ranker-0 of product waits for 2: held",
		"research/eval-suite-0 of research waits for 1: cpu",
		"research/llama-70b-0 of research waits for 4: gang",
		"research/llama-70b-1 of research waits for 4: gang",
		"research/llama-70b-2 of research waits for 4: gang",
		"research/llama-70b-3 of research waits for 4: gang",
		"research/mixtral-eval-0 of research waits for 2: gpu",
		"vision/detector-train-0 of vision waits for 4: gpu",
		"vision/segmentation-prod-0 of vision waits for 2: quota",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	room := s.Room(s.Reference())
	product := func(model string) string { o, _ := sim.OfferOf(model); return o.Product }
	pool := room.Pools[product("h100")]
	if pool == nil || pool.Free.Sum() != 4 || pool.Free.Placeable(4) != 0 {
		t.Errorf("the pool of H100 is not split: %+v", pool)
	}
	if pool := room.Pools[product("mi300x")]; pool == nil || pool.Stranded[scheduler.LacksCPU] != 2 {
		t.Errorf("no MI300X is stranded: %+v", pool)
	}
}

// Catches pods in Kubernetes that are not those on the devices, and the other way round, at any time: two sides of a
// demo that tell different stories.
func TestDemoPodsAreTenants(t *testing.T) {
	t.Parallel()
	tenants := map[string][]sim.Tenant{} // by host
	for _, m := range Fleet() {
		var err error
		if tenants[m.Host], err = sim.Tenants(sim.Config{Groups: m.Groups, Seed: hash(m.Host), Start: testNow.Add(-Age)}); err != nil {
			t.Fatal(err)
		}
	}
	for up := 12 * time.Hour; up < Age+12*time.Hour; up += 37 * time.Minute {
		var devices, pods []string
		for host, list := range tenants {
			count := map[string]int{}
			for _, x := range list {
				if x.There(up) && !x.Stolen && x.Pod.UID != "" {
					count[fmt.Sprintf("%s/%s %s of %s on %s", x.Pod.Namespace, x.Pod.Name, x.Pod.UID, x.Pod.Team, host)]++
				}
			}
			for name, n := range count {
				devices = append(devices, fmt.Sprintf("%s has %d", name, n))
			}
		}
		for _, p := range clusterAt(t, up).Pods {
			if !p.State.Has() {
				continue
			}
			n := int64(0)
			for _, count := range p.Devices {
				n += count
			}
			pods = append(pods, fmt.Sprintf("%s %s of %s on %s has %d", p.FullName(), p.UID, p.Team, p.Node, n))
		}
		slices.Sort(devices)
		slices.Sort(pods)
		if d := cmp.Diff(devices, pods); d != "" {
			t.Fatalf("after %s (-devices +pods):\n%s", up, d)
		}
	}
}

// Catches a node whose pods have more than it offers, and a pod that waits although it would fit: no scheduler does that.
func TestDemoCluster(t *testing.T) {
	t.Parallel()
	for up := 12 * time.Hour; up < Age+10*time.Hour; up += 23 * time.Minute {
		s := clusterAt(t, up)
		for _, n := range s.Nodes {
			for name, left := range n.Left.Devices {
				if left < 0 {
					t.Errorf("after %s %s has %d %s left", up, n.Name, left, name)
				}
			}
			if n.Left.CPU < 0 || n.Left.Memory < 0 {
				t.Errorf("after %s %s has %d CPUs and %d bytes left", up, n.Name, n.Left.CPU, n.Left.Memory)
			}
		}
		for _, p := range s.Pods {
			if soon := clusterAt(t, up+6*time.Second).Pod(p.Namespace, p.Name); p.State.Waits() && soon.State.Waits() && (s.Reason(p) == scheduler.New || s.Reason(p) == scheduler.Other) {
				t.Errorf("after %s %s waits for no reason: %s: %s", up, p.FullName(), s.Reason(p), p.Message)
			}
		}
	}
}

// Catches a queue in which nothing ever happens.
func TestDemoWaitsEnd(t *testing.T) {
	t.Parallel()
	c, err := theScript()
	if err != nil {
		t.Fatal(err)
	}
	w := simulated.NewWatch(c, local.Vendors(), teamLabel)
	for up := 24 * time.Hour; up < Age; up += 4 * time.Minute {
		w.View(c.Start.Add(up))
	}
	v := w.View(testNow)
	if tests, long := v.Waits.Scheduled["ci"], v.Waits.Scheduled["research"]; tests.Count < 30 || tests.Sum/float64(tests.Count) < 120 || long.Count < 4 {
		t.Errorf("%d tests waited %v s, %d jobs of research %v s", tests.Count, tests.Sum, long.Count, long.Sum)
	}
	if strings.Contains(fmt.Sprint(v.Waits.Started), "nil") || v.Waits.Started["research"].Count < 4 {
		t.Errorf("starts: %+v", v.Waits.Started["research"])
	}
}
