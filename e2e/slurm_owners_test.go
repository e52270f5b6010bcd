//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// add adds a running job and lets it use its GPUs.
func (x *slurmTest) add(j *slurmJob, gpus, percent int) *slurmJob {
	x.t.Helper()
	for _, p := range j.on {
		if len(p.gpus) != gpus {
			x.t.Fatalf("job %s may open GPUs %v of %s, want %d", j.id, p.gpus, slurmNodes[p.node], gpus)
		}
	}
	if percent > 0 {
		x.use(j, percent)
	}
	x.jobs = append(x.jobs, j)
	return j
}

// Catches a job without its GPUs, or without the name that its user gave it, which may look like a setting,
// and usage that is not the job's on either path.
func (x *slurmTest) batchJob() {
	const name = "train llm=7b"
	x.batched = x.add(x.running(x.red, x.submit(x.red, name, "--gres=gpu:2", "-w", slurmNodes[0]), name, 0), 2, 50)
	x.expectHeld()
	p := x.batched.on[0]
	owned, used := answer{}, answer{}
	for _, gpu := range p.gpus {
		owned.add(x.batched.of(0, gpu), 1)
		used.add(with(x.batched.of(0, gpu), "gpu_share_basis", "exclusive"), 0.5)
	}
	x.expect(strings.Replace(of("gpu_memory_used_bytes", `gpu_workload_kind!="", `), "sum", "count", 1), owned)
	x.expect(of("gpu_workload_utilization_ratio", `slurm_job_id!="", `), used)
	// A counter of a device continues when its owner changes.
	x.expect(of("gpu_energy_joules_total", `gpu_workload_kind!="", `), answer{})
	for node := range slurmNodes {
		x.expectStatus(node, "slurm", "ok")
		x.expectStatus(node, "slurm_controller", "ok")
	}
}

// Catches a job on two nodes, with different GPUs on each, whose allocation on one node is applied to the
// other.
func (x *slurmTest) twoNodes() {
	script := x.script("two", "#!/bin/sh\nexec srun "+x.dir+"/worker\n")
	id := x.batch(x.blue, "ddp", script, "-N2", "--ntasks-per-node=1", "--gpus-per-node=1")
	j := x.add(x.running(x.blue, id, "ddp", 0, 1), 1, 30)
	if slices.Equal(j.on[0].gpus, j.on[1].gpus) {
		x.t.Errorf("the job has GPU %v on both nodes", j.on[0].gpus)
	}
	x.expectHeld()
}

// Catches an array task that is not a job, or lacks the ID of its array.
func (x *slurmTest) arrayJob() {
	array := x.submit(x.red, "sweep", "--array=0-1", "--gres=gpu:1", "-w", slurmNodes[1])
	var lines []string
	eventually(x.t, "the array runs", func() error {
		lines = strings.Fields(x.run("squeue", "-h", "-r", "-t", "R", "-o", "%A=%K", "-j", array))
		if len(lines) != 2 {
			return fmt.Errorf("%v do", lines)
		}
		return nil
	})
	for _, line := range lines {
		id, task, _ := strings.Cut(line, "=")
		j := x.running(x.red, id, "sweep", 1)
		j.array, j.task = array, task
		x.add(j, 1, 40)
	}
	x.expectHeld()
}

// Catches two jobs on one GPU whose shares or usage do not add up, with the free part, to the GPU.
func (x *slurmTest) shardJobs() {
	node, gpu := 1, sharedIndex(1)
	var labels []map[string]string
	for i, name := range []string{"quick", "slow"} {
		id := x.submit(x.blue, name, fmt.Sprintf("--gres=shard:%d", i+1), "-w", slurmNodes[node])
		j := x.running(x.blue, id, name, node)
		if !slices.Equal(j.on[0].gpus, []int{gpu}) {
			x.t.Fatalf("job %s has GPUs %v, want %d", id, j.on[0].gpus, gpu)
		}
		j.part = float64(i+1) / shards
		x.add(j, 1, []int{60, 20}[i])
		labels = append(labels, j.of(node, gpu))
	}
	x.expectHeld()
	onGPU := fmt.Sprintf("gpu_uuid=%q, ", slurmUUID(node, gpu))
	rest := map[string]string{"gpu_workload_kind": "unallocated", "gpu_uuid": slurmUUID(node, gpu)}
	free := answer{}
	free.add(rest, 0.25)
	x.expect(of("gpu_unallocated_ratio", onGPU), free)
	x.expect(of("gpu_allocation_ratio", onGPU+`gpu_workload_kind!="slurm_job", `, "gpu_share_basis"), answer{})

	used, joules := answer{}, answer{}
	used.add(with(labels[0], "gpu_share_basis", "process"), 0.6)
	used.add(with(labels[1], "gpu_share_basis", "process"), 0.2)
	x.expect(of("gpu_workload_utilization_ratio", onGPU+`slurm_job_id!="", `), used)
	x.burn(node, gpu, 800)
	joules.add(labels[0], 600)
	joules.add(labels[1], 200)
	x.expect(of("gpu_workload_energy_joules_total", onGPU+`slurm_job_id!="", `), joules)
	whole := answer{}
	whole.add(map[string]string{"gpu_uuid": slurmUUID(node, gpu)}, 800) // including usage before it was allocated
	x.expect("sum by (gpu_uuid) (gpu_workload_energy_joules_total{"+onGPU+"%s})", whole)
	// A gauge of a shared device has no owner.
	x.expect(of("gpu_memory_used_bytes", onGPU+`gpu_workload_kind!="", `), answer{})
}

// Catches an allocated but unused GPU whose time is not reported as the job's idle time.
func (x *slurmTest) idleJob() {
	id := x.submit(x.red, "forgotten", "--gres=gpu:1", "-w", slurmNodes[0])
	x.idle = x.add(x.running(x.red, id, "forgotten", 0), 1, 0)
	x.expectHeld()
	of := func(metric string) string {
		return fmt.Sprintf("gpu_workload_%s_time_seconds_total{slurm_job_id=%q, %%[1]s}", metric, id)
	}
	one := func(n float64) answer {
		a := answer{}
		a.add(map[string]string{}, n)
		return a
	}
	x.expect("sum("+of("allocated")+") > bool 2", one(1))
	x.expect("sum("+of("active")+")", one(0))
	x.expect("sum("+of("allocated")+") - sum("+of("idle")+")", one(0))

	// Only the controller knows a job that runs nothing.
	x.add(x.reserve(x.blue, "reserved", 1, "--gres=gpu:1"), 1, 0)
	x.add(x.reserve(x.blue, "reserved", 0, "--gres=gpu:1"), 1, 0)
	x.expectHeld()
}

// Catches an interactive job that is not attributed.
func (x *slurmTest) interactiveJob() {
	x.add(x.interactive(x.parent.t, x.blue, "notebook", 0, "--gres=gpu:1"), 1, 10)
	x.expectHeld()
}

// Catches a process of a job on a GPU that is not allocated to it and that is not attributed to the job.
func (x *slurmTest) thief() {
	gpu := sharedIndex(0)
	stolen := slurmUse{0, gpu, x.batched.on[0].pid, 70}
	x.uses = append(x.uses, stolen)
	x.write()
	query, held := x.heldQuery()
	answer(held).add(x.batched.of(0, gpu), 1)
	x.expect(query, held)

	x.uses = slices.DeleteFunc(x.uses, func(u slurmUse) bool { return u == stolen })
	x.write()
	x.expectHeld()
}

// Catches an agent without the controller that reports jobs with a process differently.
func (x *slurmTest) offline() {
	a := x.agent("offline", 0, "", map[string]any{"offline": true})
	want := answer{}
	for _, j := range x.jobs {
		if !j.bare {
			j.holds(want, 0)
		}
	}
	eventually(x.t, "the page", func() error {
		if diff := cmp.Diff(want, x.scrape(a.page, "gpu_allocation_ratio", "gpu_share_basis")); diff != "" {
			return fmt.Errorf("gpu_allocation_ratio (-want +got):\n%s", diff)
		}
		return nil
	})
	a.stop(x.t)
}

// scrape returns a page's values for jobs, without common labels and drop.
func (x *slurmTest) scrape(page, metric string, drop ...string) answer {
	x.t.Helper()
	text, err := get(x.t, "http://"+page+"/metrics")
	if err != nil {
		x.t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		x.t.Fatal(err)
	}
	drop = append(drop, "gpu_index", "gpu_model", "gpu_vendor", "host_name")
	got := answer{}
	for _, m := range families[metric].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			if !slices.Contains(drop, l.GetName()) {
				labels[l.GetName()] = l.GetValue()
			}
		}
		if labels["gpu_workload_kind"] == "slurm_job" {
			got.add(labels, m.GetGauge().GetValue()+m.GetCounter().GetValue())
		}
	}
	return got
}

// slurmSoon is when the last trace of a job must be gone: the controller may just have reported it as
// completing. The rest covers the reads of control groups and GPUs, and slack for a busy machine.
const slurmSoon = slurmRefresh + 3*slurmInterval

// Catches series other than the sums of a finished job on either path, and sums that change.
func (x *slurmTest) endedJob() {
	x.cancel(x.idle)
	gone := time.Now()
	x.jobs = slices.DeleteFunc(x.jobs, func(j *slurmJob) bool { return j == x.idle })
	want := answer{}
	for _, sum := range []string{"energy_joules", "allocated_time_seconds", "active_time_seconds", "idle_time_seconds"} {
		want.add(map[string]string{"__name__": "gpu_workload_" + sum + "_total"}, 1)
	}
	time.Sleep(time.Until(gone.Add(slurmSoon))) // a database cannot be queried about the future
	last := map[string]map[string]string{}
	for path, selector := range paths {
		all := fmt.Sprintf("{slurm_job_id=%q, %s}", x.idle.id, selector)
		last[path] = x.db.at(all, gone.Add(slurmSoon))
		if diff := cmp.Diff(map[string]string(want), x.db.rounded(x.t, "count by (__name__) ("+all+")", gone.Add(slurmSoon))); diff != "" {
			x.t.Errorf("series of job %s by %s after it was gone (-want +got):\n%s", x.idle.id, path, diff)
		}
	}
	if diff := cmp.Diff(last["page"], last["OTLP"]); diff != "" {
		x.t.Errorf("the last values of job %s (-page +OTLP):\n%s", x.idle.id, diff)
	}
	x.expectHeld()
	later := x.db.at(fmt.Sprintf("{slurm_job_id=%q, %s}", x.idle.id, pulled), time.Now())
	if diff := cmp.Diff(last["page"], later); diff != "" {
		x.t.Errorf("sums of a job that has ended (-then +now):\n%s", diff)
	}
}

// Catches a doctor that does not show at a glance that Slurm works, or that complains without Slurm.
func (x *slurmTest) doctor() {
	lines := func(root string) (found []string) {
		out, _ := tryCommand(x.t, ".", x.binary, "doctor", "--nvidia-library", x.library[0], "--root", root, "--host-name", slurmNodes[0])
		for line := range strings.Lines(out) {
			if strings.Contains(line, "workloads by slurm") {
				found = append(found, strings.Join(strings.Fields(line), " "))
			}
		}
		return found
	}
	here := 0
	for _, j := range x.jobs {
		if slices.ContainsFunc(j.on, func(p slurmProcess) bool { return p.node == 0 }) {
			here++
		}
	}
	if slurmRoot == "" { // otherwise the tools of this machine talk to another release
		want := []string{
			fmt.Sprintf("ok workloads by slurm node %s, %d jobs", slurmNodes[0], here),
			fmt.Sprintf("ok workloads by slurm controller %d jobs on this node", here),
		}
		if diff := cmp.Diff(want, lines(x.roots[0])); diff != "" {
			x.t.Errorf("doctor on a node (-want +got):\n%s", diff)
		}
	}
	root := x.t.TempDir()
	write(x.t, filepath.Join(root, "proc"), "")
	want := []string{"absent workloads by slurm no slurmd, no slurm.conf, no slurm cgroup"}
	if diff := cmp.Diff(want, lines(root)); diff != "" {
		x.t.Errorf("doctor without Slurm (-want +got):\n%s", diff)
	}
}
