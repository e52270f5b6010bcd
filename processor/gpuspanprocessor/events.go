package gpuspanprocessor

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/timeline"
)

// Events of spans.
const (
	eventUtilization = "gpu_high_utilization"
	eventTemperature = "gpu_high_temperature"
	eventThrottled   = "gpu_throttled"
	eventNeighbour   = "gpu_neighbour"
)

// events adds the events of a span, at most one of each kind: of the device that is worst.
func (k *memory) events(span ptrace.Span, states []timeline.State, at *timeline.Span) {
	c := &k.cfg.Events
	worst := func(threshold float64, of func(*timeline.State) device.Value) (*timeline.State, float64) {
		var found *timeline.State
		for i := range states {
			if v, ok := of(&states[i]).Get(); ok && v > threshold {
				found, threshold = &states[i], v
			}
		}
		return found, threshold
	}
	if s, v := worst(c.HighUtilization, func(s *timeline.State) device.Value { return s.Utilization.Max }); s != nil && c.HighUtilization < 1 {
		attrs := event(span, eventUtilization, s, s.Utilization.MaxAt, at)
		attrs.PutDouble("gpu.utilization", v)
		attrs.PutDouble("threshold", c.HighUtilization)
	}
	if s, v := worst(c.HighTemperature, func(s *timeline.State) device.Value { return s.Temperature.Max }); s != nil && c.HighTemperature > 0 {
		attrs := event(span, eventTemperature, s, s.Temperature.MaxAt, at)
		attrs.PutDouble("gpu.temperature", v)
		attrs.PutDouble("threshold", c.HighTemperature)
	}
	if s, _ := worst(0, func(s *timeline.State) device.Value { return device.Flag(s.Causes&k.throttled != 0) }); s != nil {
		attrs := event(span, eventThrottled, s, s.ThrottledAt, at)
		list := attrs.PutEmptySlice("gpu.throttle.bucket")
		for _, name := range bucketOrder {
			if s.Causes&buckets[name] != 0 {
				list.AppendEmpty().SetStr(name)
			}
		}
		attrs.PutDouble("gpu.throttle.time", s.Throttled)
	}
	if s, v := worst(c.Neighbour, func(s *timeline.State) device.Value { return s.Others }); s != nil && c.Neighbour < 1 && len(s.Neighbours) > 0 {
		attrs := event(span, eventNeighbour, s, s.NeighbourAt, at)
		list := attrs.PutEmptySlice("gpu.neighbours")
		for _, name := range s.Neighbours {
			list.AppendEmpty().SetStr(name)
		}
		attrs.PutDouble("gpu.utilization", v)
		attrs.PutDouble("threshold", c.Neighbour)
	}
}

func event(span ptrace.Span, name string, s *timeline.State, when int64, at *timeline.Span) pcommon.Map {
	e := span.Events().AppendEmpty()
	e.SetName(name)
	e.SetTimestamp(pcommon.Timestamp(min(max(when, at.From), at.To)))
	attrs := e.Attributes()
	attrs.EnsureCapacity(4)
	attrs.PutStr(keyUUID, s.ID.Physical())
	return attrs
}
