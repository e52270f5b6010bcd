package selfreceiver

import (
	"slices"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
)

// Meter gives Collectors something to measure themselves with, one after the other, and
// reads what the last of them measured. Counters begin anew when the pipelines are
// reloaded: the Collector never takes back its callbacks for those of the process.
type Meter struct {
	reader atomic.Pointer[metric.ManualReader]
}

// NewProvider returns the meter provider of a Collector. It keeps the instruments that
// say whether data is lost and what the process costs: the others would be more series
// than a GPU has.
func (m *Meter) NewProvider() *metric.MeterProvider {
	reader := metric.NewManualReader()
	m.reader.Store(reader)
	return metric.NewMeterProvider(metric.WithReader(reader), metric.WithView(view), metric.WithExemplarFilter(exemplar.AlwaysOffFilter))
}

// kept are the instruments that are recorded; one that ends in * stands for all that
// begin so. Those of the Collector keep the names that its users know.
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

// described are instruments that do not know that our queues are measured in bytes.
var described = map[string]string{
	"otelcol_exporter_queue_capacity": "How much the queue of an exporter can hold, in bytes unless its sizer is another.",
	"otelcol_exporter_queue_size":     "How much waits in the queue of an exporter, in bytes unless its sizer is another.",
}

// superfluous are attributes that say nothing new: error.type says more, and the name of
// the exporter says where it sends to. A path may hold a token.
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

// matches reports whether name is what pattern says, whose * stand for any text.
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
