package hubexporter

import (
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// BenchmarkMetrics writes what a node of eight GPUs sends, 70 series each.
func BenchmarkMetrics(b *testing.B) {
	s, err := hub.Open(b.TempDir(), hub.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	w := NewWriter(s, nil)
	md, ms := node(map[string]any{"host.name": "node-a", "service.name": "gpumeter", "service.instance.id": "node-a", "k8s.node.name": "node-a"})
	for m := range 70 {
		points := add(ms, fmt.Sprintf("gpu.metric.m%d", m), "1").SetEmptyGauge().DataPoints()
		for g := range 8 {
			p := points.AppendEmpty()
			for _, kv := range [][2]string{ // in a fixed order, like an agent
				{"gpu.uuid", fmt.Sprintf("GPU-%d", g)},
				{"gpu.index", fmt.Sprint(g)},
				{"gpu.model", "NVIDIA H100 80GB HBM3"},
				{"gpu.vendor", "nvidia"},
				{"gpu.workload.kind", "job"},
				{"gpu.workload.name", "train"},
				{"gpu.workload.team", "research"},
				{"k8s.namespace.name", "research"},
				{"k8s.pod.name", "train-0"},
			} {
				p.Attributes().PutStr(kv[0], kv[1])
			}
		}
	}
	at := time.Now().Add(-time.Hour)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		now := pcommon.NewTimestampFromTime(at.Add(time.Duration(i) * time.Millisecond))
		for _, m := range ms.All() {
			for _, p := range m.Gauge().DataPoints().All() {
				p.SetTimestamp(now)
				p.SetDoubleValue(float64(i))
			}
		}
		b.StartTimer()
		if r, err := w.Metrics(b.Context(), md); err != nil || r.Refused > 0 {
			b.Fatal(r, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/560, "ns/sample")
}
