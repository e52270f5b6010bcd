//go:build bench

package hub

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
)

// seriesPerGPU is approximately what an agent sends per GPU by default.
const seriesPerGPU = 70

var gauges = []struct{ name, unit, key, value string }{
	{"gpu.power.draw", "W", "", ""},
	{"gpu.utilization", "1", "", ""},
	{"gpu.engine.utilization", "1", "gpu.task", "memory"},
	{"gpu.temperature", "Cel", "", ""},
	{"gpu.sensor.temperature", "Cel", "gpu.temperature.sensor", "memory"},
	{"gpu.memory.used", "By", "", ""},
	{"gpu.clock.frequency", "Hz", "", ""},
	{"gpu.clock.domain.frequency", "Hz", "gpu.clock.type", "memory"},
	{"gpu.sm.active", "1", "", ""},
	{"gpu.sm.occupancy", "1", "", ""},
}

// body returns the request of node n at a time: the same for every server.
func body(t *testing.T, n int, at, start time.Time) []byte {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(n), uint64(at.Unix())))
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	host := fmt.Sprintf("node-%d", n)
	for k, v := range map[string]string{
		"host.name": host, "k8s.node.name": host, "k8s.cluster.name": "c1", "service.name": "gpumeter", "service.instance.id": host, "gpumeter.simulated": "true",
	} {
		rm.Resource().Attributes().PutStr(k, v)
	}
	ms := rm.ScopeMetrics().AppendEmpty().Metrics()
	points := map[string]pmetric.NumberDataPointSlice{}
	of := func(name, unit string, counter bool) pmetric.NumberDataPointSlice {
		s, ok := points[name]
		if !ok {
			m := ms.AppendEmpty()
			m.SetName(name)
			m.SetUnit(unit)
			if counter {
				sum := m.SetEmptySum()
				sum.SetIsMonotonic(true)
				sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
				s = sum.DataPoints()
			} else {
				s = m.SetEmptyGauge().DataPoints()
			}
			points[name] = s
		}
		return s
	}
	now, began := pcommon.NewTimestampFromTime(at), pcommon.NewTimestampFromTime(start)
	for g := range 8 {
		add := func(to pmetric.NumberDataPointSlice, v float64, attrs ...string) pmetric.NumberDataPoint {
			p := to.AppendEmpty()
			p.SetTimestamp(now)
			p.SetDoubleValue(v)
			a := p.Attributes()
			a.PutStr("gpu.uuid", fmt.Sprintf("GPU-%d-%d", n, g))
			a.PutInt("gpu.index", int64(g))
			a.PutStr("gpu.model", "NVIDIA H100 80GB HBM3")
			a.PutStr("gpu.vendor", "nvidia")
			a.PutStr("gpu.workload.kind", "job")
			a.PutStr("gpu.workload.name", fmt.Sprintf("train-%d", n%50))
			a.PutStr("gpu.workload.team", fmt.Sprintf("team-%d", n%20))
			a.PutStr("k8s.namespace.name", fmt.Sprintf("ns-%d", n%20))
			a.PutStr("k8s.pod.name", fmt.Sprintf("train-%d-%d", n%50, g))
			for i := 0; i < len(attrs); i += 2 {
				if attrs[i] != "" {
					a.PutStr(attrs[i], attrs[i+1])
				}
			}
			return p
		}
		for _, m := range gauges {
			add(of(m.name, m.unit, false), float64(r.IntN(1000))/10, m.key, m.value)
		}
		elapsed := at.Sub(start).Seconds()
		add(of("gpu.workload.energy", "J", true), elapsed*(400+r.Float64()*10)).SetStartTimestamp(began)
		// Of the others, half change rarely, like limits and states, and a third are counters.
		for i := len(gauges) + 1; i < seriesPerGPU; i++ {
			name := fmt.Sprintf("gpu.other.m%d", i)
			switch i % 6 {
			case 0, 1:
				add(of(name, "J", true), float64(int(elapsed))*float64(i)).SetStartTimestamp(began)
			case 2:
				add(of(name, "1", false), r.Float64())
			default:
				add(of(name, "By", false), float64(i))
			}
		}
	}
	b, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
