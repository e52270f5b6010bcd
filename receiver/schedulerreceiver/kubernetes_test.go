package schedulerreceiver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

type object = kubeapitest.Object

// queued returns an API server with 8 of 16 GPUs taken, a pod that lacks CPU, one that is gated, and one that cannot tolerate a
// taint.
func queued() *kubeapitest.Server {
	s := kubeapitest.New()
	node := func(name, cpu string, more ...object) {
		s.PutNode(kubeapitest.Node(name, append([]object{{
			"metadata": object{"labels": object{"nvidia.com/gpu.product": "H100"}},
			"status":   object{"allocatable": object{"nvidia.com/gpu": "8", "cpu": cpu, "memory": "500Gi", "pods": "110"}},
		}}, more...)...))
	}
	pod := func(at, name, gpus, cpu string, more ...object) {
		s.PutPod(kubeapitest.Pod(at, "ml", name, "u-"+name, append([]object{{
			"metadata": object{"labels": object{"team": "vision"}, "creationTimestamp": "2025-11-19T12:00:00Z"},
			"spec":     object{"containers": []object{{"name": "main", "resources": object{"requests": object{"nvidia.com/gpu": gpus, "cpu": cpu}}}}},
		}}, more...)...))
	}
	waits := func(message string) object {
		return object{"status": object{"phase": "Pending", "conditions": []object{{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}}}}
	}
	node("gn1", "64")
	node("gn3", "4")
	s.PutNode(kubeapitest.Node("plain"))
	pod("gn1", "train-1", "8", "8")
	pod("", "train-2", "4", "8", waits("0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu."))
	pod("", "gated", "2", "1", object{"status": object{"phase": "Pending"}, "spec": object{"schedulingGates": []object{{"name": "kueue.x-k8s.io/admission"}}}})
	s.PutPod(kubeapitest.Pod("plain", "kube-system", "dns", "u-dns"))
	return s
}

var created = time.Date(2025, 11, 19, 12, 0, 0, 0, time.UTC)

// starts lets the pod that lacked CPU run.
func starts(s *kubeapitest.Server) {
	s.PutPod(kubeapitest.Pod("gn3", "ml", "train-2", "u-train-2", object{
		"metadata": object{"labels": object{"team": "vision"}, "creationTimestamp": "2025-11-19T12:00:00Z"},
		"spec":     object{"containers": []object{{"name": "main", "resources": object{"requests": object{"nvidia.com/gpu": "4", "cpu": "4"}}}}},
		"status": object{
			"conditions":        []object{{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2025-11-19T12:01:00Z"}},
			"containerStatuses": []object{{"name": "main", "state": object{"running": object{"startedAt": "2025-11-19T12:01:30Z"}}}},
		},
	}))
}

// kubernetes starts a receiver for a server.
func kubernetes(t *testing.T, url string) (*consumertest.MetricsSink, *observer.ObservedLogs) {
	t.Helper()
	file, err := kubeapitest.Kubeconfig(t.TempDir(), url)
	if err != nil {
		t.Fatal(err)
	}
	cfg := createDefaultConfig().(*Config)
	cfg.Scheduler = kubernetesKind
	cfg.Kubernetes.Kubeconfig, cfg.Kubernetes.Cluster, cfg.Kubernetes.TeamLabel = file, "c", "team"
	cfg.Kubernetes.Interval = 50 * time.Millisecond
	cfg.Metrics.SchedulerGpuRequested.Enabled = true
	set := receivertest.NewNopSettings(component.MustNewType("scheduler"))
	core, logs := observer.New(zap.InfoLevel)
	set.Logger = zap.New(core)
	sink := &consumertest.MetricsSink{}
	r, err := NewFactory().CreateMetrics(t.Context(), set, cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return sink, logs
}

// last returns the newest batch.
func last(sink *consumertest.MetricsSink) pmetric.Metrics {
	if all := sink.AllMetrics(); len(all) > 0 {
		return all[len(all)-1]
	}
	return pmetric.NewMetrics()
}

// shows waits until the newest batch has these points.
func shows(t *testing.T, sink *consumertest.MetricsSink, want map[string]float64) {
	t.Helper()
	await.NoError(t, func() error {
		got := points(last(sink))
		for key, v := range got {
			if strings.HasPrefix(key, "scheduler.waiting.time ") { // since 2025
				got[key] = math.Trunc((v - time.Since(created).Seconds()) / 3600) // 0: right to the hour
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			return fmt.Errorf("points (-want +got):\n%s", diff)
		}
		return nil
	})
}

// Catches GPUs or pods that are counted twice, under two reasons or not at all, values that outlive the connection, a
// wait that is not measured, and a failure that is logged more than once.
func TestKubernetes(t *testing.T) {
	s := queued()
	url, stop := s.Serve()
	defer stop()
	sink, logs := kubernetes(t, url)
	want := map[string]float64{
		"scheduler.up":                               1,
		"scheduler.job.count running ml vision":      1,
		"scheduler.job.count pending ml vision":      1,
		"scheduler.job.count held ml vision":         1,
		"scheduler.job.pending.count cpu ml vision":  1,
		"scheduler.job.pending.count held ml vision": 1,
		"scheduler.gpu.allocated H100 ml vision":     8,
		"scheduler.gpu.requested H100 ml vision":     14,
		"scheduler.gpu.pending H100 cpu ml vision":   4, "scheduler.gpu.pending H100 held ml vision": 2,
		"scheduler.gpu.count allocated H100": 8, "scheduler.gpu.count free H100": 8, "scheduler.gpu.count drained H100": 0, "scheduler.gpu.count down H100": 0,
		"scheduler.gpu.placeable 1 H100": 8, "scheduler.gpu.placeable 2 H100": 4, "scheduler.gpu.placeable 4 H100": 2, "scheduler.gpu.placeable 8 H100": 1, "scheduler.gpu.placeable 16 H100": 0,
		"scheduler.gpu.fragmentation 1 H100": 0, "scheduler.gpu.fragmentation 2 H100": 0, "scheduler.gpu.fragmentation 4 H100": 0, "scheduler.gpu.fragmentation 8 H100": 0, "scheduler.gpu.fragmentation 16 H100": 1,
		// A device usually takes one CPU, as the median of 1, 2 and 0.5.
		"scheduler.gpu.stranded cpu H100": 4, "scheduler.gpu.stranded memory H100": 0, "scheduler.gpu.stranded cordoned H100": 0, "scheduler.gpu.stranded not_ready H100": 0, "scheduler.gpu.stranded unhealthy H100": 0, "scheduler.gpu.stranded taint H100": 0,
		"scheduler.gpu.unusable.ratio": 2. / 3, // only the gated one fits
	}
	for _, job := range []string{"H100 u-train-2 train-2 cpu ml vision", "H100 u-gated gated held ml vision"} {
		want["scheduler.waiting.gpu "+job] = map[bool]float64{true: 2, false: 4}[strings.Contains(job, "gated")]
		want["scheduler.waiting.time "+job] = 0
	}
	shows(t, sink, want)

	starts(s)
	await.NoError(t, func() error {
		got := points(last(sink))
		if got["scheduler.job.wait.duration ml"] != 1 || got["scheduler.job.startup.duration ml"] != 1 || got["scheduler.gpu.allocated H100 ml vision"] != 12 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	for _, m := range last(sink).ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if m.Name() == "scheduler.job.wait.duration" {
			if p := m.Histogram().DataPoints().At(0); p.Sum() != 60 {
				t.Errorf("it waited %v s", p.Sum())
			}
		}
	}

	// One permission is missing: the rest goes on.
	s.Fail("/api/v1/nodes", kubeapitest.Fault{Status: 403})
	s.DropWatches(false)
	await.True(t, "nodes are absent", func() bool {
		got := points(last(sink))
		_, there := got["scheduler.gpu.count free H100"]
		return !there && got["scheduler.up"] == 0 && got["scheduler.job.count running ml vision"] == 2
	})
	s.Heal()
	await.True(t, "nodes are back", func() bool { return points(last(sink))["scheduler.gpu.count free H100"] == 4 })

	// The API server is away.
	stop()
	await.NoError(t, func() error {
		got := points(last(sink))
		for name := range got {
			if strings.HasPrefix(name, "scheduler.gpu.") || strings.HasPrefix(name, "scheduler.job.count") {
				return fmt.Errorf("%s is still reported", name)
			}
		}
		if got["scheduler.up"] != 0 {
			return fmt.Errorf("scheduler.up is %v", got["scheduler.up"])
		}
		return nil
	})
	texts := map[string]int{}
	for _, e := range logs.All() {
		texts[fmt.Sprint(e.Message, e.ContextMap()["reason"])]++
	}
	if n := texts["Some requests to the Kubernetes API failedcannot watch the nodes: the test says 403"]; n != 1 {
		t.Errorf("the missing permission is logged %d times: %v", n, texts)
	}
}

// Catches a record that lacks a time or says it in another unit, a pod that is told twice, records that are lost while the pipeline refuses them, and
// two pipelines that watch twice.
func TestKubernetesRecords(t *testing.T) {
	s := queued()
	url, stop := s.Serve()
	defer stop()
	file, err := kubeapitest.Kubeconfig(t.TempDir(), url)
	if err != nil {
		t.Fatal(err)
	}
	cfg := createDefaultConfig().(*Config)
	cfg.Scheduler = kubernetesKind
	cfg.Kubernetes.Kubeconfig, cfg.Kubernetes.Cluster, cfg.Kubernetes.TeamLabel, cfg.Kubernetes.Interval = file, "c", "team", 20*time.Millisecond
	set, f := receivertest.NewNopSettings(component.MustNewType("scheduler")), NewFactory()
	sink, logs := &consumertest.MetricsSink{}, &consumertest.LogsSink{}
	var refusing atomic.Bool
	refusing.Store(true)
	next, err := consumer.NewLogs(func(ctx context.Context, ld plog.Logs) error {
		if refusing.Load() {
			return errors.New("full")
		}
		return logs.ConsumeLogs(ctx, ld)
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := f.CreateMetrics(t.Context(), set, cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.CreateLogs(t.Context(), set, cfg, next)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []component.Component{m, l} {
		if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := r.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		}()
	}
	await.True(t, "pods are watched", func() bool { return points(last(sink))["scheduler.up"] == 1 })
	starts(s)
	await.True(t, "the pod has started", func() bool { return points(last(sink))["scheduler.job.startup.duration ml"] == 1 })
	s.DeletePod("ml", "gated")
	refusing.Store(false)
	await.NoError(t, func() error {
		got := map[string]map[string]any{}
		for _, ld := range logs.AllLogs() {
			for _, rec := range ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
				id, _ := rec.Attributes().Get("log.record.uid")
				if got[id.Str()] != nil {
					t.Fatalf("%s is told twice", id.Str())
				}
				got[id.Str()] = rec.Attributes().AsRaw()
				got[id.Str()]["body"] = rec.EventName() + ": " + rec.Body().Str()
				if rec.EventName() == eventJobStarted && !rec.Timestamp().AsTime().Equal(created.Add(90*time.Second)) {
					t.Fatalf("it says %v", rec.Timestamp().AsTime())
				}
			}
		}
		if gone := got["u-gated/ended"]; gone != nil {
			delete(gone, "scheduler.job.ended_time") // now
		}
		at := created.Unix()
		want := map[string]map[string]any{
			"u-train-2/started": {
				"body":           "scheduler.job.started: Pod ml/train-2 with 4 GPUs started on gn3, 1m 30s after it was created and 30s after it was scheduled",
				"log.record.uid": "u-train-2/started", "scheduler.cluster": "c", "scheduler.type": "kubernetes", "scheduler.queue": "ml", "scheduler.team": "vision", "gpu.workload.team": "vision",
				"scheduler.job.id": "u-train-2", "scheduler.job.name": "train-2", "k8s.namespace.name": "ml", "k8s.pod.name": "train-2", "k8s.pod.uid": "u-train-2", "k8s.node.name": "gn3",
				"scheduler.job.gpu.count": int64(4), "scheduler.job.created_time": at, "scheduler.job.scheduled_time": at + 60, "scheduler.job.started_time": at + 90,
			},
			"u-gated/ended": {
				"body":           "scheduler.job.ended: Pod ml/gated with 2 GPUs ended: deleted",
				"log.record.uid": "u-gated/ended", "scheduler.cluster": "c", "scheduler.type": "kubernetes", "scheduler.queue": "ml", "scheduler.team": "vision", "gpu.workload.team": "vision",
				"scheduler.job.id": "u-gated", "scheduler.job.name": "gated", "k8s.namespace.name": "ml", "k8s.pod.name": "gated", "k8s.pod.uid": "u-gated",
				"scheduler.job.gpu.count": int64(2), "scheduler.job.created_time": at, "scheduler.job.result": "deleted",
			},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("records (-want +got):\n%s", diff)
		}
		return nil
	})
	watches := 0
	for _, r := range s.Requests() {
		if strings.Contains(r, "/api/v1/pods") && strings.Contains(r, "watch=true") {
			watches++
		}
	}
	if watches != 1 {
		t.Errorf("%d watches of pods", watches)
	}
}

// Catches a second process that reports the same.
func TestKubernetesElects(t *testing.T) {
	s := queued()
	url, stop := s.Serve()
	defer stop()
	first, _ := kubernetes(t, url)
	await.True(t, "one reports", func() bool { return points(last(first))["scheduler.up"] == 1 })
	second, logs := kubernetes(t, url)
	await.True(t, "the other says who", func() bool {
		return logs.FilterMessage("Another process watches the Kubernetes cluster").Len() == 1
	})
	if n := len(second.AllMetrics()); n > 0 {
		t.Errorf("the other reports %d batches: %v", n, points(last(second)))
	}
}

// Catches a configuration that is accepted and does nothing.
func TestKubernetesConfig(t *testing.T) {
	f := func(want string, change func(*Config)) {
		t.Helper()
		cfg := createDefaultConfig().(*Config)
		cfg.Scheduler = kubernetesKind
		change(cfg)
		if err := confmap.Validate(cfg); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f("", func(*Config) {})
	f("", func(c *Config) { c.Kubernetes.Lease = "monitoring/gpus" })
	f("lease must be NAME or NAMESPACE/NAME", func(c *Config) { c.Kubernetes.Lease = "" })
	f("lease must be NAME or NAMESPACE/NAME", func(c *Config) { c.Kubernetes.Lease = "a/b/c" })
	f("interval must be at least 1s", func(c *Config) { c.Kubernetes.Interval = 0 })
	f("max_series must be at least 10", func(c *Config) { c.Kubernetes.MaxSeries = 0 })
	f(`scheduler must be slurm, kubernetes, queueing or node, is "pbs"`, func(c *Config) { c.Scheduler = "pbs" })
	cfg := createDefaultConfig().(*Config)
	cfg.Scheduler = kubernetesKind
	_, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(component.MustNewType("scheduler")), cfg, consumertest.NewNop())
	if err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("outside of a cluster: %v", err)
	}
}
