package queueing

import (
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/promtext"
	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// system is a queueing system.
type system struct {
	kind  string   // the value of scheduler.type
	marks []string // beginnings of metrics that only its pages have
	rules []rule
	// made makes what no rule can say, of the metrics in from.
	made func(*reader)
	from []string
	// inner tells queues that have others below them, whose numbers are sums. Nil: it has none, or its page does not say.
	inner func(*reader) func(queue string) bool
}

func (s *system) marked(name string) bool {
	return slices.ContainsFunc(s.marks, func(mark string) bool { return strings.HasPrefix(name, mark) })
}

// rule says which metrics of a system are which number of ours.
type rule struct {
	name Name
	from []string // metrics, newest first: the first that a page has counts
	// Labels that name the queue, the model of the GPUs, and the resource: of that only whole devices count.
	queue, model, resource string
	only                   []promtext.Label  // labels that a series must have
	filled                 string            // a label that must not be empty
	word                   string            // the label that becomes Point.Word
	words                  map[string]string // its values in lower case; others do not count. Nil: in snake case
	set                    string            // Point.Word without a label
	per                    float64           // how many of the page's units make one of ours; 0: one
	positive               bool              // 0 means that there is none
	older                  bool              // counts only if a page does not have the rule before
}

func with(name, value string) []promtext.Label { return []promtext.Label{{Name: name, Value: value}} }

const milli, micro = 1e3, 1e6

// The states of scheduler.job.state.
const (
	held     = string(scheduler.Held)
	pending  = string(scheduler.Pending)
	starting = string(scheduler.Starting)
	running  = string(scheduler.Running)
	stopping = string(scheduler.Stopping)
	finished = string(scheduler.Finished)
)

// results are what systems call the result of an attempt.
var results = map[string]string{
	"scheduled": "scheduled", "success": "scheduled", "allocated": "scheduled",
	"unschedulable": "unschedulable", "inadmissible": "unschedulable", "rejected": "unschedulable",
	"error": "error",
}

// systems is the table: of two systems whose marks a page has, the first has written it. docs/schedulers.md is about it.
var systems = []system{
	{kind: "kueue", marks: []string{"kueue_"}, rules: kueue, made: kueueLimits, from: []string{"kueue_cluster_queue_nominal_quota", "kueue_cluster_queue_borrowing_limit"}},
	{kind: "volcano", marks: []string{"volcano_"}, rules: volcano, inner: func(*reader) func(string) bool {
		return func(queue string) bool { return queue == "root" } // of all queues; other parents are not told from leaves
	}},
	{kind: "kai", marks: []string{"kai_"}, rules: kai},
	{kind: "yunikorn", marks: []string{"yunikorn_"}, rules: yunikorn, inner: parentsByPath},
	{kind: "hami", marks: []string{"hami_", "GPUDevice", "nodeGPU", "vGPU", "QuotaUsed"}, made: hami, from: hamiFamilies},
	{kind: "ray", marks: []string{"ray_resources", "ray_tasks"}, rules: ray},
	{kind: "kube-state-metrics", marks: ksmFamilies, made: ksm, from: ksmFamilies},
	{kind: "koordinator", marks: []string{"scheduler_elastic_quota_", "scheduler_waiting_gang_"}, rules: kubeScheduler, made: elasticQuotas, from: []string{quotaSpec, quotaStatus}},
	{kind: "kube-scheduler", marks: []string{"scheduler_schedule_attempts_total", "scheduler_pending_pods", "kube_pod_resource_request"}, rules: kubeScheduler},
}

// families are the metrics that are read.
var families = func() map[string]bool {
	out := map[string]bool{election: true, began: true}
	for _, s := range systems {
		for _, name := range s.from {
			out[name] = true
		}
		for _, u := range s.rules {
			for _, name := range u.from {
				out[name] = true
				if u.name == Wait || u.name == Attempt {
					out[name+"_bucket"], out[name+"_sum"] = true, true
				}
			}
		}
	}
	return out
}()

var kubeScheduler = []rule{
	{name: Used, from: []string{"kube_pod_resource_request"}, queue: "namespace", resource: "resource", filled: "node"},
	{name: Pending, from: []string{"kube_pod_resource_request"}, queue: "namespace", resource: "resource", only: with("node", "")},
	{name: Jobs, from: []string{"scheduler_pending_pods"}, word: "queue", words: map[string]string{
		"active": pending, "backoff": pending, "unschedulable": pending, "gated": held,
	}},
	{name: Attempts, from: []string{"scheduler_schedule_attempts_total"}, word: "result", words: results},
	{name: Evicted, from: []string{"scheduler_preemption_victims_sum"}, set: "preempted"},
	// 1.29 has both: the second includes the time in which a pod could not be tried.
	{name: Wait, from: []string{"scheduler_pod_scheduling_sli_duration_seconds", "scheduler_pod_scheduling_duration_seconds"}},
	{name: Attempt, from: []string{"scheduler_scheduling_attempt_duration_seconds", "scheduler_e2e_scheduling_duration_seconds"}},
	{name: Attempt, from: []string{"scheduler_e2e_scheduling_latency_microseconds"}, per: micro, older: true}, // until 1.13
}

// kueue has values in units, not thousandths. Cohorts have sums of their ClusterQueues, and LocalQueues have parts of them:
// neither counts.
var kueue = []rule{
	{name: Nominal, from: []string{"kueue_cluster_queue_nominal_quota"}, queue: "cluster_queue", model: "flavor", resource: "resource"},
	{name: Used, from: []string{"kueue_cluster_queue_resource_usage"}, queue: "cluster_queue", model: "flavor", resource: "resource"},
	{name: Pending, from: []string{"kueue_cluster_queue_resource_pending"}, queue: "cluster_queue", resource: "resource"}, // since 0.18
	{name: FairShare, from: []string{"kueue_cluster_queue_weighted_share"}, queue: "cluster_queue"},
	{name: Jobs, from: []string{"kueue_pending_workloads"}, queue: "cluster_queue", set: pending}, // active and inadmissible
	{name: Jobs, from: []string{"kueue_admitted_active_workloads"}, queue: "cluster_queue", set: running},
	{name: Jobs, from: []string{"kueue_finished_workloads"}, queue: "cluster_queue", set: finished}, // since 0.16
	{name: Evicted, from: []string{"kueue_evicted_workloads_total"}, queue: "cluster_queue", word: "reason"},
	{name: Attempts, from: []string{"kueue_admission_attempts_total"}, word: "result", words: results},
	{name: Wait, from: []string{"kueue_admission_wait_time_seconds"}, queue: "cluster_queue"},
	{name: Attempt, from: []string{"kueue_admission_attempt_duration_seconds"}},
}

// volcano counts GPUs in thousandths, and times in milliseconds.
var volcano = []rule{
	{name: Limit, from: []string{"volcano_queue_capacity_scalar_resources"}, queue: "queue_name", resource: "resource", per: milli},
	{name: Nominal, from: []string{"volcano_queue_deserved_scalar_resources"}, queue: "queue_name", resource: "resource", per: milli},
	{name: Used, from: []string{"volcano_queue_allocated_scalar_resources"}, queue: "queue_name", resource: "resource", per: milli},
	{name: asked, from: []string{"volcano_queue_request_scalar_resources"}, queue: "queue_name", resource: "resource", per: milli},
	{name: FairShare, from: []string{"volcano_queue_share"}, queue: "queue_name"},
	// The scheduler has these until 1.10, the controller manager since.
	{name: Jobs, from: []string{"volcano_queue_pod_group_pending_count"}, queue: "queue_name", set: pending},
	{name: Jobs, from: []string{"volcano_queue_pod_group_inqueue_count"}, queue: "queue_name", set: pending}, // its pods exist, and wait
	{name: Jobs, from: []string{"volcano_queue_pod_group_running_count"}, queue: "queue_name", set: running},
	{name: Jobs, from: []string{"volcano_queue_pod_group_unknown_count"}, queue: "queue_name", set: running}, // not all of its pods run
	{name: Jobs, from: []string{"volcano_queue_pod_group_completed_count"}, queue: "queue_name", set: finished},
	{name: Wait, from: []string{"volcano_e2e_job_scheduling_latency_milliseconds"}, per: milli},
	{name: Attempt, from: []string{"volcano_e2e_scheduling_latency_milliseconds"}, per: milli},
}

// kai has the quota and what is allocated on the page of its queue controller, the rest on that of its scheduler. -1 is no limit.
var kai = []rule{
	{name: Nominal, from: []string{"kai_queue_deserved_gpus"}, queue: "queue_name"},
	{name: Used, from: []string{"kai_queue_allocated_gpus"}, queue: "queue_name"},
	{name: entitled, from: []string{"kai_queue_fair_share_gpu"}, queue: "queue_name"},
	{name: Attempts, from: []string{"kai_podgroups_scheduled_by_action"}, set: "scheduled"},
	{name: Evicted, from: []string{"kai_pod_group_evicted_pods_total"}, word: "action", words: map[string]string{
		"preempt": "preempted", "reclaim": "preempted", "consolidation": "consolidation", "stalegangeviction": "stale_gang",
	}},
	{name: Wait, from: []string{"kai_task_scheduling_latency_milliseconds"}, per: milli},
}

// yunikorn has times in seconds, although their names end in milliseconds. A resource that a queue no longer has is 0, as is a
// limit that was removed.
var yunikorn = []rule{
	{name: Limit, from: []string{"yunikorn_queue_resource"}, queue: "queue", resource: "resource", only: with("state", "max"), positive: true},
	{name: Nominal, from: []string{"yunikorn_queue_resource"}, queue: "queue", resource: "resource", only: with("state", "guaranteed"), positive: true},
	{name: Used, from: []string{"yunikorn_queue_resource"}, queue: "queue", resource: "resource", only: with("state", "allocated")},
	{name: Pending, from: []string{"yunikorn_queue_resource"}, queue: "queue", resource: "resource", only: with("state", "pending")},
	{name: Capacity, from: []string{"yunikorn_queue_resource"}, resource: "resource", only: []promtext.Label{{Name: "queue", Value: "root"}, {Name: "state", Value: "max"}}},
	{name: Jobs, from: []string{"yunikorn_queue_app"}, queue: "queue", word: "state", words: map[string]string{
		"new": pending, "accepted": pending, "running": running, "resuming": running, "failing": stopping, "completing": stopping,
	}}, // rejected, failed and completed ones are counted since the start
	{name: Attempts, from: []string{"yunikorn_scheduler_container_allocation_attempt_total"}, word: "state", words: results}, // not released
	{name: Attempt, from: []string{"yunikorn_scheduler_scheduling_cycle_milliseconds", "yunikorn_scheduler_scheduling_latency_milliseconds"}},
}

// ray counts on each node what that node has.
var ray = []rule{
	{name: Used, from: []string{"ray_resources"}, only: []promtext.Label{{Name: "Name", Value: "GPU"}, {Name: "State", Value: "USED"}}},
	{name: Pending, from: []string{"ray_resources"}, only: []promtext.Label{{Name: "Name", Value: "GPU"}, {Name: "State", Value: "PENDING"}}},
	{name: Capacity, from: []string{"ray_resources"}, only: []promtext.Label{{Name: "Name", Value: "GPU"}, {Name: "State", Value: "USED"}}},
	{name: Capacity, from: []string{"ray_resources"}, only: []promtext.Label{{Name: "Name", Value: "GPU"}, {Name: "State", Value: "AVAILABLE"}}},
	{name: Jobs, from: []string{"ray_tasks"}, word: "State", words: map[string]string{
		"pending_args_avail": pending, "pending_node_assignment": pending, "pending_obj_store_mem_avail": pending, "pending_args_fetch": pending,
		"submitted_to_worker": starting, "running": running, "running_in_ray_get": running, "running_in_ray_wait": running,
	}}, // finished and failed ones are counted since the start
}

// parentsByPath tells parents from leaves by the path of a queue: root.team is a parent if there is root.team.user.
func parentsByPath(r *reader) func(string) bool {
	parents := map[string]bool{"root": true}
	for p := range r.Gauges {
		for path := p.Queue; ; {
			dot := strings.LastIndexByte(path, '.')
			if dot < 0 {
				break
			}
			path = path[:dot]
			parents[path] = true
		}
	}
	return func(queue string) bool { return parents[queue] }
}
