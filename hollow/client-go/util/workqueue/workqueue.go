// Package workqueue is what prometheus/discovery names of the queues of Kubernetes' client.
package workqueue

// The kinds of metrics of a queue.
type (
	GaugeMetric interface {
		Inc()
		Dec()
	}
	CounterMetric       interface{ Inc() }
	HistogramMetric     interface{ Observe(float64) }
	SettableGaugeMetric interface{ Set(float64) }
)

// MetricsProvider makes the metrics of a queue.
type MetricsProvider interface {
	NewDepthMetric(name string) GaugeMetric
	NewAddsMetric(name string) CounterMetric
	NewLatencyMetric(name string) HistogramMetric
	NewWorkDurationMetric(name string) HistogramMetric
	NewUnfinishedWorkSecondsMetric(name string) SettableGaugeMetric
	NewLongestRunningProcessorSecondsMetric(name string) SettableGaugeMetric
	NewRetriesMetric(name string) CounterMetric
}

// SetProvider does nothing: there are no queues.
func SetProvider(MetricsProvider) {}
