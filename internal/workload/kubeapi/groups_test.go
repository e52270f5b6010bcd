package kubeapi

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

// belongs is what a pod belongs to.
type belongs struct {
	Owner Owner
	Queue string
}

// asked looks a pod up until its owners are known.
func asked(c *Client, name string) belongs {
	for range 20 {
		c.PodByName("ml", name)
		time.Sleep(time.Second)
	}
	p, _ := c.PodByName("ml", name)
	return belongs{p.Owner, p.Queue}
}

// Catches pods of a group that are billed one by one, a group that hides the controller, a Volcano job that is taken for one
// of Kubernetes, and a queue that is on the job and not on its pods.
func TestGroupsAndQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.PutResources("batch.volcano.sh/v1alpha1", kubeapitest.Resource{Name: "jobs", Kind: "Job", Namespaced: true})
		s.PutResources("jobset.x-k8s.io/v1alpha2", kubeapitest.Resource{Name: "jobsets", Kind: "JobSet", Namespaced: true})
		group := object{"labels": object{"kueue.x-k8s.io/pod-group-name": "train", "kueue.x-k8s.io/queue-name": "gold"}}
		s.PutPod(kubeapitest.Pod("node1", "ml", "train-0", "u0", object{"metadata": group}))
		s.PutPod(kubeapitest.Pod("node1", "ml", "single", "u1", object{"metadata": object{"annotations": object{"pod-group-name": "pg-single-u1"}}}))
		s.PutPod(kubeapitest.Pod("node1", "ml", "native", "u2", object{"spec": object{"schedulingGroup": object{"podGroupName": "mesh"}}}))
		s.PutPod(kubeapitest.Pod("node1", "kube-system", "static", "u3", object{"metadata": group},
			object{"metadata": kubeapitest.Owned("v1", "Node", "node1", "node-node1")}))
		putChain(s, "of-job", object{"kueue.x-k8s.io/pod-group-name": "train"}, job("fit"))
		vcjob := ref{"batch.volcano.sh/v1alpha1", "Job", "jobs", "fit"}
		putChain(s, "of-vcjob", object{"volcano.sh/queue-name": "vq"}, vcjob)
		set := ref{"jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", "big"}
		putChain(s, "of-set", object{"jobset.sigs.k8s.io/jobset-name": "big"}, job("big-workers-0"), set)
		// Kueue's label is on the JobSet; the nearest owner that has one decides.
		s.Put("/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets/big", kubeapitest.Meta(set.uid(), object{"labels": object{"kueue.x-k8s.io/queue-name": "silver"}}))
		c := start(t, s, Config{})
		synctest.Wait()
		want := map[string]belongs{
			"train-0": {Owner{"podgroup", "train"}, "gold"}, "single": {Owner{"pod", "single"}, ""}, "native": {Owner{"podgroup", "mesh"}, ""},
			"of-job": {Owner{"job", "fit"}, ""}, "of-vcjob": {Owner{"vcjob", "fit"}, "vq"}, "of-set": {Owner{"jobset", "big"}, "silver"},
		}
		got := map[string]belongs{}
		for name := range want {
			got[name] = asked(c, name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if p, _ := c.PodByName("kube-system", "static"); p.Owner != (Owner{"pod", "static"}) {
			t.Errorf("a static pod belongs to %v", p.Owner)
		}

		// Whoever edits the label moves the pod at once.
		s.PutPod(kubeapitest.Pod("node1", "ml", "train-0", "u0", object{"metadata": object{"labels": object{"kueue.x-k8s.io/pod-group-name": "train", "kueue.x-k8s.io/queue-name": "iron"}}}))
		synctest.Wait()
		if p, _ := c.PodByName("ml", "train-0"); p.Queue != "iron" || p.Owner.Name != "train" {
			t.Errorf("after the change: %+v", p)
		}
	})
}

// Catches a set that is not named because its jobs may not be read, and workers that lose their LeaderWorkerSet with their leader.
func TestSetsWithoutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.Fail("/apis/batch/v1/namespaces", kubeapitest.Fault{Status: 403})
		putChain(s, "worker", object{"jobset.sigs.k8s.io/jobset-name": "big"}, job("big-workers-0"))
		putChain(s, "liar", object{"jobset.sigs.k8s.io/jobset-name": "other"}, job("big-workers-1"))
		leader := ref{"v1", "Pod", "pods", "vllm-0"}
		putChain(s, "vllm-0-1", object{"leaderworkerset.sigs.k8s.io/name": "vllm"}, statefulSet("vllm-0"), leader)
		s.Delete("/api/v1/namespaces/ml/pods/vllm-0")
		putChain(s, "later", object{"leaderworkerset.sigs.k8s.io/name": "sglang"}, statefulSet("sglang-0"), ref{"v1", "Pod", "pods", "sglang-0"})
		s.Put("/api/v1/namespaces/ml/pods/sglang-0", kubeapitest.Meta("uid-of-the-next-leader"))
		c := start(t, s, Config{})
		synctest.Wait()
		if p, _ := c.PodByName("ml", "worker"); p.Owner != (Owner{"jobset", "big"}) {
			t.Errorf("before any answer it belongs to %v", p.Owner)
		}
		for name, want := range map[string]Owner{
			"worker": {"jobset", "big"}, "liar": {"job", "big-workers-1"}, "vllm-0-1": {"leaderworkerset", "vllm"}, "later": {"leaderworkerset", "sglang"},
		} {
			if got := asked(c, name); got.Owner != want {
				t.Errorf("%s belongs to %v, want %v", name, got.Owner, want)
			}
		}
	})
}

// Catches one denied kind that hides the owners of other kinds: the reference itself names them.
func TestOwnersOfOneDeniedKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.PutResources("ray.io/v1", kubeapitest.Resource{Name: "rayclusters", Kind: "RayCluster", Namespaced: true}, kubeapitest.Resource{Name: "rayjobs", Kind: "RayJob", Namespaced: true})
		s.Fail("/apis/ray.io/v1/namespaces", kubeapitest.Fault{Status: 403})
		putChain(s, "head", nil, ref{"ray.io/v1", "RayCluster", "rayclusters", "fit-x"}, ref{"ray.io/v1", "RayJob", "rayjobs", "fit"})
		putChain(s, "night", nil, job("nightly-1"), ref{"batch/v1", "CronJob", "cronjobs", "nightly"})
		c := start(t, s, Config{})
		synctest.Wait()
		got := fmt.Sprint(asked(c, "head"), asked(c, "night"))
		if want := "{{raycluster fit-x} } {{cronjob nightly} }"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}
