//go:build linux

package demo

import (
	"fmt"
	"maps"
	"time"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/simulated"
)

// asked is what pods of the fleet asked their scheduler for besides devices, and how long they waited.
type asked struct {
	cpus, memory int64 // per device; GiB
	// gated is how long they waited behind a scheduling gate, and waited until they had their devices after that.
	gated, waited time.Duration
	starts        time.Duration // from having the devices until the first container ran
}

// usual is what a pod asks for if requests does not say.
var usual = asked{cpus: 8, memory: 64, waited: 2 * time.Second, starts: 20 * time.Second}

// requests are the exceptions, by namespace and workload. Those that are gated found their devices free when their queue
// admitted them.
var requests = map[[2]string]asked{
	{"research", "llama-sft"}:          {cpus: 12, memory: 128, gated: 35 * time.Minute, waited: 3 * time.Second, starts: 80 * time.Second},
	{"research", "mixtral-pretrain-2"}: {cpus: 12, memory: 128, gated: 4*time.Hour + 20*time.Minute, waited: 3 * time.Second, starts: 3*time.Minute + 20*time.Second},
	{"research", "qwen-finetune"}:      {cpus: 10, memory: 128, gated: 50 * time.Minute, waited: 2 * time.Second, starts: 2*time.Minute + 30*time.Second},
	{"research", "reward-model"}:       {cpus: 12, memory: 128, gated: 90 * time.Minute, waited: 4 * time.Second, starts: 70 * time.Second},
	{"research", "nightly-eval"}:       {cpus: 10, memory: 96, gated: 15 * time.Minute, waited: 2 * time.Second, starts: 40 * time.Second},
	{"research", "mistral-finetune"}:   {cpus: 12, memory: 96, gated: 3 * time.Minute, waited: 2 * time.Second, starts: 55 * time.Second},
	// These leave too few CPUs beside the two free GPUs of their node.
	{"inference", "embeddings"}: {cpus: 26, memory: 64, waited: 2 * time.Second, starts: 45 * time.Second},
	{"inference", "summarizer"}: {cpus: 10, memory: 128, waited: 2 * time.Second, starts: 2 * time.Minute},
}

func requestOf(namespace, owner string) asked {
	if a, ok := requests[[2]string{namespace, owner}]; ok {
		return a
	}
	return usual
}

const (
	admission  = "kueue.x-k8s.io/admission" // the gate of pods that Kueue has not admitted
	queueLabel = "kueue.x-k8s.io/queue-name"
	groupLabel = "scheduling.x-k8s.io/pod-group"
)

// queue returns the pods that wait when the demo starts, and go on waiting.
func queue() []simulated.Pod {
	list := []simulated.Pod{
		// Four H100 are free, but on two nodes.
		waits("vision", "detector-train", "vision", 41*time.Hour+30*time.Minute, "h100", 4, simulated.Pod{}),
		// Two MI300X are free, beside too few CPUs.
		waits("research", "eval-suite", "research", 46*time.Hour, "mi300x", 1, simulated.Pod{CPUs: 16}),
		// The team holds eight GPUs, all that its quota permits, and leaves them idle.
		waits("vision", "segmentation-prod", "vision", 43*time.Hour+5*time.Minute, "h100", 2, simulated.Pod{
			Words: "Pod vision/segmentation-prod-0 is rejected in PreFilter because ElasticQuota vision is more than Max",
		}),
		waits("product", "ranker", "product", 47*time.Hour+12*time.Minute, "h100", 2, simulated.Pod{Gate: admission, Labels: map[string]string{queueLabel: "product"}}),
		waits("research", "mixtral-eval", "research", 47*time.Hour+35*time.Minute, "h200", 2, simulated.Pod{}),
	}
	// A gang: all four pods or none.
	for i := range 4 {
		p := waits("research", "llama-70b", "research", 45*time.Hour+20*time.Minute, "h100", 4, simulated.Pod{
			Labels: map[string]string{groupLabel: "llama-70b"},
			Words:  "PodGroup research/llama-70b gets rejected due to Pod llama-70b-1 is unschedulable even after PostFilter",
		})
		p.Name, p.UID = fmt.Sprintf("llama-70b-%d", i), podUID("research", fmt.Sprintf("llama-70b-%d", i))
		list = append(list, p)
	}
	return list
}

// waits completes a pod that waits from created on for devices of a model.
func waits(namespace, owner, team string, created time.Duration, model string, devices int64, p simulated.Pod) simulated.Pod {
	kind, _ := sim.OfferOf(model) // TestDemoQueue fails for a model that is not offered
	p.Namespace, p.Name, p.UID, p.Kind, p.Owner, p.Container = namespace, owner+"-0", podUID(namespace, owner), "job", owner, "main"
	p.Created, p.Devices, p.Selector = created, map[string]int64{kind.Resource: devices}, map[string]string{kind.Label: kind.Product}
	labels := map[string]string{teamLabel: team}
	maps.Copy(labels, p.Labels)
	p.Labels = labels
	if p.CPUs == 0 {
		p.CPUs = usual.cpus * devices
	}
	p.Memory = usual.memory * devices
	return p
}

// Short tests of the compiler team queue for one device, first come, first served.
const (
	testsFrom  = 27*time.Hour + 10*time.Minute // since then the other devices of their kind are taken
	testsUntil = 72 * time.Hour
	testsEvery = 34 * time.Minute
)

// tests returns the stays of the tests. Their names count up, so that each has its own times.
func tests() []stay {
	var list []stay
	free := testsFrom
	for i := 0; testsFrom+time.Duration(i)*testsEvery < testsUntil; i++ {
		from := max(created(i), free) + 2*time.Second
		s := pod("ci", fmt.Sprintf("kernel-tests-%03d", i), "cronjob", "tests", "compiler").from(from).until(from + time.Duration(14+hash(fmt.Sprint("length", i))%34)*time.Minute).loading(time.Minute)
		s.Pod.Owner = "kernel-tests"
		free = s.Until + 3*time.Second
		list = append(list, s)
	}
	return list
}

// created is when a test is created: more or less regularly.
func created(i int) time.Duration {
	return testsFrom + time.Duration(i)*testsEvery + time.Duration(hash(fmt.Sprint("created", i))%900)*time.Second
}
