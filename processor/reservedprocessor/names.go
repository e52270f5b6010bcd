package reservedprocessor

import (
	"slices"
	"strings"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// namespaces are the first parts of the names that gpumeter prices, judges and attributes by.
// system.* of the host receiver is missing on purpose: nothing is derived from it, and other
// Collectors send it too.
// gen_ai.* is missing because OpenTelemetry owns it: what counts there is engineLabel.
// kube-scheduler has scheduler_*, too: only the parts that it does not use are ours.
var namespaces = []string{
	"gpu", "gpumeter", "inference", "nccl", "slurm",
	"scheduler.claim", "scheduler_claim", "scheduler.group", "scheduler_group", "scheduler.gpu", "scheduler_gpu", "scheduler.job", "scheduler_job", "scheduler.up", "scheduler_up", "scheduler.waiting", "scheduler_waiting",
	"scheduler.queue", "scheduler_queue_attempt", "scheduler_queue_attempts", "scheduler_queue_evicted", "scheduler_queue_fair", "scheduler_queue_gpu", "scheduler_queue_job", "scheduler_queue_wait",
}

// engineLabel is on every series of an inference engine that gpumeter has read itself: only those are
// counted and priced.
const engineLabel = "inference_engine_id"

// identity are the resource attributes that become labels of every series in the hub and on the
// page.
var identity = []string{
	"host.name", "host.type", "k8s.node.name", "k8s.cluster.name", "cloud.region", "cloud.availability_zone", "rack", "gpumeter.simulated",
}

// Identity returns the resource attributes that only the agent itself may set.
func Identity() []string { return slices.Clone(identity) }

// identityLabels are the labels of identity.
var identityLabels = func() []string {
	out := make([]string, len(identity))
	for i, key := range identity {
		out[i] = labelOf(key)
	}
	return out
}()

// The translation of the hub and of the page. Names must be compared after it: gpu_up, or gpu
// with the unit up, become the same series as gpu.up.
var metricNamer = otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)

func labelOf(attribute string) string {
	name, err := (&otlptranslator.LabelNamer{}).Build(attribute)
	if err != nil {
		return ""
	}
	return name
}

// reservedMetric reports whether a metric would be stored under a name of gpumeter.
func reservedMetric(m pmetric.Metric) bool {
	// A name without a suffix is reserved too: a histogram gpu becomes gpu_sum.
	if reserved(m.Name(), "_") || reserved(m.Name(), ".") {
		return true
	}
	name, err := metricNamer.Build(otlptranslator.Metric{Name: m.Name(), Unit: m.Unit(), Type: kindOf(m)})
	return err == nil && reserved(name, "_")
}

func kindOf(m pmetric.Metric) otlptranslator.MetricType {
	switch m.Type() {
	case pmetric.MetricTypeSum:
		if m.Sum().IsMonotonic() {
			return otlptranslator.MetricTypeMonotonicCounter
		}
		return otlptranslator.MetricTypeNonMonotonicCounter
	case pmetric.MetricTypeHistogram:
		return otlptranslator.MetricTypeHistogram
	case pmetric.MetricTypeExponentialHistogram:
		return otlptranslator.MetricTypeExponentialHistogram
	case pmetric.MetricTypeSummary:
		return otlptranslator.MetricTypeSummary
	default:
		return otlptranslator.MetricTypeGauge
	}
}

// eventNameKey is where OTLP before 1.5 has the name of an event.
const eventNameKey = "event.name"

// reservedEvent reports whether the hub may store a record under a name of gpumeter, and returns
// that name. OTLP may repeat an attribute, so each occurrence counts.
func reservedEvent(resource pcommon.Map, r plog.LogRecord) (string, bool) {
	if reserved(r.EventName(), ".") {
		return r.EventName(), true
	}
	for _, attrs := range []pcommon.Map{r.Attributes(), resource} {
		for key, v := range attrs.All() {
			if key == eventNameKey && reserved(v.AsString(), ".") {
				return v.AsString(), true
			}
		}
	}
	return "", false
}

func reserved(name, separator string) bool {
	return slices.ContainsFunc(namespaces, func(ns string) bool { return strings.HasPrefix(name+separator, ns+separator) })
}
