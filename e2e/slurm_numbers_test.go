//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpumeter/gpumeter/internal/await"
)

// timed is a worker that ends on request with a requested exit code.
const timed = `
file=%[1]s/out/end.$SLURM_JOB_ID
until [ -e "$file" ]; do sleep 0.1; done
exit "$(cat "$file")"
`

// clusterAgent starts the agent that reports the cluster. A restarted agent continues from its state folder.
func (x *slurmTest) clusterAgent() *slurmAgent {
	x.t.Helper()
	flags := []string{
		"--listen", x.clusterPage, "--host-name", "controller", "--no-workloads", "--root", x.clusterDir,
		"--scheduler", "slurm", "--slurm-accounting", "--slurm-prometheus", x.db.url,
	}
	in := *x
	in.slurm = x.parent // outlives the part that starts it
	return in.startAgent("cluster's", x.clusterDir, x.db.url+x.db.path, flags, func(config map[string]any) {
		at := within(config, "receivers", "scheduler", "slurm")
		at["interval"], at["timeout"], at["tools"] = slurmRefresh.String(), slurmRefresh.String(), x.clusterTools
		within(at, "accounting")["interval"] = "1s"
	})
}

// end makes a timed job exit with a code and waits for its end.
func (x *slurmTest) end(j *slurmJob, code int) {
	x.t.Helper()
	path := x.dir + "/out/end." + j.id
	write(x.t, path+".new", fmt.Sprint(code))
	if err := os.Chmod(path+".new", 0o644); err != nil {
		x.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		x.t.Fatal(err)
	}
	x.slurm.ended(j)
}

// cpuJob runs a job without GPUs to its end. For a very short job slurmdbd receives the end first and briefly
// has a row without name and partition.
func (x *slurmTest) cpuJob() {
	x.t.Helper()
	id := x.batch(x.red, "cpu", x.script("short", "#!/bin/sh\n"))
	x.slurm.ended(&slurmJob{id: id})
	x.cpuOnly = append(x.cpuOnly, id)
}

// finished runs jobs that end, for later checks: one that worked, and one that held a GPU and failed.
func (x *slurmTest) finished() {
	script := strings.Replace(fmt.Sprintf(worker, x.dir), "exec sleep 500\n", fmt.Sprintf(timed, x.dir), 1)
	x.script("timed", script)
	submit := func(a account, name string) *slurmJob {
		return x.running(a, x.batch(a, name, x.dir+"/timed", "--gres=gpu:1", "-w", slurmNodes[1]), name, 1)
	}
	paid, failed := submit(x.red, "paid"), submit(x.blue, "failed")
	x.use(paid, 100)
	x.jobs = []*slurmJob{paid, failed}
	x.expectHeld()
	x.burn(1, paid.on[0].gpus[0], 5000)
	joules := answer{}
	joules.add(paid.of(1, paid.on[0].gpus[0]), 5000)
	joules.add(failed.of(1, failed.on[0].gpus[0]), 0)
	x.expect(of("gpu_workload_energy_joules_total", `slurm_job_id!="", `), joules)
	x.nvidia.end(paid)
	x.end(paid, 0)
	x.end(failed, 3)
	x.cpuJob()
	x.over, x.jobs = x.jobs, nil
	x.expectHeld()
}

// Catches cluster series that differ from the output of Slurm's own tools.
func (x *slurmTest) numbers() {
	jobs, gpus, all := answer{}, answer{}, map[string]int{}
	for _, j := range x.jobs {
		key := strings.Join([]string{j.account.name, j.user}, " ")
		all[key]++
		for _, p := range j.on {
			if j.part == 1 {
				all["gpu "+key] += len(p.gpus)
			}
		}
	}
	for _, a := range []account{x.red, x.blue} {
		labels := map[string]string{"slurm_cluster": slurmCluster, "slurm_account": a.name, "slurm_user": a.user, "slurm_partition": "gpu", "slurm_job_state": "running"}
		jobs.add(labels, float64(all[a.name+" "+a.user]))
		gpus.add(labels, float64(all["gpu "+a.name+" "+a.user]))
	}
	x.expectUp(1)
	x.expect(of("slurm_job_count", `slurm_job_state="running", `), jobs)
	x.expect(of("slurm_job_gpu_count", `slurm_job_state="running", `), gpus)

	// The same for values that only Slurm knows.
	states := map[string]float64{}
	for state := range strings.FieldsSeq(x.run("sinfo", "-h", "-N", "-o", "%T")) {
		states[state]++
	}
	nodes := answer{}
	for state, n := range states {
		nodes.add(map[string]string{"slurm_cluster": slurmCluster, "slurm_node_state": state}, n)
	}
	x.expect(of("slurm_node_count", ""), nodes)
	used := 0.0
	for line := range strings.FieldsSeq(x.run("sinfo", "-h", "-N", "-O", "GresUsed:60")) {
		for part := range strings.SplitSeq(line, ",") {
			if fields := strings.Split(strings.Split(part, "(")[0], ":"); fields[0] == "gpu" {
				var n float64
				_, _ = fmt.Sscan(fields[len(fields)-1], &n)
				used += n
			}
		}
	}
	shared := 1.0 // shared by two jobs, so it is allocated, too
	free := answer{}
	free.add(map[string]string{"slurm_cluster": slurmCluster, "slurm_gpu_type": "h200", "slurm_resource_state": "allocated"}, used+shared)
	free.add(map[string]string{"slurm_cluster": slurmCluster, "slurm_gpu_type": "h200", "slurm_resource_state": "idle"}, float64(len(slurmNodes)*slurmGPUs)-used-shared)
	x.expect(of("slurm_gpu_count", ""), free)
}

// words checks the names that all schedulers share: they mean the same here as in TestKubeQueue. No job has shards yet.
func (x *slurmTest) words() {
	jobs, gpus, used := map[string]float64{}, map[string]float64{}, 0.0
	for _, j := range x.jobs {
		whole := 0.0
		for _, p := range j.on {
			whole += float64(len(p.gpus))
		}
		if whole > 0 {
			jobs[j.account.name]++
		}
		gpus[j.account.name] += whole
		used += whole
	}
	named := func(more ...string) map[string]string {
		labels := map[string]string{"scheduler_cluster": slurmCluster, "scheduler_type": "slurm"}
		for i := 0; i < len(more); i += 2 {
			labels[more[i]] = more[i+1]
		}
		return labels
	}
	count, allocated := answer{}, answer{}
	for team, n := range jobs {
		count.add(named("scheduler_queue", "gpu", "scheduler_team", team, "scheduler_job_state", "running"), n)
		allocated.add(named("scheduler_queue", "gpu", "scheduler_team", team), gpus[team])
	}
	x.expect(of("scheduler_job_count", `scheduler_job_state="running", `), count)
	x.expect(of("scheduler_gpu_allocated", ""), allocated)
	states := answer{}
	for state, n := range map[string]float64{"allocated": used, "free": float64(len(slurmNodes)*slurmGPUs) - used, "drained": 0, "down": 0} {
		states.add(named("scheduler_gpu_type", "h200", "scheduler_gpu_state", state), n)
	}
	x.expect(of("scheduler_gpu_count", ""), states)
}

// expectUp waits until the controller is reported up or down.
func (x *slurmTest) expectUp(up float64) {
	x.t.Helper()
	want := answer{}
	want.add(map[string]string{"slurm_cluster": slurmCluster}, up)
	x.expect(of("slurm_up", ""), want)
}

// crash kills the agent of the cluster and lets a job end while it is down.
func (x *slurmTest) crash() {
	eventually(x.t, "the record of a job without GPUs", func() error { return x.recorded(x.cpuOnly...) })
	x.signal(x.cluster.process, syscall.SIGKILL)
	<-x.cluster.done
	x.cpuJob()
}

// Catches a finished job with no record or with two, whatever happened to the agent.
func (x *slurmTest) records() {
	x.cluster = x.clusterAgent()
	x.cpuJob()
	eventually(x.t, "the records of jobs without GPUs", func() error { return x.recorded(x.cpuOnly...) })
}

// recorded returns an error if any of the jobs lacks a record, and fails the test if one has two.
func (x *slurmTest) recorded(ids ...string) error {
	x.t.Helper()
	found := map[string]int{}
	for _, r := range x.jobRecords() {
		id := fmt.Sprint(r["slurm.job.id"])
		if found[id]++; found[id] > 1 {
			x.t.Fatalf("job %s has %d records", id, found[id])
		}
	}
	for _, id := range ids {
		if found[id] == 0 {
			return fmt.Errorf("job %s has no record; %v have one", id, slices.Sorted(maps.Keys(found)))
		}
	}
	return nil
}

// jobRecords returns the attributes of the records that the cluster's agent has sent.
func (x *slurmTest) jobRecords() (found []map[string]any) {
	x.t.Helper()
	files, _ := filepath.Glob(filepath.Join(x.clusterDir, "otlp*.json"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			x.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, `"resourceLogs"`) || !strings.HasSuffix(line, "\n") {
				continue
			}
			logs, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs([]byte(line))
			if err != nil {
				continue // truncated by the crash
			}
			for _, resource := range logs.ResourceLogs().All() {
				for _, scope := range resource.ScopeLogs().All() {
					for _, r := range scope.LogRecords().All() {
						if r.EventName() == "slurm.job.end" {
							found = append(found, r.Attributes().AsRaw())
						}
					}
				}
			}
		}
	}
	return found
}

// Catches a record of a finished job that differs from sacct, or from the usage that the driver saw.
func (x *slurmTest) accounting() {
	ids := slices.Clone(x.cpuOnly)
	for _, j := range x.over {
		ids = append(ids, j.id)
	}
	// Usage is asked for when it is whole, two minutes after the end of a job.
	await.NoError(x.t, func() error { return x.recorded(ids...) })
	records := map[string]map[string]any{}
	for _, r := range x.jobRecords() {
		records[fmt.Sprint(r["slurm.job.id"])] = r
	}
	// sacct writes 1 for a job that returned 1, and 0:15 for one that was killed.
	const columns = "jobidraw,jobname,user,account,partition,qos,state,elapsedraw,exitcode,alloctres,nodelist"
	for _, id := range ids {
		row := strings.Split(strings.TrimSpace(x.run("sacct", "-X", "-n", "-P", "-j", id, "-o", columns)), "|")
		if len(row) != 11 {
			x.t.Fatalf("sacct says %q of job %s", row, id)
		}
		gpus := 0
		for tres := range strings.SplitSeq(row[9], ",") {
			_, _ = fmt.Sscanf(tres, "gres/gpu=%d", &gpus)
		}
		var elapsed, code, signal int
		_, _ = fmt.Sscan(row[7], &elapsed)
		_, _ = fmt.Sscanf(row[8], "%d:%d", &code, &signal)
		want := map[string]any{
			"slurm.job.id": row[0], "slurm.job.name": row[1], "slurm.user": row[2], "slurm.account": row[3], "slurm.partition": row[4],
			"slurm.qos": row[5], "slurm.job.state": strings.ToLower(row[6]), "slurm.job.run.duration": float64(elapsed),
			"slurm.job.exit_code": int64(code), "slurm.job.signal": int64(signal), "slurm.job.gpu.count": int64(gpus),
			"slurm.job.gpu.time": float64(gpus * elapsed), "slurm.job.nodes": row[10], "slurm.cluster": slurmCluster,
		}
		got := map[string]any{}
		for key := range want {
			got[key] = records[id][key]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			x.t.Errorf("the record of job %s (-sacct +record):\n%s", id, diff)
		}
	}
	x.checkUsage(records[x.over[0].id], 5000, true)
	x.checkUsage(records[x.over[1].id], 0, false)
	x.checkListed(ids, records)
}

// checkUsage checks the usage in the record of a job with one GPU.
func (x *slurmTest) checkUsage(r map[string]any, joules float64, busy bool) {
	x.t.Helper()
	number := func(key string) float64 {
		f, ok := r[key].(float64)
		if !ok {
			x.t.Errorf("the record of job %v has no %s but %v", r["slurm.job.id"], key, r)
		}
		return f
	}
	allocated, ran := number("gpu.workload.allocated.time"), number("slurm.job.run.duration")
	active, idle := number("gpu.workload.active.time"), number("gpu.workload.idle.time")
	if math.Abs(allocated-ran) > 4 || math.Abs(active+idle-allocated) > 1e-6 || number("gpu.workload.energy") != joules {
		x.t.Errorf("job %v ran for %v s and had a GPU for %v s, active %v s, idle %v s, with %v J, want %v J",
			r["slurm.job.id"], ran, allocated, active, idle, r["gpu.workload.energy"], joules)
	}
	if busy && active < allocated/2 || !busy && active != 0 {
		x.t.Errorf("job %v was active for %v of %v s", r["slurm.job.id"], active, allocated)
	}
}

// checkListed fails the test if gpumeter slurm jobs differs from the records.
func (x *slurmTest) checkListed(ids []string, records map[string]map[string]any) {
	x.t.Helper()
	args := []string{"slurm", "jobs", "--user", "all", "--prometheus", x.db.url, "--slurm-tools", x.clusterTools}
	var list []map[string]any
	if err := json.Unmarshal([]byte(command(x.t, ".", x.binary, append(args, "-o", "json")...)), &list); err != nil {
		x.t.Fatal(err)
	}
	keys := map[string]string{
		"uid": "log.record.uid", "name": "slurm.job.name", "user": "slurm.user", "account": "slurm.account", "state": "slurm.job.state",
		"elapsed_seconds": "slurm.job.run.duration", "gpu_seconds": "slurm.job.gpu.time",
		"active_gpu_seconds": "gpu.workload.active.time", "energy_joules": "gpu.workload.energy",
	}
	found := 0
	for _, j := range list {
		id := fmt.Sprint(j["job_id"])
		if !slices.Contains(ids, id) {
			continue
		}
		found++
		want, got := map[string]any{}, map[string]any{}
		for short, long := range keys {
			want[short], got[short] = records[id][long], j[short]
		}
		// Samples have a time in milliseconds, and a device has no more device time than passed between them.
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 0.001)); diff != "" {
			x.t.Errorf("gpumeter slurm jobs of job %s (-record +listed):\n%s", id, diff)
		}
	}
	if found != len(ids) {
		x.t.Errorf("gpumeter slurm jobs lists %d of %d finished jobs", found, len(ids))
	}
	table := command(x.t, ".", x.binary, args...)
	for _, j := range x.over {
		if !strings.Contains(table, j.name) {
			x.t.Errorf("the table has no job %s:\n%s", j.name, table)
		}
	}
}
