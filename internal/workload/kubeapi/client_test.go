package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload/hami"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

type object = kubeapitest.Object

// start returns a client of s that runs until the test ends, in a synctest bubble.
func start(t *testing.T, s *kubeapitest.Server, cfg Config) *Client {
	t.Helper()
	return startAt(t, s, cfg)
}

// startAt is start with a handler in front of the server.
func startAt(t *testing.T, h http.Handler, cfg Config) *Client {
	t.Helper()
	dial, stop := kubeapitest.Pipe(h)
	cfg.Node = "node1"
	c, err := newClient(cfg, newREST(server{url: &url.URL{Scheme: "http", Host: "test"}}, dial))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return c
}

// handler is a server whose answers can be overridden.
type handler struct {
	next  http.Handler
	other atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

func (h *handler) set(f func(http.ResponseWriter, *http.Request) (done bool)) { h.other.Store(&f) }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f := h.other.Load(); f == nil || !(*f)(w, r) {
		h.next.ServeHTTP(w, r)
	}
}

func count(s *kubeapitest.Server, what string) (n int) {
	for _, r := range s.Requests() {
		if strings.Contains(r, what) {
			n++
		}
	}
	return n
}

func problems(c *Client) (out []string) {
	for _, p := range c.State().Problems {
		out = append(out, fmt.Sprintf("%s denied=%v", p.Part, p.Denied))
	}
	return out
}

// Catches a client that lists every pod of the cluster, keeps labels that were not
// configured, or loses a part of a pod.
func TestPodsOfThisNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		for i := range 10_000 {
			s.PutPod(kubeapitest.Pod("node2", "other", fmt.Sprintf("p%d", i), fmt.Sprintf("u%d", i)))
		}
		s.PutPod(kubeapitest.Pod("node1", "ml", "train-0", "uid-1", kubeapitest.Containers("main", "aaa", "sidecar", "bbb"), object{
			"metadata": object{"labels": object{"app": "train", "secret": "s", "org/team": "vision"}},
			"spec":     object{"initContainers": []object{{"name": "init"}}},
			"status":   object{"initContainerStatuses": []object{{"name": "init", "containerID": "cri-o://ccc"}}},
		}))
		s.PutPod(kubeapitest.Pod("node1", "kube-system", "static-node1", "uid-mirror", object{"metadata": object{
			"annotations":     object{"kubernetes.io/config.hash": "hash-1"},
			"ownerReferences": kubeapitest.Owned("v1", "Node", "node1", "uid-n")["ownerReferences"],
		}}))
		c := start(t, s, Config{Labels: []string{"app", "missing"}, TeamLabel: "org/team"})

		want := Pod{
			UID: "uid-1", Namespace: "ml", Name: "train-0", Phase: "Running", Team: "vision",
			Labels: map[string]string{"app": "train"}, Owner: Owner{"pod", "train-0"},
			Containers:   []string{"init", "main", "sidecar"},
			ContainerIDs: map[string]string{"aaa": "main", "bbb": "sidecar", "ccc": "init"},
		}
		for name, look := range map[string]func() (Pod, bool){
			"PodByUID":       func() (Pod, bool) { return c.PodByUID("uid-1") },
			"PodByName":      func() (Pod, bool) { return c.PodByName("ml", "train-0") },
			"PodByContainer": func() (Pod, bool) { return c.PodByContainer("bbb") },
		} {
			if got, _ := look(); !cmp.Equal(want, got) {
				t.Errorf("%s (-want +got):\n%s", name, cmp.Diff(want, got))
			}
		}
		static, _ := c.PodByUID("hash-1")
		if diff := cmp.Diff(Pod{
			UID: "uid-mirror", Namespace: "kube-system", Name: "static-node1", Phase: "Running",
			Owner: Owner{"pod", "static-node1"}, ContainerIDs: map[string]string{},
		}, static); diff != "" {
			t.Errorf("a static pod by the uid in its cgroup (-want +got):\n%s", diff)
		}
		if n := len(c.pods.byName); n != 2 {
			t.Errorf("%d pods are held, want 2", n)
		}
		if n, all := count(s, "fieldSelector=spec.nodeName%3Dnode1"), count(s, "/api/v1/pods"); n != all || n != 2 {
			t.Errorf("%d of %d requests for pods are for this node, want 2 of 2: a list and a watch", n, all)
		}
		if st := c.State(); !st.Synced || len(st.Problems) != 1 || st.Problems[0].Part != Nodes {
			t.Errorf("state = %+v, want synced, and nothing wrong but that there is no node", st)
		}
	})
}

// Catches a metrics page that a pod names and we do not read there, and an annotation that leads elsewhere than to a
// port of the pod.
func TestMetricsPages(t *testing.T) {
	const scrape, port, path, scheme = "prometheus.io/scrape", "prometheus.io/port", "prometheus.io/path", "prometheus.io/scheme"
	const kservePort, kservePath = "prometheus.kserve.io/port", "prometheus.kserve.io/path"
	for _, tt := range []struct {
		name        string
		annotations object
		want        []Page
	}{
		{"none", nil, nil},
		{"all", object{scrape: "true", port: "8001", path: "/m", scheme: "https"}, []Page{{8001, "https", "/m"}}},
		{"a port", object{scrape: "true", port: "8001"}, []Page{{8001, "http", "/metrics"}}},
		{"no port", object{scrape: "true", path: "m/"}, []Page{{0, "http", "/m"}}},
		{"not to be read", object{scrape: "false", port: "8001", path: "/m"}, nil},
		{"not said to be read", object{port: "8001"}, nil},
		{"KServe, and a proxy of the pod", object{scrape: "true", port: "9088", path: "/metrics", kservePort: "8080", kservePath: "/v1/metrics"}, []Page{
			{8080, "http", "/v1/metrics"}, {9088, "http", "/metrics"},
		}},
		{"KServe, the same twice", object{"serving.kserve.io/enable-prometheus-scraping": "true", port: "8080", kservePort: "8080"}, []Page{{8080, "http", "/metrics"}}},
		{"no number", object{scrape: "true", port: "evil.example.com:80"}, nil},
		{"no port of TCP", object{scrape: "true", port: "65536"}, nil},
		{"port zero", object{scrape: "true", port: "0"}, nil},
		{"another host", object{scrape: "true", port: "80", path: "//evil.example.com/../x?a=b"}, []Page{{80, "http", "/x"}}},
		{"another scheme", object{scrape: "true", port: "80", scheme: "file"}, []Page{{80, "http", "/metrics"}}},
		{"a path without an end", object{scrape: "true", port: "80", path: strings.Repeat("x", 5000)}, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := kubeapitest.New()
			s.PutPod(kubeapitest.Pod("node1", "ml", "chat", "uid-1", object{"metadata": object{"annotations": tt.annotations}}))
			c := start(t, s, Config{})
			got, _ := c.PodByUID("uid-1")
			if diff := cmp.Diff(tt.want, got.Pages); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
		})
	}
}

// A server behind a proxy that drops the selector must not fill the memory.
func TestSelectorIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		b, err := json.Marshal(object{"kind": "PodList", "apiVersion": "v1", "metadata": object{"resourceVersion": "1"}, "items": []object{
			kubeapitest.Pod("node2", "a", "b", "u2"), kubeapitest.Pod("node1", "a", "c", "u1"),
		}})
		if err != nil {
			t.Fatal(err)
		}
		s.Fail("/api/v1/pods", kubeapitest.Fault{Body: string(b)})
		c := start(t, s, Config{})
		_, other := c.PodByUID("u2")
		_, own := c.PodByUID("u1")
		if other || !own {
			t.Errorf("other = %v, own = %v, want only the own", other, own)
		}
	})
}

// Catches a pod that was deleted, replaced under its name, or whose watch was lost, and is
// still returned.
func TestPodsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.PutPod(kubeapitest.Pod("node1", "ml", "web-0", "u1", kubeapitest.Containers("main", "")))
		c := start(t, s, Config{})
		check := func(step, uid, container string, gone ...string) {
			t.Helper()
			synctest.Wait()
			p, ok := c.PodByName("ml", "web-0")
			if ok != (uid != "") || p.UID != uid {
				t.Errorf("%s: web-0 is %q, want %q", step, p.UID, uid)
			}
			if q, _ := c.PodByContainer(container); q.UID != uid {
				t.Errorf("%s: container %s is of %q, want %q", step, container, q.UID, uid)
			}
			for _, g := range gone {
				if _, ok := c.PodByUID(g); ok {
					t.Errorf("%s: %s is still there", step, g)
				}
				if _, ok := c.PodByContainer("c-" + g); ok {
					t.Errorf("%s: the container of %s is still there", step, g)
				}
			}
		}
		s.PutPod(kubeapitest.Pod("node1", "ml", "web-0", "u1", kubeapitest.Containers("main", "c-first")))
		check("its first container", "u1", "c-first")
		g := c.State().Generation
		s.PutPod(kubeapitest.Pod("node1", "ml", "web-0", "u1", kubeapitest.Containers("main", "c-u1")))
		check("restarted", "u1", "c-u1")
		if _, ok := c.PodByContainer("c-first"); ok {
			t.Error("a container that was restarted is still there")
		}
		if c.State().Generation == g {
			t.Error("the generation did not change")
		}
		s.PutPod(kubeapitest.Pod("node1", "ml", "web-0", "u2", kubeapitest.Containers("main", "c-u2")))
		check("replaced", "u2", "c-u2", "u1")
		s.DropWatches(false)
		s.PutPod(kubeapitest.Pod("node1", "ml", "web-0", "u3", kubeapitest.Containers("main", "c-u3")))
		time.Sleep(time.Minute)
		check("replaced while the watch was down", "u3", "c-u3", "u2")
		s.PutPod(kubeapitest.Pod("node1", "ml", "web-0", "u4", kubeapitest.Containers("main", "c-u4")))
		s.DropWatches(true)
		time.Sleep(time.Minute)
		check("410 Gone", "u4", "c-u4", "u3")
		// A watch that continues from the past repeats a deletion.
		c.pods.remove(&pod{Pod: Pod{Namespace: "ml", Name: "web-0", UID: "u1"}})
		check("an old deletion", "u4", "c-u4")
		s.DeletePod("ml", "web-0")
		check("deleted", "", "", "u4")
	})
}

// A missing permission affects only what it grants, is reported, is retried at most twice a
// minute, and its return is noticed.
func TestDenied(t *testing.T) {
	for _, test := range []struct{ prefix, want string }{
		{"/api/v1/pods", "pods denied=true"},
		{"/api/v1/nodes", "nodes denied=true"},
		{"/apis/apps/v1/namespaces", "owners denied=true"},
		{"/apis/resource.k8s.io/v1/resourceslices", "resourceslices denied=true"},
		{"/apis/resource.k8s.io/v1/namespaces", "resourceclaims denied=true"},
	} {
		for _, code := range []int{401, 403} {
			t.Run(fmt.Sprint(test.want, code), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := withEverything()
					s.Fail(test.prefix, kubeapitest.Fault{Status: code})
					c := start(t, s, Config{})
					use := func() {
						c.PodByName("ml", "web")
						c.Claimed("gpu.nvidia.com", "node1", "gpu-0")
						c.Access("ml", "claim", "gpu.nvidia.com", "node1", "gpu-0")
						time.Sleep(10 * time.Second)
					}
					for range 360 {
						use()
					}
					if diff := cmp.Diff([]string{test.want}, problems(c)); diff != "" {
						t.Fatalf("problems (-want +got):\n%s", diff)
					}
					if p := c.State().Problems[0]; time.Since(p.Since) < 59*time.Minute {
						t.Errorf("reported since %v ago, want an hour", time.Since(p.Since))
					}
					if n := count(s, test.prefix); n > 130 {
						t.Errorf("%d requests in an hour, although they are denied", n)
					}
					s.Heal()
					for range 70 {
						use()
					}
					if got := problems(c); len(got) != 0 {
						t.Errorf("problems after it was allowed: %v", got)
					}
				})
			})
		}
	}
}

// withEverything returns a server without faults.
func withEverything() *kubeapitest.Server {
	s := kubeapitest.New()
	s.Put("/api/v1/nodes/node1", object{"metadata": object{"labels": object{
		"topology.kubernetes.io/zone": "eu-1b", "topology.kubernetes.io/region": "eu-1",
	}}})
	s.PutPod(kubeapitest.Pod("node1", "ml", "web", "u1", object{"metadata": kubeapitest.Owned("apps/v1", "ReplicaSet", "web-5d", "rs")}))
	s.Put("/apis/apps/v1/namespaces/ml/replicasets/web-5d", kubeapitest.Meta("rs", kubeapitest.Owned("apps/v1", "Deployment", "web", "dep")))
	s.Put("/apis/apps/v1/namespaces/ml/deployments/web", kubeapitest.Meta("dep"))
	s.Put("/apis/resource.k8s.io", object{"versions": []object{{"version": "v1beta1"}, {"version": "v1"}}})
	s.Put("/apis/resource.k8s.io/v1/resourceslices", object{"items": []object{
		slice("gpu.nvidia.com", "node1", 1, device("gpu-0", object{"uuid": object{"string": "GPU-0"}})),
	}})
	s.Put("/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/claim", claimOf("gpu-0", false))
	return s
}

// A server that hangs or answers nonsense must not delay a lookup, and must be reported.
func TestBrokenServer(t *testing.T) {
	for name, fault := range map[string]kubeapitest.Fault{
		"hangs":   {Hang: true},
		"garbage": {Body: `{"kind": 7, "items": "x", "metadata": []`},
		"empty":   {Body: ``},
		"html":    {Body: `<html>`},
		"error":   {Status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := withEverything()
				s.Fail("/", fault)
				c := start(t, s, Config{})
				for range 60 {
					before := time.Now()
					c.PodByName("ml", "web")
					c.PodByUID("u1")
					c.Claimed("gpu.nvidia.com", "node1", "gpu-0")
					c.Access("ml", "claim", "gpu.nvidia.com", "node1", "gpu-0")
					if d := time.Since(before); d != 0 {
						t.Fatalf("a lookup took %v", d)
					}
					time.Sleep(10 * time.Second)
				}
				want := []string{"nodes denied=false", "pods denied=false", "resourceclaims denied=false", "resourceslices denied=false"}
				if diff := cmp.Diff(want, problems(c)); diff != "" {
					t.Errorf("problems (-want +got):\n%s", diff)
				}
				s.Heal()
				for range 30 {
					c.PodByName("ml", "web")
					c.Claimed("gpu.nvidia.com", "node1", "gpu-0")
					c.Access("ml", "claim", "gpu.nvidia.com", "node1", "gpu-0")
					time.Sleep(10 * time.Second)
				}
				if got := problems(c); len(got) != 0 {
					t.Errorf("problems after the recovery: %v", got)
				}
				if p, _ := c.PodByName("ml", "web"); p.Owner != (Owner{"deployment", "web"}) {
					t.Errorf("owner = %v after the recovery", p.Owner)
				}
			})
		})
	}
}

// Known pods stay known while the server is unreachable.
func TestKeepsWhatItKnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withEverything()
		c := start(t, s, Config{})
		s.Fail("/", kubeapitest.Fault{Status: 503})
		s.DropWatches(true)
		down := time.Now()
		time.Sleep(time.Hour)
		if _, ok := c.PodByUID("u1"); !ok {
			t.Error("the pod was dropped with the server")
		}
		p, ok := c.State().Problem(Pods)
		if !ok || p.Since.Sub(down) > time.Minute || !c.State().Synced {
			t.Errorf("state = %+v, want failing for an hour", c.State())
		}
	})
}

func TestNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, withEverything(), Config{})
		if diff := cmp.Diff(Node{Zone: "eu-1b", Region: "eu-1"}, c.Node()); diff != "" {
			t.Errorf("node (-want +got):\n%s", diff)
		}
	})
}

// Catches slices of HAMi that are lost between the API server and the pod, or that go to another container.
func TestSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.PutPod(kubeapitest.Pod("node1", "ml", "chat", "uid-1", object{
			"metadata": object{"annotations": object{hami.Annotation: ";GPU-a,NVIDIA,1024,30:;"}},
			"spec":     object{"nodeName": "node1", "initContainers": []object{{"name": "load"}}, "containers": []object{{"name": "main"}}},
		}))
		s.PutPod(kubeapitest.Pod("node1", "ml", "bad", "uid-2", object{"metadata": object{"annotations": object{hami.Annotation: "GPU-a,NVIDIA:;"}}}))
		c := start(t, s, Config{})
		good, _ := c.PodByUID("uid-1")
		if diff := cmp.Diff(map[string][]hami.Slice{"main": {{Device: "GPU-a", Memory: 1 << 30, Compute: 0.3}}}, good.Slices); diff != "" || good.SlicesErr != nil {
			t.Errorf("%v (-want +got):\n%s", good.SlicesErr, diff)
		}
		if bad, ok := c.PodByUID("uid-2"); !ok || bad.SlicesErr == nil || bad.Slices != nil {
			t.Errorf("malformed slices: %+v", bad)
		}
	})
}
