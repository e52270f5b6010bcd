package kubeapi

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

// ref is an owner in a chain, written kind.apiVersion/resource.
type ref struct{ apiVersion, kind, resource, name string }

func (r ref) uid() string { return "uid-" + r.kind + "-" + r.name }

func (r ref) owned() object { return kubeapitest.Owned(r.apiVersion, r.kind, r.name, r.uid()) }

// putChain creates a pod that is owned by the first ref, which is owned by the second, ...
func putChain(s *kubeapitest.Server, pod string, labels object, chain ...ref) {
	var meta object
	for i, r := range chain {
		if i == 0 {
			meta = r.owned()
		}
		obj := kubeapitest.Meta(r.uid())
		if i+1 < len(chain) {
			obj = kubeapitest.Meta(r.uid(), chain[i+1].owned())
		}
		where := "/apis/"
		if !strings.Contains(r.apiVersion, "/") {
			where = "/api/"
		}
		namespace := "/namespaces/ml/"
		if r.kind == "Platform" {
			namespace = "/"
		}
		s.Put(where+r.apiVersion+namespace+r.resource+"/"+r.name, obj)
	}
	s.PutPod(kubeapitest.Pod("node1", "ml", pod, "uid-"+pod, object{"metadata": meta}, object{"metadata": object{"labels": labels}}))
}

func replicaSet(n string) ref  { return ref{"apps/v1", "ReplicaSet", "replicasets", n} }
func deployment(n string) ref  { return ref{"apps/v1", "Deployment", "deployments", n} }
func statefulSet(n string) ref { return ref{"apps/v1", "StatefulSet", "statefulsets", n} }
func job(n string) ref         { return ref{"batch/v1", "Job", "jobs", n} }

// The owner that users know is at the top, whatever created it, and the plural of its kind
// is not guessed.
func TestOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.PutResources("ray.io/v1", kubeapitest.Resource{Name: "rayclusters", Kind: "RayCluster", Namespaced: true},
			kubeapitest.Resource{Name: "rayjobs", Kind: "RayJob", Namespaced: true})
		s.PutResources("kubeflow.org/v1", kubeapitest.Resource{Name: "pytorchjobs", Kind: "PyTorchJob", Namespaced: true})
		s.PutResources("trainer.kubeflow.org/v1alpha1", kubeapitest.Resource{Name: "trainjobs", Kind: "TrainJob", Namespaced: true})
		s.PutResources("jobset.x-k8s.io/v1alpha2", kubeapitest.Resource{Name: "jobsets", Kind: "JobSet", Namespaced: true})
		s.PutResources("leaderworkerset.x-k8s.io/v1", kubeapitest.Resource{Name: "leaderworkersets", Kind: "LeaderWorkerSet", Namespaced: true})
		s.PutResources("argoproj.io/v1alpha1", kubeapitest.Resource{Name: "rollouts", Kind: "Rollout", Namespaced: true})
		s.PutResources("example.com/v1", kubeapitest.Resource{Name: "inferencepolicies", Kind: "InferencePolicy", Namespaced: true},
			kubeapitest.Resource{Name: "platforms", Kind: "Platform", Namespaced: false})
		c := start(t, s, Config{})
		f := func(chain []ref, want ...Owner) {
			t.Helper()
			pod := fmt.Sprintf("pod-%d", time.Now().UnixNano())
			putChain(s, pod, nil, chain...)
			synctest.Wait()
			for range 20 {
				c.PodByName("ml", pod)
				time.Sleep(time.Second)
			}
			p, _ := c.PodByName("ml", pod)
			if diff := cmp.Diff(want, p.Owners); diff != "" {
				t.Errorf("%v (-want +got):\n%s", chain, diff)
			}
			top := Owner{"pod", pod}
			if len(want) > 0 {
				top = want[len(want)-1]
			}
			if p.Owner != top {
				t.Errorf("owner = %v, want %v", p.Owner, top)
			}
		}
		f(nil)
		f([]ref{replicaSet("web-5d"), deployment("web")}, Owner{"replicaset", "web-5d"}, Owner{"deployment", "web"})
		f([]ref{replicaSet("bare")}, Owner{"replicaset", "bare"})
		f([]ref{replicaSet("canary-1"), {"argoproj.io/v1alpha1", "Rollout", "rollouts", "canary"}}, Owner{"replicaset", "canary-1"}, Owner{"rollout", "canary"})
		f([]ref{statefulSet("db")}, Owner{"statefulset", "db"})
		f([]ref{{"apps/v1", "DaemonSet", "daemonsets", "ds"}}, Owner{"daemonset", "ds"})
		f([]ref{job("once")}, Owner{"job", "once"})
		f([]ref{job("nightly-1"), {"batch/v1", "CronJob", "cronjobs", "nightly"}}, Owner{"job", "nightly-1"}, Owner{"cronjob", "nightly"})
		f([]ref{{"ray.io/v1", "RayCluster", "rayclusters", "rc"}}, Owner{"raycluster", "rc"})
		f([]ref{{"ray.io/v1", "RayCluster", "rayclusters", "rj-x"}, {"ray.io/v1", "RayJob", "rayjobs", "rj"}}, Owner{"raycluster", "rj-x"}, Owner{"rayjob", "rj"})
		f([]ref{{"kubeflow.org/v1", "PyTorchJob", "pytorchjobs", "pt"}}, Owner{"pytorchjob", "pt"})
		f([]ref{job("tj-node-0"), {"jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", "tj"}, {"trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", "tj"}},
			Owner{"job", "tj-node-0"}, Owner{"jobset", "tj"}, Owner{"trainjob", "tj"})
		// A worker of a LeaderWorkerSet is created by a StatefulSet that its leader, a pod,
		// owns.
		f([]ref{statefulSet("lws-0"), {"v1", "Pod", "pods", "lws-0"}, statefulSet("lws"), {"leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets", "lws"}},
			Owner{"statefulset", "lws-0"}, Owner{"pod", "lws-0"}, Owner{"statefulset", "lws"}, Owner{"leaderworkerset", "lws"})
		f([]ref{deployment("d2"), {"example.com/v1", "InferencePolicy", "inferencepolicies", "x"}, {"example.com/v1", "Platform", "platforms", "p"}, {"example.com/v1", "Platform", "platforms", "top"}},
			Owner{"deployment", "d2"}, Owner{"inferencepolicy", "x"}, Owner{"platform", "p"}, Owner{"platform", "top"})
		f([]ref{{"gone.example.com/v1", "Thing", "things", "t"}}, Owner{"thing", "t"}) // its kind was uninstalled
	})
}

// Owners that own each other in a circle, or chains that are too long, must end.
func TestOwnersCircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		a, b := deployment("a"), deployment("b")
		putChain(s, "p", nil, a, b)
		s.Put("/apis/apps/v1/namespaces/ml/deployments/b", kubeapitest.Meta(b.uid(), a.owned()))
		c := start(t, s, Config{})
		for range 30 {
			c.PodByName("ml", "p")
			time.Sleep(time.Second)
		}
		if p, _ := c.PodByName("ml", "p"); len(p.Owners) != maxDepth {
			t.Errorf("%d owners, want %d", len(p.Owners), maxDepth)
		}
		if n := count(s, "deployments/"); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
	})
}

// A node full of pods must not cost the API server a request per pod, and lookups must not
// wait for requests.
func TestOwnersPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		for i := range 30 {
			putChain(s, fmt.Sprint("gpu", i), nil, replicaSet(fmt.Sprint("rs", i%10)), deployment(fmt.Sprint("d", i%10)))
			putChain(s, fmt.Sprint("cpu", i), nil, statefulSet(fmt.Sprint("s", i)))
		}
		c := start(t, s, Config{})
		begin := time.Now()
		for last := 0; time.Since(begin) < 5*time.Minute; {
			for i := range 30 {
				c.PodByName("ml", fmt.Sprint("gpu", i))
			}
			synctest.Wait()
			if n := count(s, "/apis/"); n-last > 1 {
				t.Fatalf("%d requests within a second", n-last)
			} else {
				last = n
			}
			time.Sleep(time.Second)
		}
		if n := count(s, "/apis/"); n != 1+10+10 {
			t.Errorf("%d requests, want one for the kinds and one per owner, of 20", n)
		}
		for i := range 30 {
			if p, _ := c.PodByName("ml", fmt.Sprint("gpu", i)); p.Owner != (Owner{"deployment", fmt.Sprint("d", i%10)}) {
				t.Errorf("owner of %d = %v", i, p.Owner)
			}
		}
	})
}

// Until the owner is known, and if it may not be read, the pod tells: the name of the
// ReplicaSet without its hash.
func TestOwnersDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.Fail("/apis/apps/v1/namespaces", kubeapitest.Fault{Status: 403})
		c := start(t, s, Config{})
		for i := range 20 {
			putChain(s, fmt.Sprint("p", i), object{"pod-template-hash": "5d8f9"}, replicaSet(fmt.Sprintf("web%d-5d8f9", i)), deployment(fmt.Sprint("web", i)))
		}
		putChain(s, "roll", object{"rollouts-pod-template-hash": "77c"}, replicaSet("canary-77c"))
		putChain(s, "bare", nil, replicaSet("bare-77c"))
		putChain(s, "odd", object{"pod-template-hash": "5d8f9"}, replicaSet("odd-other"))
		putChain(s, "set", nil, statefulSet("db"))
		synctest.Wait()
		want := map[string]Owner{
			"p3": {"deployment", "web3"}, "roll": {"rollout", "canary"}, "bare": {"replicaset", "bare-77c"},
			"odd": {"replicaset", "odd-other"}, "set": {"statefulset", "db"},
		}
		for range 120 {
			for i := range 20 {
				c.PodByName("ml", fmt.Sprint("p", i))
			}
			for pod, w := range want {
				if p, _ := c.PodByName("ml", pod); p.Owner != w {
					t.Fatalf("owner of %s = %v, want %v", pod, p.Owner, w)
				}
			}
			time.Sleep(time.Second)
		}
		if n := count(s, "/apis/apps/v1/namespaces"); n != 2 {
			t.Errorf("%d requests, want one per denied kind", n)
		}
		p, _ := c.State().Problem(Owners)
		if !p.Denied || p.Err == nil || !strings.Contains(p.Err.Error(), "replicasets.apps, statefulsets.apps") {
			t.Errorf("problem = %+v, want it to name what is denied", p)
		}
	})
}

// An owner derived from the hash is not listed twice.
func TestOwnersPartlyDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.Fail("/apis/apps/v1/namespaces/ml/deployments", kubeapitest.Fault{Status: 403})
		putChain(s, "p", object{"pod-template-hash": "5d"}, replicaSet("web-5d"), deployment("web"))
		c := start(t, s, Config{})
		for range 10 {
			p, _ := c.PodByName("ml", "p")
			if diff := cmp.Diff([]Owner{{"replicaset", "web-5d"}, {"deployment", "web"}}, p.Owners); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
			time.Sleep(time.Second)
		}
	})
}

// An owner that was deleted and recreated is a different one.
func TestOwnerReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		putChain(s, "p", nil, job("j"))
		s.Put("/apis/batch/v1/namespaces/ml/jobs/j", kubeapitest.Meta("another", kubeapitest.Owned("batch/v1", "CronJob", "wrong", "x")))
		c := start(t, s, Config{})
		for range 10 {
			c.PodByName("ml", "p")
			time.Sleep(time.Second)
		}
		if p, _ := c.PodByName("ml", "p"); p.Owner != (Owner{"job", "j"}) {
			t.Errorf("owner = %v, want the job that made it", p.Owner)
		}
	})
}

// A name with a slash must not become another request.
func TestOwnerWithBadName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		putChain(s, "p", nil, job("../../../../../api/v1/secrets"))
		putChain(s, "q", nil, ref{"../../api/v1", "Secret", "secrets", "s"})
		c := start(t, s, Config{})
		for range 10 {
			c.PodByName("ml", "p")
			c.PodByName("ml", "q")
			time.Sleep(time.Second)
		}
		if n := count(s, "secrets"); n != 0 {
			t.Errorf("%d requests for secrets: %v", n, s.Requests())
		}
	})
}

// An object that only refers to another, or cannot be requested, does not own it.
func TestParseOwner(t *testing.T) {
	f := func(references string, want above) {
		t.Helper()
		got, err := parseOwner([]byte(`{"metadata":{"uid":"u","ownerReferences":[`+references+`]}}`), "u")
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", references, got, err, want)
		}
	}
	const other = `{"apiVersion":"v1","kind":"ConfigMap","name":"c","uid":"x"}`
	const controller = `{"apiVersion":"batch/v1","kind":"CronJob","name":"n","uid":"v","controller":true}`
	f("", above{none: true})
	f(other, above{none: true})
	f(other+","+controller, above{ref: ownerRef{"batch/v1", "CronJob", "n", "v"}})
	f(`{"apiVersion":"batch/v1","kind":"CronJob","name":"n","uid":"u","controller":true}`, above{none: true})
	f(`{"apiVersion":"batch/v1","kind":"CronJob","name":"n","controller":true}`, above{none: true})
	if _, err := parseOwner([]byte(`{"kind":"Status"}`), ""); err == nil {
		t.Error("something without a uid is an owner")
	}
}

func FuzzParseOwner(f *testing.F) {
	f.Add([]byte(`{"metadata":{"uid":"u","ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"d","uid":"v","controller":true}]}}`))
	f.Add([]byte(`{"metadata":{"uid":"u"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseOwner(b, "u")
		if err != nil && a != (above{}) {
			t.Errorf("%+v beside %v", a, err)
		}
		if err == nil && a.none == (a.ref != ownerRef{}) {
			t.Errorf("%+v neither has an owner nor has none", a)
		}
		if a.ref.UID == "u" {
			t.Error("it owns itself")
		}
		if by, err := parseResources(b); err == nil {
			for kind, r := range by {
				if strings.Contains(r.Resource, "/") || r.Resource == "" {
					t.Errorf("%s is at %q", kind, r.Resource)
				}
			}
		}
	})
}
