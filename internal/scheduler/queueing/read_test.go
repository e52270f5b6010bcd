package queueing

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

var vendors = device.Vendors{
	{Name: "nvidia", Resources: []device.Resource{{Name: "nvidia.com/gpu", Unit: device.Whole}, {Name: "nvidia.com/mig-*", Unit: device.Part}}},
	{Name: "amd", Resources: []device.Resource{{Name: "amd.com/gpu", Unit: device.Whole}}},
	{Name: "neuron", Resources: []device.Resource{{Name: "aws.amazon.com/neuroncore", Unit: device.Core}}},
}

// pages scans the texts of pages of a-0, a-1 and so on.
func pages(texts ...string) (out []Page) {
	for i, text := range texts {
		out = append(out, Page{fmt.Sprint("a-", i), promtext.Scan([]byte(text))})
	}
	return out
}

// numbers describes a reading: numbers by name, queue, model and word; counters and histograms added up.
func numbers(r *Reading) map[string]float64 {
	key := func(p Point) string {
		return strings.Join(strings.Fields(strings.Join([]string{string(p.Name), p.Queue, p.Model, p.Word}, " ")), " ")
	}
	out := map[string]float64{}
	for p, v := range r.Gauges {
		out[key(p)] = v
	}
	for _, c := range r.Counters {
		out[key(c.Point)] += c.Value
	}
	for _, h := range r.Histograms {
		out[key(h.Point)+" count"] += float64(h.Count)
		out[key(h.Point)+" sum"] += h.Sum
	}
	if r.Refused > 0 {
		out["refused"] = float64(r.Refused)
	}
	return out
}

func reads(t *testing.T, system string, want map[string]float64, texts ...string) {
	t.Helper()
	all := pages(texts...)
	for _, p := range all {
		if got := Recognize(p.Text); got != system {
			t.Errorf("a page of %s is taken for one of %q", system, got)
		}
	}
	if diff := cmp.Diff(want, numbers(Read(system, all, vendors, nil)), cmpopts.EquateApprox(0, 1e-12)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", system, diff)
	}
}

const kubeSchedulerPage = `scheduler_pending_pods{queue="active"} 1
scheduler_pending_pods{queue="backoff"} 1
scheduler_pending_pods{queue="gated"} 2
scheduler_pending_pods{queue="unschedulable"} 3
scheduler_schedule_attempts_total{profile="a",result="scheduled"} 3
scheduler_schedule_attempts_total{profile="b",result="scheduled"} 2
scheduler_schedule_attempts_total{profile="a",result="error"} 1
scheduler_preemption_attempts_total 9
scheduler_preemption_victims_bucket{le="+Inf"} 2
scheduler_preemption_victims_sum 5
scheduler_preemption_victims_count 2
scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts="1",le="1"} 1
scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts="1",le="+Inf"} 2
scheduler_pod_scheduling_sli_duration_seconds_sum{attempts="1"} 5
scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts="2",le="1"} 0
scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts="2",le="+Inf"} 1
scheduler_pod_scheduling_sli_duration_seconds_sum{attempts="2"} 2
scheduler_pod_scheduling_duration_seconds_bucket{attempts="1",le="+Inf"} 9
scheduler_pod_scheduling_duration_seconds_sum{attempts="1"} 99
`

// Catches waits that count under both of their names, attempts to preempt taken for victims, gated pods that count as pending,
// and times in microseconds of old versions.
func TestKubeScheduler(t *testing.T) {
	reads(t, "kube-scheduler", map[string]float64{
		"job.count pending": 5, "job.count held": 2, "attempts scheduled": 5, "attempts error": 1, "evicted preempted": 5,
		"wait.duration count": 3, "wait.duration sum": 7,
	}, kubeSchedulerPage)
	reads(t, "kube-scheduler", map[string]float64{"attempts scheduled": 15, "attempt.duration count": 2, "attempt.duration sum": 0.5}, `
scheduler_schedule_attempts_total{result="scheduled"} 15
scheduler_e2e_scheduling_latency_microseconds_bucket{le="1000"} 0
scheduler_e2e_scheduling_latency_microseconds_bucket{le="+Inf"} 2
scheduler_e2e_scheduling_latency_microseconds_sum 500000
`)
	// Of /metrics/resources: the effective request of each pod, of all schedulers.
	reads(t, "kube-scheduler", map[string]float64{"gpu.used ml": 8, "gpu.pending ml": 6, "gpu.pending dev": 1}, `
kube_pod_resource_request{namespace="ml",node="",pod="a",resource="nvidia.com/gpu",scheduler="x",unit=""} 4
kube_pod_resource_request{namespace="ml",node="",pod="b",resource="amd.com/gpu",scheduler="x",unit=""} 2
kube_pod_resource_request{namespace="ml",node="",pod="b",resource="nvidia.com/mig-1g.5gb",scheduler="x",unit=""} 7
kube_pod_resource_request{namespace="ml",node="gn1",pod="c",resource="nvidia.com/gpu",scheduler="x",unit=""} 8
kube_pod_resource_request{namespace="ml",node="gn1",pod="c",resource="cpu",scheduler="x",unit="cores"} 60
kube_pod_resource_limit{namespace="ml",node="gn1",pod="c",resource="nvidia.com/gpu",scheduler="x",unit=""} 8
kube_pod_resource_request{namespace="dev",node="",pod="d",resource="nvidia.com/gpu",scheduler="x",unit=""} 1
`)
}

const kueuePage = `kueue_cluster_queue_nominal_quota{cluster_queue="red",cohort="all",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} 8
kueue_cluster_queue_borrowing_limit{cluster_queue="red",cohort="all",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} +Inf
kueue_cluster_queue_resource_usage{cluster_queue="red",cohort="all",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} 12
kueue_cluster_queue_resource_reservation{cluster_queue="red",cohort="all",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} 14
kueue_cluster_queue_resource_pending{cluster_queue="red",replica_role="ROLE",resource="nvidia.com/gpu"} 16
kueue_cluster_queue_resource_pending{cluster_queue="red",replica_role="ROLE",resource="cpu"} 64
kueue_cluster_queue_nominal_quota{cluster_queue="blue",cohort="all",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} 8
kueue_cluster_queue_borrowing_limit{cluster_queue="blue",cohort="all",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} 4
kueue_cluster_queue_resource_usage{cluster_queue="blue",cohort="all",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} 2
kueue_cluster_queue_nominal_quota{cluster_queue="alone",cohort="",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} 6
kueue_cluster_queue_borrowing_limit{cluster_queue="alone",cohort="",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} +Inf
kueue_cluster_queue_weighted_share{cluster_queue="red",cohort="all",replica_role="ROLE"} 250
kueue_cluster_queue_weighted_share{cluster_queue="blue",cohort="all",replica_role="ROLE"} NaN
kueue_cohort_weighted_share{cohort="all",replica_role="ROLE"} 0
kueue_cohort_subtree_quota{cohort="all",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} 16
kueue_cohort_subtree_resource_reservations{cohort="all",flavor="h200",replica_role="ROLE",resource="nvidia.com/gpu"} 16
kueue_local_queue_resource_usage{flavor="h200",name="lq",namespace="ml",replica_role="ROLE",resource="nvidia.com/gpu"} 12
kueue_local_queue_pending_workloads{name="lq",namespace="ml",replica_role="ROLE",status="inadmissible"} 1
kueue_pending_workloads{cluster_queue="red",replica_role="ROLE",status="active"} 1
kueue_pending_workloads{cluster_queue="red",replica_role="ROLE",status="inadmissible"} 2
kueue_admitted_active_workloads{cluster_queue="red",replica_role="ROLE"} 3
kueue_reserving_active_workloads{cluster_queue="red",replica_role="ROLE"} 4
kueue_finished_workloads{cluster_queue="red",replica_role="ROLE"} 5
kueue_evicted_workloads_total{cluster_queue="red",priority_class="",reason="Preempted",replica_role="ROLE",underlying_cause=""} 1
kueue_evicted_workloads_total{cluster_queue="red",priority_class="high",reason="Preempted",replica_role="ROLE",underlying_cause=""} 2
kueue_evicted_workloads_total{cluster_queue="red",priority_class="",reason="PodsReadyTimeout",replica_role="ROLE",underlying_cause=""} 4
kueue_evicted_workloads_once_total{cluster_queue="red",priority_class="",reason="Preempted",replica_role="ROLE",underlying_cause=""} 1
kueue_preempted_workloads_total{preempting_cluster_queue="blue",reason="InCohortReclamation",replica_role="ROLE"} 3
kueue_admission_attempts_total{replica_role="ROLE",result="inadmissible"} 7
kueue_admission_attempts_total{replica_role="ROLE",result="success"} 3
kueue_admission_wait_time_seconds_bucket{cluster_queue="red",priority_class="",replica_role="ROLE",le="1"} 1
kueue_admission_wait_time_seconds_bucket{cluster_queue="red",priority_class="",replica_role="ROLE",le="+Inf"} 3
kueue_admission_wait_time_seconds_sum{cluster_queue="red",priority_class="",replica_role="ROLE"} 40
kueue_admission_attempt_duration_seconds_bucket{replica_role="ROLE",result="success",le="+Inf"} 3
kueue_admission_attempt_duration_seconds_sum{replica_role="ROLE",result="success"} 0.3
`

var kueueNumbers = map[string]float64{
	"gpu.nominal red h200": 8, "gpu.nominal blue h200": 8, "gpu.nominal alone h200": 6,
	"gpu.limit blue h200": 12, "gpu.limit alone h200": 6,
	"gpu.used red h200": 12, "gpu.used blue h200": 2, "gpu.borrowed red h200": 4, "gpu.borrowed blue h200": 0,
	"gpu.pending red": 16, "fair_share red": 250,
	"job.count red pending": 3, "job.count red running": 3, "job.count red finished": 5,
	"evicted red preempted": 3, "evicted red pods_ready_timeout": 4, "attempts scheduled": 3, "attempts unschedulable": 7,
	"wait.duration red count": 3, "wait.duration red sum": 40, "attempt.duration count": 3, "attempt.duration sum": 0.3,
}

func kueueAs(role string) string { return strings.ReplaceAll(kueuePage, "ROLE", role) }

// Catches an infinite limit that is reported, a queue without a cohort that seems to have none, cohorts and local queues that
// count again, evictions that count under each of their names, and replicas that count twice.
func TestKueue(t *testing.T) {
	reads(t, "kueue", kueueNumbers, kueueAs("standalone"))
	reads(t, "kueue", kueueNumbers, strings.ReplaceAll(kueuePage, `replica_role="ROLE",`, "")) // before 0.16
	reads(t, "kueue", kueueNumbers, kueueAs("leader"), kueueAs("follower"))
	reads(t, "kueue", kueueNumbers, kueueAs("follower"), kueueAs("leader"))
	reads(t, "kueue", kueueNumbers, kueueAs("leader")+kueueAs("follower")) // it was elected since it began
	reads(t, "kueue", map[string]float64{}, kueueAs("follower"))
	for role, standby := range map[string]bool{"leader": false, "standalone": false, "follower": true} {
		if got := Standby(pages(kueueAs(role))[0].Text); got != standby {
			t.Errorf("%s: standby %v", role, got)
		}
	}
	for text, standby := range map[string]bool{
		"leader_election_master_status{name=\"kube-scheduler\"} 1\n" + kubeSchedulerPage: false,
		"leader_election_master_status{name=\"kube-scheduler\"} 0\n" + kubeSchedulerPage: true,
		kubeSchedulerPage: false,
	} {
		if got := Standby(pages(text)[0].Text); got != standby {
			t.Errorf("%.60s: standby %v", text, got)
		}
	}
}

// Catches thousandths of GPUs and milliseconds that are taken for whole ones, the root queue that counts all others again, and
// what waits that is lost for a queue that has nothing.
func TestVolcano(t *testing.T) {
	reads(t, "volcano", map[string]float64{
		"gpu.used default": 12, "gpu.pending default": 8, "gpu.nominal default": 10, "gpu.borrowed default": 2, "gpu.limit default": 24,
		"gpu.pending idle": 4, "fair_share default": 1.2,
		"job.count default pending": 4, "job.count default running": 6, "job.count default finished": 40,
		"wait.duration count": 2, "wait.duration sum": 24.5, "attempt.duration count": 5, "attempt.duration sum": 0.05,
	}, `volcano_queue_allocated_scalar_resources{queue_name="default",resource="nvidia.com/gpu"} 12000
volcano_queue_allocated_scalar_resources{queue_name="root",resource="nvidia.com/gpu"} 12000
volcano_queue_allocated_scalar_resources{queue_name="default",resource="pods"} 7000
volcano_queue_allocated_milli_cpu{queue_name="default"} 64000
volcano_queue_request_scalar_resources{queue_name="default",resource="nvidia.com/gpu"} 20000
volcano_queue_request_scalar_resources{queue_name="root",resource="nvidia.com/gpu"} 24000
volcano_queue_request_scalar_resources{queue_name="idle",resource="nvidia.com/gpu"} 4000
volcano_queue_deserved_scalar_resources{queue_name="default",resource="nvidia.com/gpu"} 10000
volcano_queue_capacity_scalar_resources{queue_name="default",resource="nvidia.com/gpu"} 24000
volcano_queue_capacity_scalar_resources{queue_name="root",resource="nvidia.com/gpu"} 9.223372036854776e+18
volcano_queue_capacity_scalar_resources{queue_name="idle",resource="nvidia.com/gpu"} 9.223372036854776e+18
volcano_queue_share{queue_name="default"} 1.2
volcano_queue_pod_group_pending_count{queue_name="default"} 3
volcano_queue_pod_group_inqueue_count{queue_name="default"} 1
volcano_queue_pod_group_running_count{queue_name="default"} 5
volcano_queue_pod_group_unknown_count{queue_name="default"} 1
volcano_queue_pod_group_completed_count{queue_name="default"} 40
volcano_pod_preemption_victims 3
`, `volcano_e2e_job_scheduling_latency_milliseconds_bucket{le="32"} 1
volcano_e2e_job_scheduling_latency_milliseconds_bucket{le="+Inf"} 2
volcano_e2e_job_scheduling_latency_milliseconds_sum 24500
volcano_e2e_scheduling_latency_milliseconds_bucket{le="+Inf"} 5
volcano_e2e_scheduling_latency_milliseconds_sum 50
`)
}

// Catches -1 that is taken for a quota, a parent that counts its children again, and a share that needs both pages.
func TestKAI(t *testing.T) {
	controller := `kai_queue_deserved_gpus{queue_name="team"} 8
kai_queue_deserved_gpus{queue_name="free"} -1
kai_queue_deserved_gpus{queue_name="dep"} 16
kai_queue_allocated_gpus{queue_name="team"} 9.5
kai_queue_allocated_gpus{queue_name="free"} 1
kai_queue_allocated_gpus{queue_name="dep"} 10.5
`
	scheduler := `kai_queue_fair_share_gpu{queue_name="team"} 19
kai_queue_fair_share_gpu{queue_name="dep"} 32
kai_queue_gpu_usage{queue_name="team"} 7
kai_podgroups_scheduled_by_action{action="allocate"} 40
kai_podgroups_scheduled_by_action{action="preempt"} 2
kai_podgroups_acted_on_by_action{action="preempt"} 20
kai_pod_group_evicted_pods_total{podgroup="a",namespace="ml",uid="u1",nodepool="default",action="reclaim"} 4
kai_pod_group_evicted_pods_total{podgroup="b",namespace="ml",uid="u2",nodepool="default",action="preempt"} 1
kai_pod_group_evicted_pods_total{podgroup="b",namespace="ml",uid="u2",nodepool="default",action="consolidation"} 2
kai_e2e_scheduling_latency_milliseconds 31
kai_task_scheduling_latency_milliseconds_bucket{le="5"} 0
kai_task_scheduling_latency_milliseconds_bucket{le="+Inf"} 80
kai_task_scheduling_latency_milliseconds_sum 4000
task_scheduling_latency_milliseconds_bucket{le="+Inf"} 80
task_scheduling_latency_milliseconds_sum 4000
`
	want := map[string]float64{
		"gpu.nominal team": 8, "gpu.used team": 9.5, "gpu.borrowed team": 1.5, "gpu.used free": 1, "fair_share team": 0.5,
		"attempts scheduled": 42, "evicted preempted": 5, "evicted consolidation": 2, "wait.duration count": 80, "wait.duration sum": 4,
	}
	got := numbers(Read("kai", pages(controller, scheduler), vendors, map[string]bool{"dep": true}))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with a known parent (-want +got):\n%s", diff)
	}
	maps.Copy(want, map[string]float64{"gpu.nominal dep": 16, "gpu.used dep": 10.5, "gpu.borrowed dep": 0, "fair_share dep": 10.5 / 32})
	reads(t, "kai", want, controller, scheduler)
}

// Catches a parent that counts its children again, hundredths of GPUs taken for GPUs or counted beside whole ones, and a
// request that is at least the minimum.
func TestKoordinator(t *testing.T) {
	quota := func(kind, name, parent, resource, field string, v float64) string {
		return fmt.Sprintf("scheduler_elastic_quota_%s{name=%q,resource=%q,tree=\"\",is_parent=%q,parent=\"koordinator-root-quota\",field=%q} %v\n", kind, name, resource, parent, field, v)
	}
	gpu, core := "nvidia.com/gpu", "koordinator.sh/gpu-core"
	page := kubeSchedulerPage + "scheduler_waiting_gang_group_number 2\n" +
		quota("spec", "red", "false", gpu, "min", 8) + quota("spec", "red", "false", gpu, "max", 16) + quota("spec", "red", "false", core, "max", 1600) +
		quota("status", "red", "false", gpu, "used", 10) + quota("status", "red", "false", gpu, "runtime", 20) +
		quota("status", "red", "false", gpu, "child-request", 12) + quota("status", "red", "false", gpu, "request", 40) +
		quota("status", "dep", "true", gpu, "used", 10) + quota("spec", "dep", "true", gpu, "max", 64) +
		quota("spec", "parts", "false", core, "max", 250) + quota("status", "parts", "false", core, "used", 50) +
		quota("spec", "free", "false", gpu, "max", 1844674407370955161)
	reads(t, "koordinator", map[string]float64{
		"gpu.nominal red": 8, "gpu.limit red": 16, "gpu.used red": 10, "gpu.borrowed red": 2, "gpu.pending red": 2, "fair_share red": 0.5,
		"gpu.limit parts": 2.5, "gpu.used parts": 0.5,
		"job.count pending": 5, "job.count held": 2, "attempts scheduled": 5, "attempts error": 1, "evicted preempted": 5,
		"wait.duration count": 3, "wait.duration sum": 7,
	}, page)
	reads(t, "koordinator", map[string]float64{"gpu.used old": 6, "gpu.pending old": 4},
		quota("status", "old", "false", gpu, "used", 6)+quota("status", "old", "false", gpu, "request", 10))
}

// Catches parents that count their leaves again, a limit of 0 that stands for none, times that are divided because their
// name says milliseconds, ended applications that are counted since the start, and the names of before 1.5 beside the new ones.
func TestYuniKorn(t *testing.T) {
	gpus := func(queue, state string, v float64) string {
		return fmt.Sprintf("yunikorn_queue_resource{queue=%q,resource=\"nvidia.com/gpu\",state=%q} %v\n", queue, state, v)
	}
	reads(t, "yunikorn", map[string]float64{
		"gpu.capacity": 24, "gpu.used root.ml.red": 6, "gpu.nominal root.ml.red": 4, "gpu.borrowed root.ml.red": 2, "gpu.limit root.ml.red": 8, "gpu.pending root.ml.red": 2,
		"gpu.used root.ml-2": 1, "gpu.pending root.ml-2": 0,
		"job.count root.ml.red pending": 4, "job.count root.ml.red running": 2, "job.count root.ml.red stopping": 1,
		"attempts scheduled": 7, "attempts error": 1, "attempt.duration count": 4, "attempt.duration sum": 0.002,
	}, gpus("root", "max", 24)+gpus("root", "allocated", 7)+gpus("root.ml", "allocated", 6)+gpus("root.ml", "max", 8)+
		gpus("root.ml.red", "allocated", 6)+gpus("root.ml.red", "guaranteed", 4)+gpus("root.ml.red", "max", 8)+gpus("root.ml.red", "pending", 2)+
		gpus("root.ml-2", "allocated", 1)+gpus("root.ml-2", "guaranteed", 0)+gpus("root.ml-2", "max", 0)+gpus("root.ml-2", "pending", 0)+`
yunikorn_root_ml_red_queue_resource{resource="nvidia.com/gpu",state="allocated"} 6
yunikorn_queue_resource{queue="root.ml.red",resource="vcore",state="allocated"} 64000
yunikorn_queue_app{queue="root.ml.red",state="new"} 1
yunikorn_queue_app{queue="root.ml.red",state="accepted"} 3
yunikorn_queue_app{queue="root.ml.red",state="running"} 2
yunikorn_queue_app{queue="root.ml.red",state="completing"} 1
yunikorn_queue_app{queue="root.ml.red",state="completed"} 90
yunikorn_queue_app{queue="root.ml.red",state="rejected"} 5
yunikorn_scheduler_container_allocation_attempt_total{state="allocated"} 7
yunikorn_scheduler_container_allocation_attempt_total{state="error"} 1
yunikorn_scheduler_container_allocation_attempt_total{state="released"} 6
yunikorn_scheduler_scheduling_latency_milliseconds_bucket{le="0.0001"} 1
yunikorn_scheduler_scheduling_latency_milliseconds_bucket{le="+Inf"} 4
yunikorn_scheduler_scheduling_latency_milliseconds_sum 0.002
`)
}

// Catches nodes of one cluster that replace each other, and tasks that ended taken for jobs.
func TestRay(t *testing.T) {
	node := func(address string, used, available float64) string {
		return fmt.Sprintf("ray_resources{Name=\"GPU\",NodeAddress=%q,State=\"USED\"} %v\nray_resources{Name=\"GPU\",NodeAddress=%q,State=\"AVAILABLE\"} %v\n", address, used, address, available)
	}
	reads(t, "ray", map[string]float64{
		"gpu.used": 3.5, "gpu.capacity": 8, "gpu.pending": 4, "job.count pending": 3, "job.count starting": 1, "job.count running": 3, "refused": 1,
	}, node("10.0.0.1", 3, 1)+`ray_resources{Name="CPU",NodeAddress="10.0.0.1",State="USED"} 64
ray_resources{Name="GPU",NodeAddress="10.0.0.1",State="PENDING"} 4
ray_tasks{Name="f",State="PENDING_NODE_ASSIGNMENT"} 2
ray_tasks{Name="g",State="PENDING_ARGS_AVAIL"} 1
ray_tasks{Name="g",State="SUBMITTED_TO_WORKER"} 1
ray_tasks{Name="f",State="RUNNING"} 2
ray_tasks{Name="f",State="RUNNING_IN_RAY_GET"} 1
ray_tasks{Name="h",State="RUNNING"} -1
ray_tasks{Name="f",State="FINISHED"} 100
`, node("10.0.0.2", 0.5, 3.5))
}

// Catches old and new names that count twice, a number of cores taken for percent, a container with all cores and little memory
// that seems to take little, and a limit of 0.
func TestHAMi(t *testing.T) {
	newer := `hami_gpu_memory_limit_bytes{device_index="0",device_type="H200",device_uuid="a",node="n"} 1000
hami_gpu_memory_limit_bytes{device_index="1",device_type="H200",device_uuid="b",node="n"} 1000
hami_gpu_memory_limit_bytes{device_index="0",device_type="Neuron",device_uuid="c",node="m"} 0
hami_gpu_core_limit_ratio{device_index="0",device_type="H200",device_uuid="a",node="n"} 100
hami_gpu_core_limit_ratio{device_index="1",device_type="H200",device_uuid="b",node="n"} 100
hami_gpu_core_limit_ratio{device_index="0",device_type="Neuron",device_uuid="c",node="m"} 2
hami_vgpu_memory_allocated_bytes{container_index="0",device_uuid="a",namespace="ml",node="n",pod="p"} 250
hami_vgpu_core_allocated_ratio{container_index="0",device_uuid="a",namespace="ml",node="n",pod="p"} 0
hami_vgpu_memory_allocated_bytes{container_index="0",device_uuid="b",namespace="ml",node="n",pod="q"} 100
hami_vgpu_core_allocated_ratio{container_index="0",device_uuid="b",namespace="ml",node="n",pod="q"} 100
hami_vgpu_core_allocated_ratio{container_index="0",device_uuid="c",namespace="dev",node="m",pod="r"} 1
hami_node_gpu_memory_allocated_ratio{device_index="0",device_uuid="a",node="n"} 0.25
hami_resource_quota_used{limit="150",namespace="ml",quota_name="nvidia.com/gpucores"} 100
hami_resource_quota_used{limit="8192",namespace="ml",quota_name="nvidia.com/gpumem"} 350
hami_resource_quota_used{limit="0",namespace="dev",quota_name="nvidia.com/gpucores"} 0
hami_resource_quota_used{limit="4",namespace="dev",quota_name="aws.amazon.com/neuroncore"} 1
`
	older := `GPUDeviceMemoryLimit{deviceidx="0",devicetype="H200",deviceuuid="a",nodeid="n",zone="vGPU"} 1000
GPUDeviceMemoryLimit{deviceidx="1",devicetype="H200",deviceuuid="b",nodeid="n",zone="vGPU"} 1000
GPUDeviceCoreLimit{deviceidx="0",devicetype="H200",deviceuuid="a",nodeid="n",zone="vGPU"} 100
GPUDeviceCoreLimit{deviceidx="1",devicetype="H200",deviceuuid="b",nodeid="n",zone="vGPU"} 100
vGPUMemoryAllocated{containeridx="0",deviceuuid="a",nodename="n",podname="p",podnamespace="ml"} 250
vGPUCoreAllocated{containeridx="0",deviceuuid="b",nodename="n",podname="q",podnamespace="ml"} 100
QuotaUsed{limit="150",quotaName="nvidia.com/gpucores",quotanamespace="ml"} 100
`
	want := map[string]float64{"gpu.capacity H200": 2, "gpu.used ml H200": 1.25, "gpu.limit ml": 1.5}
	reads(t, "hami", want, older)
	want["gpu.capacity Neuron"], want["gpu.used dev Neuron"] = 1, 0.5
	reads(t, "hami", want, newer)
	reads(t, "hami", want, newer+older)
	reads(t, "hami", map[string]float64{"gpu.limit ml": 1}, "hami_resource_quota_limit{namespace=\"ml\",quota_name=\"nvidia.com/gpucore\"} 100\n")
}

// Catches ended pods that still have GPUs, init containers that are added, shards of which one counts, replicas that count
// twice, and names of resources without their punctuation that are not recognized.
func TestKubeStateMetrics(t *testing.T) {
	pod := func(name, node, phase string, gpus, init float64) string {
		id := fmt.Sprintf("namespace=\"ml\",pod=%q,uid=\"u-%s\"", name, name)
		text := fmt.Sprintf("kube_pod_status_phase{%s,phase=%q} 1\nkube_pod_status_phase{%s,phase=\"Unknown\"} 0\n", id, phase, id)
		text += fmt.Sprintf("kube_pod_status_scheduled{%s,condition=\"true\"} %v\n", id, map[bool]int{true: 1}[node != ""])
		for _, c := range []string{"a", "b"} {
			text += fmt.Sprintf("kube_pod_container_resource_requests{%s,container=%q,node=%q,resource=\"nvidia_com_gpu\",unit=\"integer\"} %v\n", id, c, node, gpus/2)
		}
		if init > 0 {
			text += fmt.Sprintf("kube_pod_init_container_resource_requests{%s,container=\"i\",node=%q,resource=\"nvidia_com_gpu\",unit=\"integer\"} %v\n", id, node, init)
		}
		return text
	}
	first := pod("runs", "gn1", "Running", 4, 6) + pod("ended", "gn1", "Succeeded", 8, 0) + `kube_node_status_allocatable{node="gn1",resource="nvidia_com_gpu",unit="integer"} 8
kube_node_status_allocatable{node="gn1",resource="nvidia_com_mig_1g_5gb",unit="integer"} 7
kube_node_status_allocatable{node="gn2",resource="amd_com_gpu",unit="integer"} 8
kube_resourcequota{namespace="ml",resource="requests.nvidia.com/gpu",resourcequota="a",type="hard"} 12
kube_resourcequota{namespace="ml",resource="requests.nvidia.com/gpu",resourcequota="b",type="hard"} 10
kube_resourcequota{namespace="ml",resource="requests.nvidia.com/gpu",resourcequota="b",type="used"} 8
kube_resourcequota{namespace="ml",resource="requests.cpu",resourcequota="b",type="hard"} 64
`
	second := pod("waits", "", "Pending", 2, 0) + pod("starts", "gn1", "Pending", 2, 0)
	want := map[string]float64{
		"gpu.used ml": 8, "gpu.pending ml": 2, "gpu.capacity": 16, "gpu.limit ml": 10,
		"job.count ml running": 1, "job.count ml starting": 1, "job.count ml pending": 1, "job.count ml finished": 1,
	}
	reads(t, "kube-state-metrics", want, first+second)
	reads(t, "kube-state-metrics", want, first, second)
	reads(t, "kube-state-metrics", want, first+second, first+second)
}
