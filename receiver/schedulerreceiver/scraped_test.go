package schedulerreceiver

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/scheduler/queueing"
)

// scraped are the queueing systems whose pages are read.
var scraped = []system{
	{"kube-scheduler", "kube-scheduler", map[string]string{
		"gpu.limit":        "absent: it knows no queues",
		"gpu.nominal":      "absent: the same",
		"gpu.used":         "requests of pods on a node, by namespace; only on its page `/metrics/resources`, which is to be listed as well",
		"gpu.borrowed":     "absent: nothing is lent",
		"gpu.pending":      "requests of pods that are on no node, by namespace, also of gated ones; on the same page",
		"gpu.capacity":     "absent: its pages do not have it",
		"fair_share":       "absent: it knows none",
		"job.count":        "pods that wait, of all namespaces: `pending` are active, backoff and unschedulable, `held` are gated",
		"evicted":          "victims of preemption; since 1.20",
		"attempts":         "attempts to place a pod, of all profiles",
		"wait.duration":    "from the first attempt, without the time in which a pod could not be tried; until 1.28 with it",
		"attempt.duration": "of one attempt",
	}},
	{"Kueue", "kueue", map[string]string{
		"gpu.limit":        "the quota and what may be borrowed, by flavor; the quota alone of a ClusterQueue without a cohort. Absent if borrowing is not limited. Like all GPUs only with `metrics.enableClusterQueueResources`",
		"gpu.nominal":      "nominal quota, by flavor",
		"gpu.used":         "of admitted workloads, by flavor",
		"gpu.borrowed":     "what is used beyond the nominal quota, by flavor",
		"gpu.pending":      "of pending workloads, without a flavor; since 0.18",
		"gpu.capacity":     "absent: the sum of `gpu.nominal` is what it may give, unless cohorts have quota of their own",
		"fair_share":       "weighted share: usage beyond the quota over what the cohort can lend; only with fair sharing",
		"job.count":        "workloads: `pending` are active and inadmissible, `running` are admitted, `finished` are those that still exist, since 0.16",
		"evicted":          "evictions of workloads by their reason; `preempted` is one of them. Since 0.7",
		"attempts":         "cycles of admission that had workloads; inadmissible is `unschedulable`",
		"wait.duration":    "from created to admitted",
		"attempt.duration": "of one such cycle",
	}},
	{"Volcano", "volcano", map[string]string{
		"gpu.limit":        "capability of the queue; since 1.12 like all GPUs",
		"gpu.nominal":      "what the queue deserves",
		"gpu.used":         "allocated, and what members of a gang that waits have found but do not get",
		"gpu.borrowed":     "what is allocated beyond what the queue deserves",
		"gpu.pending":      "requested less allocated",
		"gpu.capacity":     "absent: its pages do not have it",
		"fair_share":       "the largest ratio of allocated to deserved, of all resources",
		"job.count":        "PodGroups: `pending` also if their pods exist and wait, `running` also if not all of their pods do. On the page of the controller manager since 1.11",
		"evicted":          "absent: the page has the victims of the last preemption only",
		"attempts":         "absent: the page declares them, and nobody counts them",
		"wait.duration":    "of jobs, from created to placed, for each placement",
		"attempt.duration": "of one session",
	}},
	{"KAI", "kai", map[string]string{
		"gpu.limit":        "absent: its pages do not have it",
		"gpu.nominal":      "deserved GPUs, on the page of the queue controller; absent if unlimited",
		"gpu.used":         "allocated GPUs and parts of GPUs, on the same page",
		"gpu.borrowed":     "what is allocated beyond what the queue deserves",
		"gpu.pending":      "absent: its pages do not have it",
		"gpu.capacity":     "absent: the same",
		"fair_share":       "allocated over the current fair share of GPUs; needs the pages of the scheduler and of the queue controller",
		"job.count":        "absent: its pages do not have it",
		"evicted":          "evicted pods by action; newer versions than 0.12",
		"attempts":         "PodGroups that were placed, as `scheduled`; those that were not are counted once for each action, which is no attempt",
		"wait.duration":    "of pods, from created to placed",
		"attempt.duration": "absent: only the last one is on the page",
	}},
	{"Koordinator", "koordinator", map[string]string{
		"gpu.limit":        "`max` of an elastic quota, in GPUs or in hundredths (`koordinator.sh/gpu-core`). 1.8 declares it and does not write it",
		"gpu.nominal":      "`min` of the quota; not written by 1.8 either",
		"gpu.used":         "`used` of the quota",
		"gpu.borrowed":     "what is used beyond `min`, where that is written",
		"gpu.pending":      "what pods ask for, less what is used",
		"gpu.capacity":     "absent: its page does not have it",
		"fair_share":       "used over `runtime`, the quota as it is now",
		"job.count":        "as of kube-scheduler, which it is built on; of all quotas",
		"evicted":          "the same",
		"attempts":         "the same",
		"wait.duration":    "the same",
		"attempt.duration": "the same",
	}},
	{"YuniKorn", "yunikorn", map[string]string{
		"gpu.limit":        "`max` of a leaf queue; absent if it is 0, which is also written when a limit is removed. Like all queues since 1.5",
		"gpu.nominal":      "`guaranteed`; absent if it is 0",
		"gpu.used":         "`allocated`",
		"gpu.borrowed":     "what is allocated beyond what is guaranteed",
		"gpu.pending":      "`pending`",
		"gpu.capacity":     "`max` of the root queue",
		"fair_share":       "absent: its page does not have it",
		"job.count":        "applications: `pending` are new and accepted, `stopping` are failing and completing. Ended ones are counted since the start, and so left out",
		"evicted":          "absent: its page does not have it",
		"attempts":         "attempts to place a container",
		"wait.duration":    "absent: its page does not have it",
		"attempt.duration": "of one cycle; the page says milliseconds and means seconds",
	}},
	{"HAMi", "hami", map[string]string{
		"gpu.limit":        "quota of cores of a namespace: 100 are one GPU",
		"gpu.nominal":      "absent: it knows no shares",
		"gpu.used":         "parts of GPUs that containers have, by namespace and type of device: of the memory or of the cores, whichever is more",
		"gpu.borrowed":     "absent: nothing is lent",
		"gpu.pending":      "absent: it only sees pods that the scheduler tries to place",
		"gpu.capacity":     "devices by type",
		"fair_share":       "absent: it knows none",
		"job.count":        "absent: it does not count pods",
		"evicted":          "absent: it evicts none",
		"attempts":         "absent: the scheduler that it extends counts them",
		"wait.duration":    "absent: the same",
		"attempt.duration": "absent: the same",
	}},
	{"kube-state-metrics", "kube-state-metrics", map[string]string{
		"gpu.limit":        "ResourceQuota `requests.` of a namespace, the smallest of several",
		"gpu.nominal":      "absent: namespaces have no shares",
		"gpu.used":         "requests of pods on a node that have not ended, by namespace",
		"gpu.borrowed":     "absent: nothing is lent",
		"gpu.pending":      "requests of pods that are on no node, by namespace",
		"gpu.capacity":     "allocatable of all nodes",
		"fair_share":       "absent: it knows none",
		"job.count":        "pods that ask for GPUs, by namespace; `starting` are on a node and not running yet",
		"evicted":          "absent: the page has the pods that still exist",
		"attempts":         "absent: it is no scheduler",
		"wait.duration":    "absent: the same",
		"attempt.duration": "absent: the same",
	}},
	{"Ray", "ray", map[string]string{
		"gpu.limit":        "absent: it knows no queues",
		"gpu.nominal":      "absent: the same",
		"gpu.used":         "logical GPUs in use, of all nodes whose pages are listed",
		"gpu.borrowed":     "absent: nothing is lent",
		"gpu.pending":      "logical GPUs that the cluster waits for, where the version says so",
		"gpu.capacity":     "logical GPUs of these nodes",
		"fair_share":       "absent: it knows none",
		"job.count":        "tasks: `pending` wait for arguments, memory or a node. Ended ones are counted since the start, and so left out",
		"evicted":          "absent: its pages do not have it",
		"attempts":         "absent: the same",
		"wait.duration":    "absent: the times of its pages are not by what waited",
		"attempt.duration": "absent: its pages do not have it",
	}},
}

// systemPages serves the pages of all systems.
func systemPages(t *testing.T) (address string) {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Join("testdata", "pages"))))
	t.Cleanup(server.Close)
	return server.URL
}

// reads returns what a reader of these pages reports in one round.
func reads(t *testing.T, list ...PageConfig) pmetric.Metrics {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.Scheduler, cfg.Queueing.Pages = queueingKind, list
	q := newQueues(cfg, "c", receivertest.NewNopSettings(component.MustNewType("scheduler")), consumertest.NewNop(), nil)
	now := time.Now()
	round := q.reader.Read(t.Context(), now)
	if round.Err != nil || round.Refused > 0 {
		t.Errorf("%d series are refused, %v", round.Refused, round.Err)
	}
	return q.emit(round, now)
}

// onPages returns the names that each system reports, by scheduler.type.
func onPages(t *testing.T) map[string]map[string]bool {
	t.Helper()
	address, out := systemPages(t), map[string]map[string]bool{}
	for _, kind := range queueing.Systems() {
		files, err := filepath.Glob(filepath.Join("testdata", "pages", kind+"*.txt"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no page: %v", kind, err)
		}
		var list []PageConfig
		for _, file := range files {
			list = append(list, PageConfig{URL: address + "/" + filepath.Base(file)})
		}
		md := reads(t, list...)
		out[kind] = names(points(md))
		delete(out[kind], "scheduler.up")
	}
	if len(scraped) != len(out) {
		t.Errorf("%d systems are described, %d are known", len(scraped), len(out))
	}
	return out
}
