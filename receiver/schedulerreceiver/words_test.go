package schedulerreceiver

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/work"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

var update = flag.Bool("update", false, "rewrite the section of docs/schedulers.md")

// meanings says what each name of the shared vocabulary means, by scheduler. A meaning that begins with "absent" says why
// the scheduler does not have it.
var meanings = []struct{ name, slurm, kubernetes string }{
	{"scheduler.up", "the controller answered everything", "pods and nodes are watched; only by the elected process, or by all if nobody can be elected"},
	{"scheduler.job.count", "jobs with GPUs, each task of an array; ended ones for `MinJobAge`", "pods that ask for GPUs or parts of them, by resources or by claims; ended ones until they are deleted"},
	{"scheduler.job.pending.count", "the same, by the reason that squeue shows", "the same, by what keeps the pod from the nodes with enough free GPUs"},
	{"scheduler.gpu.count", "by the type in gres.conf; allocated also by shards and MPS", "by the model label of the node, or the model that a driver for claims says; allocated to pods that have not ended, or to claims. GPUs that the device plugin withholds, or with a taint of their driver, are down"},
	{"scheduler.gpu.allocated", "of jobs; without a type, which the queue does not say", "of pods on a node; those of a claim that several pods share for the oldest of them"},
	{"scheduler.gpu.pending", "of jobs; without a type", "of pods; with a type if the pod can only run on one"},
	{"scheduler.gpu.requested", "the sum of both", "the sum of both"},
	{"scheduler.waiting.gpu", "by job; the tasks of an array together. No more than 100 jobs by name", "by pod. No more than 100 pods by name"},
	{"scheduler.waiting.time", "of the same jobs, since they may start", "of the same pods, since they were created"},
	{"scheduler.gpu.placeable", "on nodes that accept jobs", "on nodes that are ready, not cordoned and not tainted for everybody"},
	{"scheduler.gpu.fragmentation", "of the same nodes", "of the same nodes"},
	{"scheduler.gpu.stranded", "all CPUs or all memory of the node are allocated; `cordoned` if it is drained or reserved, `not_ready` if it is down; no `taint` and no `unhealthy`: Slurm has none", "per GPU, by the CPU and memory that pods of the last day ask for, as a median; `unhealthy` what is withheld"},
	{"scheduler.gpu.unusable.ratio", "absent: the queue says what a job asks for in total, not per node", "over the pods that exist or ended during the last day, as far as the elected process has seen them"},
	{"scheduler.group.count", "absent: a Slurm job is placed as a whole", "groups of Kubernetes, Kueue, Volcano, KAI, YuniKorn, the scheduler plugins, LeaderWorkerSet and JobSet; absent where only a PodGroup says how many members are needed, and that may not be watched"},
	{"scheduler.group.member.count", "absent: a Slurm job is placed as a whole", "pods of these groups"},
	{"scheduler.job.evicted", "absent: the queue does not say why a job was requeued", "pods with the condition DisruptionTarget, or that end because Kueue evicted their Workload"},
	{"scheduler.claim.count", "absent: Slurm has no claims", "ResourceClaims of drivers for accelerators, with any number of pods; absent unless claims, slices and classes may be watched"},
	{"scheduler.claim.device.count", "absent: Slurm has no claims", "of the same claims. Of a request for all devices of a node one, until it is allocated"},
	{"scheduler.job.wait.duration", "from eligible to start", "from created to scheduled, including gates"},
	{"scheduler.job.startup.duration", "absent: a job has started when it has its GPUs", "from scheduled until the first container started: images, volumes, init containers"},
	{
		"scheduler.job.first_work.duration", "from eligible to the first work on a GPU of the first of its nodes, as the agent there saw it",
		"from created to the first work on a GPU, as the agent of the node saw it",
	},
	{
		"scheduler.job.phase.duration", "`warmup`: from the start to the first work. The queue does not say for how long a job was held",
		"parts of all three: `quota`, `admission` (Kueue), `gated`, `queued`; `sandbox` (volumes, network), `init`, `image`; all three as `image` where the kubelet does not tell in time; `warmup`, from the start to the first work. When gates went is not always known: those before `sandbox` are missing then",
	},
	{
		"scheduler.workload.admission.duration", "absent: Slurm has no Workloads",
		"of Workloads of Kueue, from created to admitted. Pods of a Job are created only then",
	},
}

// system is what a queueing system says of itself, by name without scheduler.queue. As in meanings, what begins with
// "absent" says why it does not say it.
type system struct {
	title, kind string // kind is the value of scheduler.type
	means       map[string]string
}

// queueNames are the names that a queueing system may report, without scheduler.queue, in the order in which people read them.
var queueNames = []string{"gpu.limit", "gpu.nominal", "gpu.used", "gpu.borrowed", "gpu.pending", "gpu.capacity", "fair_share", "job.count", "evicted", "attempts", "wait.duration", "attempt.duration"}

var queueings = append([]system{
	{"Slurm", "slurm", map[string]string{
		"gpu.limit":        "absent: limits belong to associations and QOS, which the receiver does not ask for; the size of a partition is no limit of its own, as partitions share nodes",
		"gpu.nominal":      "absent: shares are parts of the cluster, not numbers of GPUs",
		"gpu.used":         "GPUs of jobs, by partition and account",
		"gpu.borrowed":     "absent: nothing is lent",
		"gpu.pending":      "GPUs of pending jobs, by partition and account",
		"gpu.capacity":     "absent: `scheduler.gpu.count` has it",
		"fair_share":       "of an account, as `scheduler.team`: its decayed usage over its shares, both relative to its siblings. 1 is exactly its share",
		"job.count":        "absent: `scheduler.job.count` has it",
		"evicted":          "absent: the queue does not say why a job was requeued",
		"attempts":         "absent: sdiag counts cycles, not attempts: `slurm.scheduler.cycle.count`",
		"wait.duration":    "absent: `scheduler.job.wait.duration` has it",
		"attempt.duration": "absent: `slurm.scheduler.cycle.time` has it",
	}},
}, scraped...)

// Catches a metric of the vocabulary that has no meaning, one that is described and not reported, and one that is
// reported and described as absent.
func TestWordsDocument(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Metrics.SchedulerGpuRequested.Enabled = true
	e := newEmitter(cfg, receivertest.NewNopSettings(component.MustNewType("scheduler")))
	first := round(0)
	first.Jobs = first.Jobs[:0]
	e.emit(first)
	slurm := names(points(e.emit(round(60))))
	onNode := seenOnNode()
	maps.Copy(slurm, onNode)

	s := queued()
	claims(s)
	gang(s)
	admits := admission(s)
	url, stop := s.Serve()
	defer stop()
	sink, _ := kubernetes(t, url)
	await.True(t, "pods are watched", func() bool { return points(last(sink))["scheduler.up"] == 1 })
	starts(s)
	evict(s)
	admits()
	await.True(t, "a pod started, one was evicted and a Workload was admitted", func() bool {
		got := points(last(sink))
		return got["scheduler.job.startup.duration ml"] == 1 && got["scheduler.job.evicted preempted gangs nlp"] == 1 && got["scheduler.workload.admission.duration ml"] == 1
	})
	now := time.Now().UTC().Format(time.RFC3339)
	s.PutPod(kubeapitest.Pod("gn3", "ml", "new", "u-new", object{
		"metadata": object{"creationTimestamp": now},
		"spec":     object{"containers": []object{{"name": "main", "resources": object{"requests": object{"nvidia.com/gpu": "1"}}}}},
		"status":   object{"conditions": []object{{"type": "PodScheduled", "status": "True", "lastTransitionTime": now}}},
	}))
	await.True(t, "a new pod was queued", func() bool {
		return points(last(sink))["scheduler.job.phase.duration queued 1"] == 1
	})
	pods := names(points(last(sink)))
	maps.Copy(pods, onNode)

	var b bytes.Buffer
	b.WriteString("\n| metric | Slurm | Kubernetes |\n|---|---|---|\n")
	described := map[string]bool{}
	for _, m := range meanings {
		described[m.name] = true
		meant(t, "Slurm", m.name, m.slurm, slurm)
		meant(t, "Kubernetes", m.name, m.kubernetes, pods)
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.name, m.slurm, m.kubernetes)
	}
	b.WriteString("\n")
	rewrite(t, "../../docs/schedulers.md", "", b.String())

	reported := onPages(t)
	reported[slurmKind] = slurm
	rewrite(t, "../../docs/schedulers.md", " Queues.", queueTable(t, reported))
	for _, name := range queueNames {
		described["scheduler.queue."+name] = true
	}
	for name := range pods {
		if !described[name] {
			t.Errorf("%s of Kubernetes has no meaning here", name)
		}
	}
	for kind, names := range reported {
		for name := range names {
			if !described[name] {
				t.Errorf("%s of %s has no meaning here", name, kind)
			}
		}
	}
}

// seenOnNode returns what the agent of a node reports of any scheduler.
func seenOnNode() map[string]bool {
	md := pmetric.NewMetrics()
	one := scheduler.Histograms{}
	one.Add("gpu 1", time.Second)
	worked(md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics(), "c", &work.Sums{Worked: one, Phases: one}, time.Unix(1, 0), 1)
	return names(points(md))
}

// meant fails unless a scheduler reports a metric if, and only if, its meaning is not that it is absent.
func meant(t *testing.T, whose, name, meaning string, reported map[string]bool) {
	t.Helper()
	if meaning == "" {
		t.Errorf("%s of %s has no meaning", name, whose)
	}
	if absent := strings.HasPrefix(meaning, "absent"); absent == reported[name] {
		t.Errorf("%s of %s: reported %v, described as %q", name, whose, reported[name], meaning)
	}
}

// queueTable returns a table of scheduler.queue by queueing system, and below it what each means. reported has the names
// that each reports, by scheduler.type.
func queueTable(t *testing.T, reported map[string]map[string]bool) string {
	t.Helper()
	var table, below bytes.Buffer
	table.WriteString("\n| `scheduler.queue.` |")
	for _, q := range queueings {
		fmt.Fprintf(&table, " %s |", q.title)
		fmt.Fprintf(&below, "\n**%s**, `scheduler.type` is `%s`:\n\n", q.title, q.kind)
		for _, name := range queueNames {
			meant(t, q.title, "scheduler.queue."+name, q.means[name], reported[q.kind])
			fmt.Fprintf(&below, "* `%s`: %s.\n", name, q.means[name])
		}
		if len(q.means) != len(queueNames) {
			t.Errorf("%s has a meaning for a name that does not exist", q.title)
		}
	}
	table.WriteString("\n|---|" + strings.Repeat("---|", len(queueings)) + "\n")
	for _, name := range queueNames {
		fmt.Fprintf(&table, "| `%s` |", name)
		for _, q := range queueings {
			cell := "yes"
			if strings.HasPrefix(q.means[name], "absent") {
				cell = "–"
			}
			fmt.Fprintf(&table, " %s |", cell)
		}
		table.WriteString("\n")
	}
	return table.String() + below.String() + "\n"
}

// rewrite compares a generated section of a document, or replaces it.
func rewrite(t *testing.T, path, name, section string) {
	t.Helper()
	begin := "[comment]: <> (Written by go test -update from receiver/schedulerreceiver. Do not edit until the next comment." + name + ")\n"
	const end = "[comment]: <> (End.)\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no generated section", path)
	}
	want := before + begin + section + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is out of date, rewrite it with make generate", path)
	}
}

// names returns the names of the shared vocabulary among points.
func names(points map[string]float64) map[string]bool {
	out := map[string]bool{}
	for p := range points {
		if name, _, _ := strings.Cut(p, " "); strings.HasPrefix(name, "scheduler.") {
			out[name] = true
		}
	}
	return out
}
