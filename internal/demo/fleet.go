//go:build linux

package demo

import (
	"fmt"
	"hash/fnv"
	"io"
	"time"

	"github.com/gpumeter/gpumeter/internal/device/sim"
)

// Age is the uptime of the simulated nodes when the demo starts. Times in Fleet are relative
// to their boot.
const Age = 48 * time.Hour

// Machine is one simulated node.
type Machine struct {
	Host   string
	Labels map[string]string // resource attributes
	Groups []sim.Group
}

// The models that inference engines of the fleet serve.
const (
	chatModel    = "meta-llama/Llama-3.3-70B-Instruct"
	summaryModel = "mistralai/Mistral-Large-Instruct-2411"
)

// Fleet returns the simulated nodes: normal workloads, an idle hoarder, a thief, a sick GPU, a
// job that uses one of its four GPUs, an inference engine with a full cache, a pool whose free GPUs are on
// two nodes, a device that short tests queue for, and nodes of several schedulers and vendors.
func Fleet() []Machine {
	return []Machine{
		{"h100-01", kubernetes("h100-01"), []sim.Group{
			{Model: "h100", Devices: 4, Role: "training", Stays: stays(pod("research", "llama-sft", "job", "trainer", "research").from(31 * time.Hour))},
			{Model: "h100", Devices: 1, Role: "inference", Serves: chatModel, Stays: stays(pod("inference", "chat-api", "deployment", "vllm", "product"))},
			{
				Model: "h100", Devices: 1, Role: "inference", Serves: chatModel, Stays: stays(pod("inference", "chat-api", "deployment", "vllm", "product")),
				Thief: thief(pod("notebooks", "mallory", "statefulset", "jupyter", "interns").from(40 * time.Hour)),
			},
			{Model: "h100", Devices: 1, Role: "partitioned"},
			{Model: "h100", Devices: 1, Role: "training"}, // unallocated
		}},
		{"h100-02", kubernetes("h100-02"), []sim.Group{
			{Model: "h100", Devices: 8, Role: "idle", Stays: stays(pod("vision", "segmentation-dev", "statefulset", "workspace", "vision").from(5 * time.Hour))},
		}},
		{"h200-01", kubernetes("h200-01"), []sim.Group{
			{Model: "h200", Devices: 7, Role: "training", Stays: stays(
				pod("research", "mixtral-pretrain", "job", "trainer", "research").until(42*time.Hour),
				pod("research", "mixtral-pretrain-2", "job", "trainer", "research").from(42*time.Hour+40*time.Minute).loading(16*time.Minute))},
			{Model: "h200", Devices: 1, Role: "sick", Onset: 44 * time.Hour, Stays: stays(
				pod("research", "mixtral-pretrain", "job", "trainer", "research").until(42*time.Hour),
				pod("research", "mixtral-pretrain-2", "job", "trainer", "research").from(42*time.Hour+40*time.Minute).loading(16*time.Minute))},
		}},
		{"a100-01", map[string]string{}, []sim.Group{
			{Model: "a100", Devices: 3, Role: "training", Stays: stays(
				job("48201", "protein-fold", "rosa", "biology").until(37*time.Hour),
				job("48277", "protein-fold", "rosa", "biology").from(38*time.Hour))},
			{Model: "a100", Devices: 1, Role: "training", Stays: stays(job("48290", "md-sweep", "otto", "chemistry").from(26 * time.Hour))},
			{Model: "a100", Devices: 3, Role: "idle", Stays: stays(job("48290", "md-sweep", "otto", "chemistry").from(26 * time.Hour))},
			{Model: "a100", Devices: 1, Role: "overheating", Stays: stays(job("48255", "cfd-wing", "mina", "engineering").from(20 * time.Hour).until(45 * time.Hour))},
		}},
		{"mi300x-01", kubernetes("mi300x-01"), []sim.Group{
			{Model: "mi300x", Devices: 2, Role: "inference", Stays: stays(pod("inference", "embeddings", "deployment", "vllm", "product"))},
			{Model: "mi300x", Devices: 2, Role: "saturated", Serves: summaryModel, Stays: stays(pod("inference", "summarizer", "deployment", "sglang", "product"))},
			{Model: "mi300x", Devices: 2, Role: "training", Stays: stays(pod("research", "qwen-finetune", "job", "trainer", "research").from(35 * time.Hour).loading(9 * time.Minute))},
			{Model: "mi300x", Devices: 2, Role: "training", Stays: stays(pod("research", "nightly-eval", "cronjob", "eval", "research").from(29 * time.Hour).until(32 * time.Hour))},
		}},
		{"lab-01", kubernetes("lab-01"), []sim.Group{
			{Model: "gaudi3", Devices: 2, Role: "training", Stays: stays(pod("research", "mistral-finetune", "job", "trainer", "research").from(27 * time.Hour))},
			{Model: "p150a", Devices: 2, Role: "inference", Stays: stays(pod("inference", "tagger", "deployment", "server", "product"))},
			{Model: "gaudi3", Devices: 1, Role: "training", Stays: stays(tests()...)},
		}},
		{"h100-03", kubernetes("h100-03"), []sim.Group{
			{Model: "h100", Devices: 4, Role: "training", Stays: stays(pod("research", "reward-model", "job", "trainer", "research").from(30 * time.Hour).loading(6 * time.Minute))},
			{Model: "h100", Devices: 1, Role: "inference", Stays: stays(pod("vision", "labeler", "deployment", "server", "vision"))},
			{Model: "h100", Devices: 3, Role: "training"}, // unallocated
		}},
	}
}

func kubernetes(node string) map[string]string {
	return map[string]string{"k8s.cluster.name": "demo", "k8s.node.name": node}
}

// stay is a sim.Stay with chainable setters.
type stay sim.Stay

func pod(namespace, owner, kind, container, team string) stay {
	return stay{Pod: sim.Pod{
		Namespace: namespace, Name: owner + "-0", UID: podUID(namespace, owner), Container: container, Kind: kind, Owner: owner, Team: team,
	}}
}

func job(id, name, user, account string) stay {
	return stay{Job: sim.Job{ID: id, Name: name, User: user, Account: account, Partition: "gpu", Cluster: "demo-hpc"}}
}

func (s stay) from(d time.Duration) stay {
	s.From = d
	return s
}

func (s stay) until(d time.Duration) stay {
	s.Until = d
	return s
}

func (s stay) loading(d time.Duration) stay {
	s.Loads = d
	return s
}

func thief(s stay) *sim.Stay {
	out := sim.Stay(s)
	return &out
}

func stays(list ...stay) []sim.Stay {
	out := make([]sim.Stay, len(list))
	for i, s := range list {
		out[i] = sim.Stay(s)
	}
	return out
}

// podUID returns a UID that is stable across runs of the demo.
func podUID(namespace, owner string) string {
	h := hash(namespace + "/" + owner)
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", h>>32, h>>16&0xffff, h&0xfff, h>>20&0xfff, h&(1<<48-1))
}

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, s) // a hash never fails
	return h.Sum64()
}
