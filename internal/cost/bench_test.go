package cost

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// many is a store of n devices, each held by one job throughout.
type many struct{ n int }

func (m many) Instant(_ context.Context, expr string, at time.Time) ([]query.Sample, error) {
	if strings.Contains(expr, "gpu_unallocated") {
		return nil, nil
	}
	v := at.Sub(noon.Add(-100 * time.Hour)).Seconds()
	switch {
	case strings.HasPrefix(expr, "resets"):
		v = 0
	case strings.HasPrefix(expr, "min"):
		v -= 86400
	}
	out := make([]query.Sample, m.n)
	for i := range out {
		out[i] = query.Sample{Value: v, Labels: query.Labels{
			"__name__": "x", "gpu_uuid": fmt.Sprintf("GPU-%036d", i), "gpu_model": "NVIDIA H100 80GB HBM3", "gpu_vendor": "nvidia", "gpu_index": "3", "host_name": fmt.Sprint("node-", i/8),
			"k8s_cluster_name": "prod", "k8s_node_name": fmt.Sprint("node-", i/8), "gpu_workload_kind": "job", "gpu_workload_name": "llama-finetune", "gpu_workload_team": "research",
			"k8s_namespace_name": "research", "k8s_pod_name": fmt.Sprint("llama-finetune-", i), "k8s_pod_uid": fmt.Sprintf("2d1503b1-%d", i), "k8s_container_name": "trainer", "k8s_job_name": "llama-finetune",
			"job": "gpus", "instance": "10.0.0.1:9400",
		}}
	}
	return out, nil
}

func (m many) Range(context.Context, string, time.Time, time.Time, time.Duration) ([]query.Series, error) {
	return nil, nil
}

func (m many) Raw(context.Context, string, time.Time, time.Time) ([]query.Series, error) {
	return nil, nil
}

// BenchmarkBill bills a day of 10,000 devices, excluding the store's own time.
func BenchmarkBill(b *testing.B) {
	for b.Loop() {
		s, err := Bill(b.Context(), many{10_000}, Prices{}, noon.Add(-12*time.Hour), noon.Add(12*time.Hour), Options{})
		if err != nil || len(s.Rows) != 10_000 {
			b.Fatal(len(s.Rows), err)
		}
	}
}
