package schedulerreceiver

import (
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/live"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

const groupAPI = "scheduling.volcano.sh/v1beta1"

func ofGang(at, name string, more ...object) object {
	return kubeapitest.Pod(at, "gangs", name, "u-"+name, append([]object{{
		"metadata": object{"labels": object{"team": "nlp"}, "annotations": object{"scheduling.k8s.io/group-name": "train"}},
		"spec":     object{"containers": []object{{"name": "main", "resources": object{"requests": object{"nvidia.com/gpu": "1"}}}}},
	}}, more...)...)
}

// gang gives a server a group that needs 4 pods, of which one runs, one waits and two are missing.
func gang(s *kubeapitest.Server) {
	s.Install(groupAPI, kubeapitest.Resource{Name: "podgroups", Kind: "PodGroup", Namespaced: true})
	s.PutObject(object{"apiVersion": groupAPI, "kind": "PodGroup", "metadata": object{"namespace": "gangs", "name": "train", "uid": "g"}, "spec": object{"minMember": 4}})
	s.PutPod(ofGang("gn1", "w0"))
	s.PutPod(ofGang("", "w1", object{"status": object{"phase": "Pending"}}))
}

// evict preempts the pod of the group that runs.
func evict(s *kubeapitest.Server) {
	s.PutPod(ofGang("gn1", "w0", object{"status": object{"conditions": []object{{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}}}}))
}

const kueueAPI = "kueue.x-k8s.io/v1beta2"

// admission gives a server a Workload of Kueue that waits. It is admitted when the returned function is called.
func admission(s *kubeapitest.Server) (admits func()) {
	s.Install(kueueAPI, kubeapitest.Resource{Name: "workloads", Kind: "Workload", Namespaced: true})
	put := func(status object) {
		s.PutObject(object{
			"apiVersion": kueueAPI, "kind": "Workload", "status": status,
			"metadata": object{"namespace": "ml", "name": "w", "uid": "w", "creationTimestamp": "2026-11-19T12:00:00Z"},
		})
	}
	put(object{})
	return func() {
		put(object{
			"conditions": []object{{"type": "Admitted", "status": "True", "lastTransitionTime": "2026-11-19T12:00:30Z"}},
			"admission":  object{"podSetAssignments": []object{{"resourceUsage": object{"nvidia.com/gpu": "8"}}}},
		})
	}
}

// Catches a group whose need is not known to the metrics, and an eviction without the time since when it is counted.
func TestKubernetesGroups(t *testing.T) {
	s := queued()
	gang(s)
	url, stop := s.Serve()
	defer stop()
	sink, _ := kubernetes(t, url)
	has := func(what string, want map[string]float64) {
		t.Helper()
		await.NoError(t, func() error {
			got := points(last(sink))
			for key, v := range want {
				if got[key] != v {
					return fmt.Errorf("%s: %s is %v, want %v", what, key, got[key], v)
				}
			}
			return nil
		})
	}
	has("at first", map[string]float64{
		"scheduler.group.count waiting volcano gangs": 1, "scheduler.group.member.count waiting volcano missing gangs": 2,
		"scheduler.group.member.count waiting volcano waiting gangs": 1, "scheduler.group.member.count waiting volcano running gangs": 1,
	})
	evict(s)
	has("evicted", map[string]float64{"scheduler.job.evicted preempted gangs nlp": 1})
	for _, m := range last(sink).ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if m.Name() == "scheduler.job.evicted" && (m.Sum().DataPoints().At(0).StartTimestamp() == 0 || m.Sum().AggregationTemporality() != pmetric.AggregationTemporalityCumulative) {
			t.Error("nobody knows since when evictions are counted")
		}
	}
}

// Catches series without a limit, and groups that are lost beyond it.
func TestGroupsAreBounded(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	mb := metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, receivertest.NewNopSettings(component.MustNewType("scheduler")))
	w := &words{mb, 1, "c", kubernetesKind}
	var list []*kube.Group
	for i := range 500 {
		list = append(list, &kube.Group{GroupKey: kube.GroupKey{System: "volcano", Namespace: fmt.Sprint("n", i), Name: "g"}, Needed: 2, Members: map[kube.MemberState]int{kube.Waiting: 2}})
	}
	w.groups(list, 30)
	got := points(mb.Emit())
	if len(got) != 22 || got["scheduler.group.count waiting volcano other"] != 490 || got["scheduler.group.member.count waiting volcano waiting other"] != 980 {
		t.Errorf("%d series, %v", len(got), got)
	}
}

// Catches evictions that are said to count since the process began, although they go on from another.
func TestEvictionsStart(t *testing.T) {
	began := time.Unix(1000, 0)
	r := newReporter(createDefaultConfig().(*Config), receivertest.NewNopSettings(component.MustNewType("scheduler")), nil, began)
	since := began.Add(-time.Hour)
	v := live.View{Leads: true, Waits: kube.Totals{Since: since, Evicted: map[kube.Eviction]int64{{Queue: "ml", Reason: "preempted"}: 1}}}
	for _, m := range r.emit(v, began.Add(time.Minute)).ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if m.Name() != evictedName {
			continue
		}
		if got := m.Sum().DataPoints().At(0).StartTimestamp().AsTime(); !got.Equal(since) {
			t.Errorf("counted since %v, want %v", got, since)
		}
		return
	}
	t.Error("no evictions")
}
