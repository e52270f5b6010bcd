package live

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

type object = kubeapitest.Object

const gpu = "nvidia.com/gpu"

var vendors = device.Vendors{{Name: "nvidia", Resources: []device.Resource{{Name: gpu, Unit: device.Whole}}}}

// claiming are vendors with a driver for claims.
var claiming = device.Vendors{{Name: "nvidia", Resources: []device.Resource{{Name: gpu, Unit: device.Whole}, {Name: "gpu.nvidia.com", Unit: device.Claim}}}}

func asks(gpus string) object {
	return object{"spec": object{"containers": []object{{"name": "main", "resources": object{"requests": object{gpu: gpus}}}}}}
}

func offers(gpus string) object {
	return object{"status": object{"allocatable": object{gpu: gpus, "cpu": "64", "memory": "500Gi", "pods": "110"}}}
}

// watch starts a Watcher on a server.
func watch(t *testing.T, url, name string) *Watcher {
	t.Helper()
	file, err := kubeapitest.Kubeconfig(t.TempDir(), url)
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubeapi.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	w := NewWatcher(api, Config{Vendors: vendors, Lease: kubeapi.Lease{Name: "scheduler", Identity: name}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

// text describes a View: who leads, pods and nodes, devices that are taken.
func text(v View) string {
	if !v.Leads {
		return "holder " + v.Holder
	}
	if v.Snapshot == nil {
		return "nothing is known"
	}
	s := fmt.Sprintf("%d pods", len(v.Snapshot.Pods))
	if v.Snapshot.Nodes == nil {
		return s + ", no nodes"
	}
	for _, n := range v.Snapshot.Nodes {
		s += fmt.Sprintf(", %s has %d of %d taken", n.Name, n.Allocatable.Devices[gpu]-n.Left.Devices[gpu], n.Allocatable.Devices[gpu])
	}
	return s
}

// Catches a change that is missed, a list that is repeated, and a second process that watches as well.
func TestWatcher(t *testing.T) {
	s := kubeapitest.New()
	s.PutNode(kubeapitest.Node("gn1", offers("8")))
	s.PutNode(kubeapitest.Node("plain"))
	s.PutPod(kubeapitest.Pod("gn1", "ml", "a", "ua", asks("5")))
	url, stop := s.Serve()
	defer stop()
	first := watch(t, url, "first")
	f := func(w *Watcher, want string) {
		t.Helper()
		await.NoError(t, func() error {
			if got := text(w.View(time.Now())); got != want {
				return fmt.Errorf("%s, want %s", got, want)
			}
			return nil
		})
	}
	f(first, "1 pods, gn1 has 5 of 8 taken")
	second := watch(t, url, "second")
	f(second, "holder first")

	s.PutPod(kubeapitest.Pod("", "ml", "b", "ub", asks("4"), object{"status": object{"phase": "Pending"}}))
	f(first, "2 pods, gn1 has 5 of 8 taken")
	s.DeletePod("ml", "a")
	s.PutPod(kubeapitest.Pod("gn1", "ml", "b", "ub", asks("4")))
	s.PutNode(kubeapitest.Node("gn2", offers("4")))
	f(first, "1 pods, gn1 has 4 of 8 taken, gn2 has 0 of 4 taken")
	s.DropWatches(true) // 410
	s.DeleteNode("gn2")
	f(first, "1 pods, gn1 has 4 of 8 taken")
	await.NoError(t, func() error {
		lists := 0
		for _, r := range s.Requests() {
			if strings.Contains(r, "/api/v1/pods") && !strings.Contains(r, "watch=true") {
				lists++
			}
		}
		if lists != 2 {
			return fmt.Errorf("%d lists of pods, want 2: the first, and one after 410", lists)
		}
		return nil
	})
}

// Catches one missing permission that hides what the others show, and values that outlive the connection.
func TestWatcherWithoutAnswers(t *testing.T) {
	s := kubeapitest.New()
	s.PutNode(kubeapitest.Node("gn1", offers("8")))
	s.PutPod(kubeapitest.Pod("gn1", "ml", "a", "ua", asks("5")))
	s.Fail("/api/v1/nodes", kubeapitest.Fault{Status: 403})
	url, stop := s.Serve()
	defer stop()
	w := watch(t, url, "first")
	f := func(want, wrong string) {
		t.Helper()
		await.NoError(t, func() error {
			v := w.View(time.Now())
			said := ""
			if v.Err != nil {
				said = v.Err.Error()
			}
			if got := text(v); got != want || said != wrong {
				return fmt.Errorf("%s, %q; want %s, %q", got, said, want, wrong)
			}
			return nil
		})
	}
	f("1 pods, no nodes", "cannot watch the nodes: the test says 403")
	s.Heal()
	f("1 pods, gn1 has 5 of 8 taken", "")
	s.Fail("/api/v1/nodes", kubeapitest.Fault{Status: 503})
	s.DropWatches(false)
	f("1 pods, no nodes", "cannot watch the nodes: the test says 503")
	s.Heal()
	f("1 pods, gn1 has 5 of 8 taken", "")
	s.Fail("/api/v1/pods", kubeapitest.Fault{Status: 503})
	s.DropWatches(false)
	f("nothing is known", "cannot watch the pods: the test says 503")
	s.Heal()
	f("1 pods, gn1 has 5 of 8 taken", "")
}

// Catches a large cluster that is listed in one piece or more than once: 10,000 pods on 1,000 nodes.
func TestWatcherRequests(t *testing.T) {
	s := kubeapitest.New()
	for i := range 1000 {
		s.PutNode(kubeapitest.Node(fmt.Sprintf("gn%03d", i), offers("8")))
	}
	for i := range 10_000 {
		s.PutPod(kubeapitest.Pod(fmt.Sprintf("gn%03d", i%1000), "ml", fmt.Sprint("p", i), fmt.Sprint("u", i), asks(fmt.Sprint(i%2))))
	}
	url, stop := s.Serve()
	defer stop()
	w := watch(t, url, "first")
	await.True(t, "all pods and nodes are known", func() bool {
		v := w.View(time.Now())
		return v.Snapshot != nil && len(v.Snapshot.Pods) == 5000 && len(v.Snapshot.Nodes) == 1000
	})
	want := map[string]int{"list of pods": 20, "list of nodes": 2, "watch of pods": 1, "watch of nodes": 1}
	await.NoError(t, func() error {
		got := map[string]int{}
		for _, r := range s.Requests() {
			path, query, _ := strings.Cut(r, "?")
			verb := "list"
			if strings.Contains(query, "watch=true") {
				verb = "watch"
			}
			if resource, ok := strings.CutPrefix(path, "GET /api/v1/"); ok {
				got[verb+" of "+resource]++
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("requests (-want +got):\n%s", diff)
		}
		return nil
	})
}

// Catches evictions that begin at zero with each lead, count twice for who is elected next, are lost when they happen while nobody
// watches, or are reported before they are in the Lease.
func TestEvictionsOverLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		evict := func(name, at string) {
			s.PutPod(kubeapitest.Pod("gn1", "ml", name, "u"+name, asks("1"), object{"status": object{"conditions": []object{
				{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "lastTransitionTime": at},
			}}}))
		}
		for _, name := range []string{"a", "b", "c"} {
			s.PutPod(kubeapitest.Pod("gn1", "ml", name, "u"+name, asks("1")))
		}
		f := func(p *process, when string, want int64) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			v := p.View(time.Now())
			if got := v.Waits.Evicted[kube.Eviction{Queue: "ml", Reason: "preempted"}]; !v.Leads || got != want {
				t.Errorf("%s: leads %v, %d evictions, want %d", when, v.Leads, got, want)
			}
		}
		evict("old", "1999-12-31T20:00:00Z")
		first := begin(t, s, "a")
		f(first, "before anybody watched", 0)
		evict("a", "2000-01-01T00:01:00Z")
		f(first, "one", 1)
		s.Fail("/apis/coordination.k8s.io", kubeapitest.Fault{Status: 503})
		time.Sleep(20 * time.Second)
		s.Heal()
		f(first, "elected again", 1)
		first.kill()
		evict("b", "2000-01-01T00:03:00Z")
		second := begin(t, s, "b")
		f(second, "one while nobody watched", 2)
		evict("c", "2000-01-01T00:06:00Z")
		f(second, "and another", 3)
		second.stop()
		third := begin(t, s, "c")
		defer third.stop()
		f(third, "a third process", 3)
	})
}
