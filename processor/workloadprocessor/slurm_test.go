package workloadprocessor

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// job is a Slurm job as named by the agents.
func job(id string) workload.Workload {
	return workload.Workload{ID: "slurm/e2e/" + id, Kind: "slurm_job", Name: "train", Team: "ml", Attributes: map[string]string{
		"slurm.cluster": "e2e", "slurm.job.id": id, "slurm.job.name": "train", "slurm.user": "alice", "slurm.account": "ml",
		"slurm.partition": "gpu", "slurm.qos": "normal", "slurm.array.job.id": "4", "slurm.array.task.id": "1",
	}}
}

func ofJob(id string) string {
	return "gpu.workload.kind=slurm_job gpu.workload.name=train gpu.workload.team=ml slurm.account=ml slurm.array.job.id=4 slurm.array.task.id=1 " +
		"slurm.cluster=e2e slurm.job.id=" + id + " slurm.job.name=train slurm.partition=gpu slurm.qos=normal slurm.user=alice"
}

// Jobs on a node: dcgm-exporter's series of their GPU and spans of their processes get their
// names; of two jobs that share a GPU neither is chosen.
func TestSlurmOnNode(t *testing.T) {
	b := newBench(t, nil)
	tick := machine()
	one := job("7")
	tick.Readings[0].Owner, tick.Readings[0].Holders = &one, []node.Holder{held(one, "")}
	tick.Readings[1].Holders = []node.Holder{held(job("8"), ""), held(job("9"), "")}
	b.tick(tick)
	b.view.processes = map[uint32]workload.Workload{42: job("7")}
	first, second := tick.Readings[0].ID, tick.Readings[1].ID
	md := gauge(nil, "DCGM_FI_DEV_GPU_UTIL", pairs{"UUID", first.UUID}, pairs{"UUID", second.UUID})
	if diff := cmp.Diff([]string{"", ofJob("7"), ""}, b.added(md)); diff != "" {
		t.Errorf("added (-want +got):\n%s", diff)
	}
	md = gauge(pairs{"host.name", tick.Host, "process.pid", 42}, "loss", nil)
	if diff := cmp.Diff([]string{ofJob("7"), ""}, b.added(md)); diff != "" {
		t.Errorf("added to what a process sends (-want +got):\n%s", diff)
	}
}

// A gateway has no Slurm: it knows the jobs from the agents, and a job on two nodes from both.
func TestSlurmInGateway(t *testing.T) {
	g := newGateway(t, nil)
	says := func(id string, index int, uuid string) pairs {
		p := pairs{"gpu.uuid", uuid, "gpu.index", index, "gpu.share.basis", "exclusive"}
		w := job(id)
		for _, tag := range w.Identity() {
			p = append(p, tag.Key, tag.Value)
		}
		return p
	}
	g.hear("gn1", says("7", 4, "GPU-4"), says("8", 5, "GPU-5"), says("9", 5, "GPU-5"))
	g.hear("gn2", says("7", 0, "GPU-10"))
	g.ask(pairs{"host.name", "gn1"}, pairs{"gpu.index", 4}, ofJob("7"))
	g.ask(nil, pairs{"UUID", "GPU-10", "Hostname", "gn2"}, ofJob("7"))
	g.ask(pairs{"host.name", "gn1"}, pairs{"gpu.index", 5}, "") // a shard each
	g.ask(pairs{"host.name", "gn2"}, pairs{"gpu.index", 4}, "")
	// A job named by the sender itself is not mixed with another.
	g.ask(pairs{"host.name", "gn1"}, pairs{"gpu.index", 4, "slurm.job.id", "6"}, "gpu.workload.kind=slurm_job gpu.workload.name=train gpu.workload.team=ml")
}
