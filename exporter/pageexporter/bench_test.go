package pageexporter

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// tick is the data of a node with 8 devices: 80 series each, with pod labels.
func tick() pmetric.Metrics {
	md := pmetric.NewMetrics()
	ms := scope(md, "node-1", "gpureceiver")
	for i := range 80 {
		m := ms.AppendEmpty()
		m.SetName(fmt.Sprintf("gpu.metric%d", i))
		m.SetUnit("By")
		m.SetDescription("A metric with a description of the usual length.")
		points := m.SetEmptyGauge().DataPoints()
		for gpu := range 8 {
			p := points.AppendEmpty()
			p.SetDoubleValue(float64(i) * 1.5)
			putAll(p.Attributes(), []string{
				"gpu.uuid", fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", gpu),
				"gpu.index", fmt.Sprint(gpu), "gpu.model", "NVIDIA H100 80GB HBM3", "gpu.vendor", "nvidia",
				"gpu.workload.kind", "deployment", "gpu.workload.name", "llm", "gpu.workload.team", "research",
				"k8s.namespace.name", "inference", "k8s.pod.name", "llm-7d4b9-x2k4q", "k8s.pod.uid", "5b6d2c1e", "k8s.container.name", "main",
			})
		}
	}
	return md
}

func BenchmarkConsume(b *testing.B) {
	e := newTestExporter(time.Now)
	md := tick()
	b.ReportAllocs()
	for b.Loop() {
		consume(b, e, md)
	}
}

// The cost of a new page, paid by the first scraper after a tick.
func BenchmarkPage(b *testing.B) {
	e, md := newTestExporter(time.Now), tick()
	for _, v := range []variant{{textFormat, false}, {expfmt.TypeOpenMetrics, true}} {
		b.Run(fmt.Sprintf("format=%d,gzip=%t", v.format, v.gzip), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				consume(b, e, md)
				body, err := e.pages.body(v)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(body)))
			}
		})
	}
}
