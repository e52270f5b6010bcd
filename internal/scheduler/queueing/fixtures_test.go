package queueing

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// Catches numbers that make no sense and are reported: of a page that is damaged, or of a peer that lies.
func TestNonsense(t *testing.T) {
	reads(t, "kueue", map[string]float64{"job.count red pending": 1, "refused": 6}, `kueue_pending_workloads{cluster_queue="red",status="active"} 1
kueue_pending_workloads{cluster_queue="red",status="active"} 1
kueue_pending_workloads{cluster_queue="blue",status="active"} -1
kueue_admitted_active_workloads{cluster_queue="red"} NaN
kueue_admission_attempts_total{result="success"} +Inf
kueue_admission_attempts_total{result="something new"} 1
kueue_admission_wait_time_seconds_bucket{cluster_queue="no end",le="1"} 1
kueue_admission_wait_time_seconds_sum{cluster_queue="no end"} 1
kueue_admission_wait_time_seconds_bucket{cluster_queue="falls",le="1"} 2
kueue_admission_wait_time_seconds_bucket{cluster_queue="falls",le="+Inf"} 1
kueue_admission_wait_time_seconds_sum{cluster_queue="falls"} 1
kueue_admission_wait_time_seconds_bucket{cluster_queue="no sum",le="+Inf"} 1
`)
	long := strings.Repeat("ü", 100)
	got := Read("kueue", pages(fmt.Sprintf("kueue_pending_workloads{cluster_queue=%q} 1\n", long)), vendors, nil)
	if diff := cmp.Diff(map[string]float64{"job.count " + long[:100] + " pending": 1}, numbers(got)); diff != "" {
		t.Errorf("a long name (-want +got):\n%s", diff)
	}
	if got := Recognize(promtext.Scan([]byte("gpu_up 1\nscheduler_up 1\n"))); got != "" {
		t.Errorf("a page of nobody is taken for one of %s", got)
	}
}

// Catches a real page of which something is not read any more.
func TestFixtures(t *testing.T) {
	root := filepath.Join("..", "..", "..", "..", "shared", "fixtures", "schedulers")
	if _, err := os.Stat(root); err != nil {
		t.Skip("the shared fixtures are absent:", err)
	}
	f := func(path, system string, want map[string]float64) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		text := promtext.Scan(b)
		if got := Recognize(text); got != system || Standby(text) {
			t.Errorf("%s is of %q, standby %v; want %q", path, got, Standby(text), system)
		}
		got := numbers(Read(system, []Page{{"a", text}}, vendors, nil))
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	f("kube-scheduler/1.34.4-gpu-fragmentation/kube_scheduler_1.34.4_metrics_resources.txt", "kube-scheduler", map[string]float64{"gpu.pending team-a": 21, "gpu.used team-a": 12})
	f("kube-scheduler/1.34.4-gpu-fragmentation/kube_scheduler_1.34.4_metrics.txt", "kube-scheduler", map[string]float64{
		"attempts scheduled": 3, "attempts unschedulable": 5, "evicted preempted": 1, "job.count held": 1, "job.count pending": 5,
		"wait.duration count": 3, "wait.duration sum": 0.017213611, "attempt.duration count": 8, "attempt.duration sum": 0.01826152,
	})
	f("kube-scheduler/kube_scheduler_1.13.3.txt", "kube-scheduler", map[string]float64{
		"attempts scheduled": 15, "attempts unschedulable": 10, "attempts error": 0, "attempt.duration count": 15, "attempt.duration sum": 0.432862,
	})
	f("own-1.34.4/kueue_0.19.2.txt", "kueue", map[string]float64{
		"gpu.nominal cq h200": 8, "gpu.limit cq h200": 8, "gpu.used cq h200": 8, "gpu.borrowed cq h200": 0, "gpu.pending cq": 4,
		"job.count cq pending": 1, "job.count cq running": 2, "job.count cq finished": 0, "attempts scheduled": 2, "attempts unschedulable": 3,
		"wait.duration cq count": 2, "wait.duration cq sum": 0.284159428, "attempt.duration count": 5, "attempt.duration sum": 0.078639332,
	})
	f("own-1.34.4/kai_0.12.0.txt", "kai", map[string]float64{"attempts scheduled": 2, "wait.duration count": 2, "wait.duration sum": 1.967})
	f("own-1.34.4/koordinator_1.8.0.txt", "koordinator", map[string]float64{
		"attempts scheduled": 2, "attempts unschedulable": 1, "evicted preempted": 0, "job.count held": 0, "job.count pending": 1,
		"wait.duration count": 2, "wait.duration sum": 0.246452875, "attempt.duration count": 3, "attempt.duration sum": 0.027106792,
	})
	f("own-1.34.4/ksm_2.20.0.txt", "kube-state-metrics", map[string]float64{
		"gpu.capacity": 16, "gpu.pending default": 6, "gpu.used default": 12, "job.count default pending": 1, "job.count default starting": 2,
	})
	f("own-1.34.4/hami_2.10.0_legacy.txt", "hami", map[string]float64{"gpu.capacity NVIDIA-NVIDIA H200": 1})
	f("volcano/synthetic_volcano_1.15_queue.txt", "volcano", map[string]float64{
		"gpu.nominal default": 16, "gpu.limit default": 24, "gpu.used default": 12, "gpu.borrowed default": 0, "gpu.pending default": 8, "fair_share default": 0.75,
		"gpu.nominal research": 8, "gpu.limit research": 8, "gpu.used research": 4, "gpu.borrowed research": 0, "gpu.pending research": 0, "fair_share research": 0.5,
		"job.count default pending": 4, "job.count default running": 5, "job.count default finished": 40, "wait.duration count": 50, "wait.duration sum": 244.358105889,
	})
	all, err := filepath.Glob(filepath.Join(root, "*", "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all { // none ends the parser, or is taken for a page of another system
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text, folder := promtext.Scan(b), filepath.Base(filepath.Dir(path))
		got := Recognize(text)
		if known := find(folder) != nil; filepath.Base(path) == "SOURCE.txt" && got != "" || known && got != folder && got != "" {
			t.Errorf("%s is taken for a page of %q", path, got)
		}
		Read(got, []Page{{"a", text}}, vendors, nil)
	}
}

// Catches a page that ends the process, and one that makes a number of nonsense.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		kubeSchedulerPage, kueuePage, "kai_queue_allocated_gpus{queue_name=\"a\"} 1\n", "yunikorn_queue_resource{queue=\"..\",resource=\"nvidia.com/gpu\",state=\"max\"} 1\n",
		"hami_vgpu_memory_allocated_bytes{device_uuid=\"a\"} 1\nGPUDeviceMemoryLimit{deviceuuid=\"a\"} 0\n", "ray_resources{Name=\"GPU\",State=\"USED\"} 1e999\n",
		"kube_resourcequota{namespace=\"a\",resource=\"requests.nvidia.com/gpu\",type=\"hard\"} 1\n", "scheduler_elastic_quota_spec{name=\"a\",resource=\"koordinator.sh/gpu-core\",field=\"max\"} 1\n",
		"volcano_e2e_scheduling_latency_milliseconds_bucket{le=\"NaN\"} 1\nvolcano_e2e_scheduling_latency_milliseconds_bucket{le=\"+Inf\"} 1\nvolcano_e2e_scheduling_latency_milliseconds_sum 1\n",
	} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		all := pages(a, b)
		m := NewMemory()
		now := time.Unix(1000, 0)
		for _, system := range append(Systems(), Recognize(all[0].Text), "") {
			Standby(all[0].Text)
			for range 2 {
				r := m.Follow(Read(system, all, vendors, nil), now, now)
				for _, v := range r.Values {
					if v.N < 0 || math.IsNaN(v.N) || math.IsInf(v.N, 0) || v.Name == asked || v.Name == entitled {
						t.Errorf("%s: %v is %v", system, v.Point, v.N)
					}
				}
				for _, s := range r.Sums {
					if s.N < 0 || math.IsNaN(s.N) || math.IsInf(s.N, 0) {
						t.Errorf("%s: %v is %v", system, s.Point, s.N)
					}
				}
				for _, d := range r.Durations {
					n := uint64(0)
					for _, c := range d.Counts {
						n += c
					}
					if n != d.Count || len(d.Counts) != len(d.Bounds)+1 {
						t.Errorf("%s: %v has %d of %d in %v", system, d.Point, n, d.Count, d.Counts)
					}
				}
			}
		}
	})
}
