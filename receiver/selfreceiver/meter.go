package selfreceiver

import (
	"slices"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
)

// Meter provides a meter provider to successive Collectors and reads the metrics of the latest. Counters
// restart when the pipelines are reloaded: the Collector never unregisters its process callbacks.
type Meter struct {
	reader atomic.Pointer[metric.ManualReader]
}

// NewProvider returns the meter provider of a Collector. It keeps only the instruments that show data
// loss and the resource use of the process: all of them would be more series than a GPU has.
func (m *Meter) NewProvider() *metric.MeterProvider {
	reader := metric.NewManualReader()
	m.reader.Store(reader)
	return metric.NewMeterProvider(metric.WithReader(reader), metric.WithView(view), metric.WithExemplarFilter(exemplar.AlwaysOffFilter))
}

// kept are the recorded instruments; a trailing * matches any suffix. The Collector's instruments keep
// their well-known names.
var kept = []string{
	"gpumeter.*",
	"otelcol_exporter_enqueue_failed_*",
	"otelcol_exporter_queue_capacity",
	"otelcol_exporter_queue_size",
	"otelcol_exporter_send_failed_*",
	"otelcol_exporter_sent_*",
	"otelcol_process_cpu_seconds",
	"otelcol_process_memory_rss",
	"otelcol_process_uptime",
	"otelcol_processor_*_refused_*",
	"otelcol_receiver_accepted_*",
	"otelcol_receiver_refused_*",
}

// described replaces descriptions that do not mention that our queues are measured in bytes.
var described = map[string]string{
	"otelcol_exporter_queue_capacity": "Capacity of the queue of an exporter, in bytes unless another sizer is configured.",
	"otelcol_exporter_queue_size":     "Size of the queue of an exporter, in bytes unless another sizer is configured.",
}

// superfluous are redundant attributes: error.type is more specific than error.permanent, and the exporter's
// name identifies the destination. A URL path may contain a token.
var superfluous = []attribute.Key{"error.permanent", "server.address", "server.port", "url.path"}

func view(i metric.Instrument) (metric.Stream, bool) {
	if !slices.ContainsFunc(kept, func(pattern string) bool { return matches(pattern, i.Name) }) {
		return metric.Stream{Aggregation: metric.AggregationDrop{}}, true
	}
	if text, ok := described[i.Name]; ok {
		i.Description = text
	}
	return metric.Stream{
		Name: i.Name, Description: i.Description, Unit: i.Unit,
		AttributeFilter: attribute.NewDenyKeysFilter(superfluous...),
	}, true
}

// matches reports whether name matches pattern, in which * stands for any text.
func matches(pattern, name string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return name == pattern
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok || rest == "" {
		return ok
	}
	for i := range len(name) + 1 {
		if matches(rest, name[i:]) {
			return true
		}
	}
	return false
}
