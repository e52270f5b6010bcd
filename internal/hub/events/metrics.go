package events

import "github.com/prometheus/client_golang/prometheus"

var _ prometheus.Collector = (*File)(nil)

var (
	keptDesc    = prometheus.NewDesc("gpumeter_hub_events_total", "Events stored since the hub started.", nil, nil)
	bytesDesc   = prometheus.NewDesc("gpumeter_hub_event_bytes", "Bytes of events on disk.", nil, nil)
	cutDesc     = prometheus.NewDesc("gpumeter_hub_events_cut_total", "Events truncated because they were too long.", nil, nil)
	deletedDesc = prometheus.NewDesc("gpumeter_hub_event_files_deleted_total", "Event files deleted because of their age or because the log was full.", nil, nil)
)

// Describe implements prometheus.Collector.
func (f *File) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }

// Collect implements prometheus.Collector.
func (f *File) Collect(ch chan<- prometheus.Metric) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	size := int64(0)
	for _, s := range f.files {
		size += s.size
	}
	ch <- prometheus.MustNewConstMetric(keptDesc, prometheus.CounterValue, float64(f.kept))
	ch <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(size))
	ch <- prometheus.MustNewConstMetric(cutDesc, prometheus.CounterValue, float64(f.cut))
	ch <- prometheus.MustNewConstMetric(deletedDesc, prometheus.CounterValue, float64(f.dropped))
}
