package gpureceiver

import (
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/node"
)

// decoration is an attribute that some devices have and others do not. mdatagen would
// search every recorded point for an optional attribute, so they are added afterwards.
type decoration struct {
	key, description string
	value            func(*node.Reading) string
}

var decorations = []decoration{
	{
		"gpu.partition.id", "Identifier of the partition (NVIDIA: UUID of the MIG device) the value is of. Absent: the whole device.",
		func(r *node.Reading) string {
			if r.ID.Parent == "" {
				return ""
			}
			return r.ID.UUID
		},
	},
	{
		"gpu.partition.profile", "Size of the partition as its vendor names it, such as 1g.18gb.",
		func(r *node.Reading) string { return r.ID.Profile },
	},
}

// decorate adds what the builder could not: the attributes above, and when each
// counter began. Points come in with their device's own UUID in gpu.uuid and leave
// with that of the physical device.
func decorate(md pmetric.Metrics, t node.Tick) {
	readings := make(map[string]*node.Reading, len(t.Readings))
	for i := range t.Readings {
		readings[t.Readings[i].ID.UUID] = &t.Readings[i]
	}
	started := pcommon.NewTimestampFromTime(t.Started)
	eachMetric(md, func(m pmetric.Metric) {
		points, sum := pointsOf(m)
		for _, dp := range points.All() {
			start := started
			if uuid, ok := dp.Attributes().Get("gpu.uuid"); ok {
				r := readings[uuid.Str()]
				start = pcommon.NewTimestampFromTime(beginning(r, dp))
				dress(dp.Attributes(), r)
			}
			if sum {
				dp.SetStartTimestamp(start)
			} else {
				dp.SetStartTimestamp(0) // a gauge has no beginning
			}
		}
	})
}

// beginning returns when the counter of a point began: with the device's own, except for
// XIDs, which we count.
func beginning(r *node.Reading, dp pmetric.NumberDataPoint) time.Time {
	if code, ok := dp.Attributes().Get("gpu.xid.code"); ok {
		for _, x := range r.XIDs {
			if int64(x.Code) == code.Int() {
				return x.Since
			}
		}
	}
	return r.Since
}

func dress(attrs pcommon.Map, r *node.Reading) {
	attrs.RemoveIf(func(_ string, v pcommon.Value) bool { return v.Type() == pcommon.ValueTypeStr && v.Str() == "" })
	if _, ok := attrs.Get("gpu.uuid"); !ok || r.ID.Parent != "" {
		attrs.PutStr("gpu.uuid", r.ID.Physical())
	}
	for _, d := range decorations {
		if v := d.value(r); v != "" {
			attrs.PutStr(d.key, v)
		}
	}
}

// vital are the metrics that no cap cuts: what is up, and what was cut.
func vital(m pmetric.Metric) bool {
	return m.Name() == "gpu.up" || strings.HasPrefix(m.Name(), "gpumeter.")
}

// trim removes points until at most limit are left and returns how many it removed.
// Every metric keeps as many as the largest may have, so those with few series, which
// say most, stay whole.
func trim(md pmetric.Metrics, limit int) int {
	if md.DataPointCount() <= limit {
		return 0
	}
	before := md.DataPointCount()
	var sizes []int
	eachMetric(md, func(m pmetric.Metric) {
		points, _ := pointsOf(m)
		if vital(m) {
			limit -= points.Len()
			return
		}
		sizes = append(sizes, points.Len())
	})
	keep := level(sizes, limit)
	eachMetric(md, func(m pmetric.Metric) {
		if vital(m) {
			return
		}
		points, _ := pointsOf(m)
		i := 0
		points.RemoveIf(func(pmetric.NumberDataPoint) bool {
			i++
			return i > keep
		})
	})
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

func eachMetric(md pmetric.Metrics, f func(pmetric.Metric)) {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				f(m)
			}
		}
	}
}

func pointsOf(m pmetric.Metric) (points pmetric.NumberDataPointSlice, sum bool) {
	if m.Type() == pmetric.MetricTypeSum {
		return m.Sum().DataPoints(), true
	}
	return m.Gauge().DataPoints(), false
}
