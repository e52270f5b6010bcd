package gpureceiver

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// ended reports whether something of the tick before is gone: a device, or its answer, a
// workload, an owner, or a runtime. Its series must be told to end, or a database shows them for
// minutes more.
func ended(before, now node.Tick) bool {
	there := map[string]bool{}
	for _, key := range identities(now) {
		there[key] = true
	}
	return slices.ContainsFunc(identities(before), func(key string) bool { return !there[key] })
}

// identities returns one text for each set of labels that the series of a tick have.
func identities(t node.Tick) []string {
	var list []string
	for _, s := range t.Attribution {
		list = append(list, s.Source+"|"+string(s.Reason))
	}
	for i := range t.Readings {
		r := &t.Readings[i]
		list = append(list, r.ID.UUID+strconv.FormatBool(r.Up)+describe(r.Owner))
		list = append(list, runtimeIdentities(r)...)
		for j := range r.Holders {
			h := &r.Holders[j]
			list = append(list, strings.Join([]string{r.ID.UUID, h.Partition, string(h.Basis), strconv.FormatBool(h.Ended), describe(&h.Workload)}, "|"))
		}
	}
	return list
}

// runtimeIdentities are of what a runtime says, which ends with the workload that it is of.
func runtimeIdentities(r *node.Reading) []string {
	x := &r.Runtime
	var list []string
	add := func(v device.Value, words ...string) {
		if v.OK() {
			list = append(list, r.ID.UUID+"|runtime|"+strings.Join(words, "|"))
		}
	}
	add(x.Queue, "queue")
	add(x.Idle, "idle")
	add(x.Operations, "operations")
	for _, e := range x.Executions {
		add(e.Count, "executions", e.Type)
	}
	for i := range x.Latencies {
		add(device.Of(1), "latency", x.Latencies[i].Operation, x.Latencies[i].Detail)
	}
	return list
}

func describe(w *workload.Workload) string {
	if w == nil {
		return ""
	}
	pairs := []string{w.ID, w.Kind, w.Name, w.Team}
	for key, value := range w.Attributes {
		pairs = append(pairs, key+"="+value)
	}
	slices.Sort(pairs[4:])
	return strings.Join(pairs, "|")
}

// end adds to now one point without a value for each series that before has and now has
// not.
func end(now, before pmetric.Metrics, ts pcommon.Timestamp) {
	metrics, series := map[string]pmetric.Metric{}, map[string]bool{}
	eachMetric(now, func(m pmetric.Metric) {
		metrics[m.Name()] = m
		points, _ := pointsOf(m)
		points.each(func(dp dataPoint) { series[identity(m, dp.Attributes())] = true })
	})
	eachMetric(before, func(m pmetric.Metric) {
		points, _ := pointsOf(m)
		points.each(func(dp dataPoint) {
			if series[identity(m, dp.Attributes())] {
				return
			}
			to, ok := metrics[m.Name()]
			if !ok {
				to = now.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty()
				copyFrame(m, to)
				metrics[m.Name()] = to
			}
			all, _ := pointsOf(to)
			last := all.add()
			dp.Attributes().CopyTo(last.Attributes())
			last.SetTimestamp(ts)
			last.SetStartTimestamp(dp.StartTimestamp())
			last.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		})
	})
}

// copyFrame makes to a metric like from, without points.
func copyFrame(from, to pmetric.Metric) {
	to.SetName(from.Name())
	to.SetDescription(from.Description())
	to.SetUnit(from.Unit())
	switch from.Type() {
	case pmetric.MetricTypeSum:
		s := to.SetEmptySum()
		s.SetIsMonotonic(from.Sum().IsMonotonic())
		s.SetAggregationTemporality(from.Sum().AggregationTemporality())
	case pmetric.MetricTypeHistogram:
		to.SetEmptyHistogram().SetAggregationTemporality(from.Histogram().AggregationTemporality())
	default:
		to.SetEmptyGauge()
	}
}

func identity(m pmetric.Metric, attrs pcommon.Map) string {
	pairs := make([]string, 0, attrs.Len())
	for key, v := range attrs.All() {
		pairs = append(pairs, key+"\x00"+v.AsString())
	}
	slices.SortFunc(pairs, cmp.Compare[string])
	return m.Name() + "\x00" + strings.Join(pairs, "\x00")
}
