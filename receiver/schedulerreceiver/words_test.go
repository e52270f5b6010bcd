package schedulerreceiver

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/await"
)

var update = flag.Bool("update", false, "rewrite the section of docs/schedulers.md")

// meanings says what each name of the shared vocabulary means, by scheduler. A meaning that begins with "absent" says why
// the scheduler does not have it.
var meanings = []struct{ name, slurm, kubernetes string }{
	{"scheduler.up", "the controller answered everything", "pods and nodes are watched; only by the elected process, or by all if nobody can be elected"},
	{"scheduler.job.count", "jobs with GPUs, each task of an array; ended ones for `MinJobAge`", "pods that ask for GPUs or parts of them; ended ones until they are deleted"},
	{"scheduler.job.pending.count", "the same, by the reason that squeue shows", "the same, by what keeps the pod from the nodes with enough free GPUs"},
	{"scheduler.gpu.count", "by the type in gres.conf; allocated also by shards and MPS", "by the model label of the node; allocated to pods that have not ended. GPUs that the device plugin withholds are down"},
	{"scheduler.gpu.allocated", "of jobs; without a type, which the queue does not say", "of pods on a node"},
	{"scheduler.gpu.pending", "of jobs; without a type", "of pods; with a type if the pod can only run on one"},
	{"scheduler.gpu.requested", "the sum of both", "the sum of both"},
	{"scheduler.gpu.placeable", "on nodes that accept jobs", "on nodes that are ready, not cordoned and not tainted for everybody"},
	{"scheduler.gpu.fragmentation", "of the same nodes", "of the same nodes"},
	{"scheduler.gpu.stranded", "all CPUs or all memory of the node are allocated; `cordoned` if it is drained or reserved, `not_ready` if it is down; no `taint`: Slurm has none", "per GPU, by the CPU and memory that pods of the last day ask for, as a median"},
	{"scheduler.gpu.unusable.ratio", "absent: the queue says what a job asks for in total, not per node", "over the pods that exist or ended during the last day, as far as the elected process has seen them"},
	{"scheduler.job.wait.duration", "from eligible to start", "from created to scheduled, including gates"},
	{"scheduler.job.startup.duration", "absent: a job has started when it has its GPUs", "from scheduled until the first container started: images, volumes, init containers"},
}

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

	s := queued()
	url, stop := s.Serve()
	defer stop()
	sink, _ := kubernetes(t, url)
	await.True(t, "pods are watched", func() bool { return points(last(sink))["scheduler.up"] == 1 })
	starts(s)
	await.True(t, "a pod started", func() bool { return points(last(sink))["scheduler.job.startup.duration ml"] == 1 })
	pods := names(points(last(sink)))

	var b bytes.Buffer
	b.WriteString("\n| metric | Slurm | Kubernetes |\n|---|---|---|\n")
	described := map[string]bool{}
	for _, m := range meanings {
		described[m.name] = true
		for _, have := range []struct {
			whose, meaning string
			names          map[string]bool
		}{{"Slurm", m.slurm, slurm}, {"Kubernetes", m.kubernetes, pods}} {
			if absent := strings.HasPrefix(have.meaning, "absent"); absent == have.names[m.name] {
				t.Errorf("%s of %s: reported %v, described as %q", m.name, have.whose, have.names[m.name], have.meaning)
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.name, m.slurm, m.kubernetes)
	}
	for name := range pods {
		if !described[name] {
			t.Errorf("%s has no meaning here", name)
		}
	}
	b.WriteString("\n")
	rewrite(t, "../../docs/schedulers.md", b.String())
}

// rewrite compares the generated section of a document, or replaces it.
func rewrite(t *testing.T, path, section string) {
	t.Helper()
	const begin, end = "[comment]: <> (Written by go test -update from receiver/schedulerreceiver. Do not edit until the next comment.)\n", "[comment]: <> (End.)\n"
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
