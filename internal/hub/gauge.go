package hub

import (
	"maps"
	"runtime"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauge is one gauge on the hub's own /metrics.
type Gauge struct {
	Name, Help string
	Labels     map[string]string
	Value      float64
}

// Gauges returns a collector that calls list on every scrape. If a series occurs twice, the
// first one counts; otherwise the whole scrape would fail.
func Gauges(list func() []Gauge) prometheus.Collector { return gauges(list) }

// BuildInfo returns gpumeter_build_info, as the agents export it.
func BuildInfo(version string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "gpumeter_build_info", Help: "Always 1; the labels are the versions of gpumeter and Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	g.Set(1)
	return g
}

// NewRegistry returns a registry for a hub without its own store.
func NewRegistry(list ...prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(list...)
	return r
}

type gauges func() []Gauge

// Describe implements prometheus.Collector. It describes nothing because the set of series
// changes.
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
			continue // a label value that is not UTF-8, written by another client
		}
		seen[key] = true
		ch <- m
	}
}
