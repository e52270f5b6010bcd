package hub

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauge is a value on the hub's own /metrics.
type Gauge struct {
	Name, Help string
	Labels     map[string]string
	Value      float64
}

// Gauges is a collector of what list returns when it is asked. Of two that are one series
// the first counts: the whole page would be an error otherwise.
func Gauges(list func() []Gauge) prometheus.Collector { return gauges(list) }

// NewRegistry returns one for a hub without a store of its own.
func NewRegistry(list ...prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(list...)
	return r
}

type gauges func() []Gauge

// Describe implements prometheus.Collector. What there is changes, so it says nothing.
func (gauges) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	seen := map[string]bool{}
	for _, x := range g() {
		names := slices.Sorted(maps.Keys(x.Labels))
		values := make([]string, len(names))
		key := x.Name
		for i, n := range names {
			values[i] = x.Labels[n]
			key += "\xff" + n + "\xff" + values[i]
		}
		m, err := prometheus.NewConstMetric(prometheus.NewDesc(x.Name, x.Help, names, nil), prometheus.GaugeValue, x.Value, values...)
		if err != nil || seen[key] {
			continue // a value that is no UTF-8, which others may have written
		}
		seen[key] = true
		ch <- m
	}
}
