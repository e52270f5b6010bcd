package workloadprocessor

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// page returns dcgm-exporter's metrics of a node with 8 GPUs: 40 metrics each.
func page(host string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	metrics := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics()
	for i := range 40 {
		m := metrics.AppendEmpty()
		m.SetName(fmt.Sprint("DCGM_FI_", i))
		points := m.SetEmptyGauge().DataPoints()
		for g := range 8 {
			attrs(points.AppendEmpty().Attributes(), "gpu", fmt.Sprint(g), "UUID", fmt.Sprint("GPU-", g), "pci_bus_id", "00000000:1A:00.0",
				"device", "nvidia0", "modelName", "NVIDIA H200", "Hostname", host, "DCGM_FI_DRIVER_VERSION", "580.1")
		}
	}
	return md
}

// benchmark processes copies of pattern repeatedly.
func benchmark(b *testing.B, p *bench, pattern pmetric.Metrics) {
	b.Helper()
	b.ReportAllocs()
	points := 0
	for b.Loop() {
		b.StopTimer() // the copy would be half of it
		md := pmetric.NewMetrics()
		pattern.CopyTo(md)
		p.gotMetrics.Reset()
		b.StartTimer()
		if err := p.metrics.ConsumeMetrics(b.Context(), md); err != nil {
			b.Fatal(err)
		}
		points += md.DataPointCount()
	}
	b.ReportMetric(float64(points)/b.Elapsed().Seconds(), "points/s")
}

func BenchmarkNode(b *testing.B) {
	p := newBench(b, nil)
	t := machine()
	t.Readings = t.Readings[:1]
	for i := 1; i < 8; i++ {
		r := t.Readings[0]
		r.ID.UUID, r.ID.Index = fmt.Sprint("GPU-", i), i
		t.Readings = append(t.Readings, r)
	}
	p.tick(t)
	benchmark(b, p, page("node-1"))
}

// BenchmarkResource covers applications: one container each, with ten points.
func BenchmarkResource(b *testing.B) {
	p := newBench(b, nil)
	p.tick(machine())
	p.view.containers = map[string]workload.Workload{}
	md := pmetric.NewMetrics()
	for i := range 256 {
		id := fmt.Sprint("container", i)
		p.view.containers[id] = pod(id)
		gauge(pairs{"container.id", id, "service.name", id}, "m", make([]pairs, 10)...).ResourceMetrics().MoveAndAppendTo(md.ResourceMetrics())
	}
	benchmark(b, p, md)
}

func BenchmarkGateway(b *testing.B) {
	g := newGateway(b, nil)
	for host := range 1000 {
		var points []pairs
		for i := range 8 {
			points = append(points, has(i, fmt.Sprint("GPU-", i), "a"))
		}
		g.hear(fmt.Sprint("n", host), points...)
	}
	benchmark(b, g.bench, page("n500"))
}

// BenchmarkLearn covers one agent with 8 GPUs among 10,000.
func BenchmarkLearn(b *testing.B) {
	g := newGateway(b, nil)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		b.StopTimer()
		i++
		var points []pairs
		for gpu := range 8 {
			points = append(points, has(gpu, fmt.Sprint("GPU-", gpu), "a"))
		}
		md := allocation(g.now.Add(0), pairs{"host.name", fmt.Sprint("n", i%10_000)}, points...)
		b.StartTimer()
		g.knowledge.fleet.learn(md)
	}
}
