package gpureceiver

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
)

// decoration is an attribute that only some points have. mdatagen would search every recorded point for
// an optional attribute, so they are added afterwards. Attributes of a workload are on its usage and on
// the gauges of a device or partition of which it is the sole holder; never on the sums of a device,
// whose series live as long as the device.
type decoration struct {
	key, description string
	value            func(subject) string
}

var decorations = []decoration{
	{
		"gpu.partition.id", "Identifier of the partition (NVIDIA: UUID of the MIG device) the value is of. Absent: the whole device.",
		subject.partition,
	},
	{
		"gpu.partition.profile", "Size of the partition as its vendor names it, such as 1g.18gb.",
		func(s subject) string { return s.profile },
	},
}

// decorate adds what the builder could not: the optional attributes and the start time of each counter.
// Points come in with the key of their subject in gpu.uuid and leave with the UUID of the physical
// device.
func decorate(md pmetric.Metrics, t node.Tick, runtimes epochs) {
	all := subjects(t, runtimes)
	for m := range series.Metrics(md) {
		for dp := range series.Points(m) {
			began := t.Started
			if uuid, ok := dp.Attributes().Get("gpu.uuid"); ok {
				s := all[uuid.Str()]
				began = s.beginning(m, dp)
				dress(dp.Attributes(), s)
				// gpu.info has one series regardless of the owner, because users join on it.
				if s.workload() != nil && (s.holder != nil || !series.Cumulative(m) && m.Name() != "gpu.info") {
					dressOwner(dp.Attributes(), s)
				}
			}
			series.Start(m, dp, began)
		}
	}
}

// dress adds the attributes of the device.
func dress(attrs pcommon.Map, s subject) {
	attrs.RemoveIf(func(_ string, v pcommon.Value) bool { return v.Type() == pcommon.ValueTypeStr && v.Str() == "" })
	if _, ok := attrs.Get("gpu.uuid"); !ok || s.ID.Parent != "" || s.holder != nil {
		attrs.PutStr("gpu.uuid", s.ID.Physical())
	}
	for _, d := range decorations {
		if v := d.value(s); v != "" {
			attrs.PutStr(d.key, v)
		}
	}
}

// dressOwner adds the attributes of the workload.
func dressOwner(attrs pcommon.Map, s subject) {
	attrs.EnsureCapacity(attrs.Len() + len(s.owner))
	for _, a := range s.owner {
		attrs.PutStr(a.Key, a.Value)
	}
}

// vital reports whether a metric is exempt from the limit: what is up, what was dropped, and what workloads
// hold and used, which fold has limited.
func vital(m pmetric.Metric) bool {
	switch m.Name() {
	case "gpu.up", "gpu.partition.up", "gpu.allocation", "gpu.unallocated", "gpu.unallocated.time":
		return true
	}
	return strings.HasPrefix(m.Name(), "gpumeter.") || strings.HasPrefix(m.Name(), "gpu.workload.")
}

// trim removes points until at most limit remain and returns how many it removed. It truncates every
// metric to the same maximum length, so metrics with few series, which tell the most, stay complete.
func trim(md pmetric.Metrics, limit int) int {
	if md.DataPointCount() <= limit {
		return 0
	}
	before := md.DataPointCount()
	var sizes []int
	for m := range series.Metrics(md) {
		if vital(m) {
			limit -= series.Len(m)
			continue
		}
		sizes = append(sizes, series.Len(m))
	}
	keep := level(sizes, limit)
	for m := range series.Metrics(md) {
		if !vital(m) {
			series.Truncate(m, keep)
		}
	}
	return before - md.DataPointCount()
}

// level returns the largest n for which the sum of min(size, n) is within limit.
func level(sizes []int, limit int) int {
	n, sum := 0, 0
	for {
		wider := 0
		for _, s := range sizes {
			if s > n {
				wider++
			}
		}
		if wider == 0 || sum+wider > limit {
			return n
		}
		n, sum = n+1, sum+wider
	}
}
