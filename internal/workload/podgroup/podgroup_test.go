package podgroup

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pod is a pod as the API server sends it.
type pod struct {
	Metadata struct {
		UID         string            `json:"uid"`
		Labels      map[string]string `json:"labels"`
		Annotations Annotations       `json:"annotations"`
	} `json:"metadata"`
	Spec Spec `json:"spec"`
}

func (p *pod) marks() *Marks {
	return &Marks{UID: p.Metadata.UID, Labels: p.Metadata.Labels, Annotations: &p.Metadata.Annotations, Spec: &p.Spec}
}

func parse(t testing.TB, text string) *Marks {
	t.Helper()
	var p pod
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return p.marks()
}

// Catches a queue that is not read where its system writes it, and a label that is taken for a queue although it is none.
func TestQueue(t *testing.T) {
	f := func(metadata, spec, want string) {
		t.Helper()
		if got := parse(t, `{"metadata":{"uid":"u",`+metadata+`},"spec":{`+spec+`}}`).Queue(); got != want {
			t.Errorf("%s: queue %q, want %q", metadata, got, want)
		}
	}
	label := func(key, value string) string { return `"labels":{"` + key + `":"` + value + `"}` }
	annotation := func(key, value string) string { return `"annotations":{"` + key + `":"` + value + `"}` }
	f(label("kueue.x-k8s.io/queue-name", "lq"), "", "lq")
	f(annotation("volcano.sh/queue-name", "v"), "", "v")
	f(label("volcano.sh/queue-name", "v"), "", "v")
	f(annotation("scheduling.volcano.sh/queue-name", "v"), "", "v")
	f(label("kai.scheduler/queue", "k"), "", "k")
	f(label("runai/queue", "k"), "", "k")
	f(annotation("yunikorn.apache.org/queue", "root.a"), "", "root.a")
	f(label("yunikorn.apache.org/queue", "root.a"), "", "root.a")
	f(label("queue", "root.a"), `"schedulerName":"yunikorn"`, "root.a")
	f(label("queue", "mails"), `"schedulerName":"default-scheduler"`, "")
	f(label("quota.scheduling.koordinator.sh/name", "q"), "", "q")
	f(`"labels":{"kueue.x-k8s.io/queue-name":"lq","kai.scheduler/queue":"k"}`, "", "lq")
	f(annotation("volcano.sh/queue-name", strings.Repeat("v", 254)), "", "")
	f(`"labels":null`, "", "")
}

// Catches a group that is not read where its system writes it, one that a system made for a single pod, and a minimum that
// is none.
func TestGroup(t *testing.T) {
	f := func(metadata, spec string, group, gang Group) {
		t.Helper()
		m := parse(t, `{"metadata":{"uid":"0a1b",`+metadata+`},"spec":{`+spec+`}}`)
		if diff := cmp.Diff([]Group{group, gang}, []Group{m.Group(), m.Gang()}); diff != "" {
			t.Errorf("%s %s: group and gang (-want +got):\n%s", metadata, spec, diff)
		}
	}
	both := func(metadata, spec string, g Group) { t.Helper(); f(metadata, spec, g, g) }
	both(`"labels":{"kueue.x-k8s.io/pod-group-name":"g"},"annotations":{"kueue.x-k8s.io/pod-group-total-count":"4"}`, "", Group{Kueue, "g", 4})
	both(`"annotations":{"scheduling.k8s.io/group-name":"g","scheduling.volcano.sh/group-min-member":"3"}`, "", Group{Volcano, "g", 3})
	both(`"annotations":{"scheduling.volcano.sh/group-name":"g"}`, "", Group{Volcano, "g", 0})
	both(`"annotations":{"scheduling.k8s.io/group-name":"podgroup-0a1b"}`, "", Group{})
	both(`"annotations":{"pod-group-name":"pg-train-99ff"}`, "", Group{KAI, "pg-train-99ff", 0})
	both(`"annotations":{"pod-group-name":"pg-train-0-0a1b"}`, "", Group{})
	both(`"labels":{"scheduling.x-k8s.io/pod-group":"g"}`, "", Group{Coscheduling, "g", 0})
	both(`"labels":{"pod-group.scheduling.sigs.k8s.io":"g","pod-group.scheduling.sigs.k8s.io/min-available":"2"}`, "", Group{Coscheduling, "g", 2})
	both(`"annotations":{"gang.scheduling.koordinator.sh/name":"g","gang.scheduling.koordinator.sh/min-available":"2"}`, "", Group{Coscheduling, "g", 2})
	const groups = `"yunikorn.apache.org/task-group-name":"w","yunikorn.apache.org/task-groups":"[{\"name\":\"d\",\"minMember\":1},{\"name\":\"w\",\"minMember\":4}]"`
	both(`"labels":{"yunikorn.apache.org/app-id":"a"},"annotations":{`+groups+`}`, "", Group{YuniKorn, "a", 5})
	both(`"labels":{"applicationId":"a"},"annotations":{"yunikorn.apache.org/task-group-name":"w","yunikorn.apache.org/task-groups":"x"}`, "", Group{YuniKorn, "a", 0})
	both(`"labels":{"applicationId":"a"},"annotations":{"yunikorn.apache.org/placeholder":"true",`+groups+`}`, "", Group{})
	both(`"labels":{"applicationId":"a"}`, "", Group{}) // not a gang
	both(`"labels":{}`, `"schedulingGroup":{"podGroupName":"train-0"}`, Group{Kubernetes, "train-0", 0})
	both(`"labels":{}`, `"workloadRef":{"name":"w","podGroup":"workers"}`, Group{Kubernetes, "w/workers", 0})
	both(`"labels":{}`, `"workloadRef":{"name":"w","podGroup":"workers","podGroupReplicaKey":"1"}`, Group{Kubernetes, "w/workers/1", 0})
	// A scheduler that places all or nothing decides more than who releases them.
	both(`"labels":{"kueue.x-k8s.io/pod-group-name":"g"},"annotations":{"pod-group-name":"k"}`, "", Group{KAI, "k", 0})
	f(`"labels":{"leaderworkerset.sigs.k8s.io/name":"vllm","leaderworkerset.sigs.k8s.io/group-index":"1"},"annotations":{"leaderworkerset.sigs.k8s.io/size":"4"}`, "",
		Group{}, Group{LeaderWorkerSet, "vllm-1", 4})
	f(`"labels":{"jobset.sigs.k8s.io/jobset-name":"train"}`, "", Group{}, Group{JobSet, "train", 0})
	for _, text := range []string{"-1", "x", "", "99999999999999999999", "1000001", "4.5"} {
		both(`"labels":{"kueue.x-k8s.io/pod-group-name":"g"},"annotations":{"kueue.x-k8s.io/pod-group-total-count":"`+text+`"}`, "", Group{Kueue, "g", 0})
	}
	both(`"annotations":{"scheduling.k8s.io/group-name":"`+strings.Repeat("g", 300)+`"}`, "", Group{})
}

// Catches the name of a set that a pod of another controller claims.
func TestSet(t *testing.T) {
	f := func(label, kind, direct, want string) {
		t.Helper()
		m := parse(t, `{"metadata":{"labels":{"`+label+`":"train"}}}`)
		setKind, set := m.Set(kind, direct)
		if got := strings.Trim(setKind+"/"+set, "/"); got != want {
			t.Errorf("%s of %s: %q, want %q", kind, direct, got, want)
		}
	}
	f("jobset.sigs.k8s.io/jobset-name", "Job", "train-workers-0", "jobset/train")
	f("jobset.sigs.k8s.io/jobset-name", "Job", "training", "")
	f("jobset.sigs.k8s.io/jobset-name", "ReplicaSet", "train-1", "")
	f("leaderworkerset.sigs.k8s.io/name", "StatefulSet", "train", "leaderworkerset/train")
	f("leaderworkerset.sigs.k8s.io/name", "StatefulSet", "train-0", "leaderworkerset/train")
	f("app", "StatefulSet", "train", "")
}

func FuzzMarks(f *testing.F) {
	f.Add([]byte(`{"metadata":{"uid":"u","labels":{"kueue.x-k8s.io/pod-group-name":"g"},"annotations":{"kueue.x-k8s.io/pod-group-total-count":"4"}}}`))
	f.Add([]byte(`{"spec":{"workloadRef":{"name":"w","podGroup":"workers"}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p pod
		if json.Unmarshal(b, &p) != nil {
			return
		}
		m := p.marks()
		for _, g := range []Group{m.Group(), m.Gang()} {
			if len(g.Name) > maxName || g.Minimum < 0 || (g.Name == "") != (g == Group{}) {
				t.Errorf("group %+v", g)
			}
		}
		if len(m.Queue()) > maxName {
			t.Error("a queue is too long")
		}
	})
}
