package gpuspanprocessor

import (
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/timeline"
)

// Attributes of spans. docs/spans.md defines them.
const (
	keyUUID        = "gpu.uuid"
	keyModel       = "gpu.model"
	keyPartition   = "gpu.partition.id"
	keyAge         = "gpu.sample.age"
	keyEnergy      = "gpu.span.energy"
	keyWorkload    = "gpu.span.workload.energy"
	keyEnergyBasis = "gpu.span.energy.basis"
	keyNeighbours  = "gpu.span.neighbours"
)

// number is an attribute with one number for each device.
type number struct {
	key string
	of  func(*timeline.State) device.Value
}

var ownNumbers = []number{
	{"gpu.span.utilization.start", func(s *timeline.State) device.Value { return s.Utilization.Start }},
	{"gpu.span.utilization.end", func(s *timeline.State) device.Value { return s.Utilization.End }},
	{"gpu.span.utilization.mean", func(s *timeline.State) device.Value { return s.Utilization.Mean }},
	{"gpu.span.utilization.max", func(s *timeline.State) device.Value { return s.Utilization.Max }},
	{"gpu.span.memory.used.start", func(s *timeline.State) device.Value { return s.Memory.Start }},
	{"gpu.span.memory.used.max", func(s *timeline.State) device.Value { return s.Memory.Max }},
	{"gpu.span.temperature.max", func(s *timeline.State) device.Value { return s.Temperature.Max }},
	{"gpu.span.power.mean", func(s *timeline.State) device.Value { return s.Power }},
	{"gpu.span.throttle.time", func(s *timeline.State) device.Value { return throttled(s, s.Throttled) }},
}

// bucketNumbers are there only on spans with a throttled device.
var bucketNumbers = []number{
	{"gpu.span.throttle.power.time", func(s *timeline.State) device.Value { return throttled(s, s.ByPower) }},
	{"gpu.span.throttle.thermal.time", func(s *timeline.State) device.Value { return throttled(s, s.Thermal) }},
	{"gpu.span.throttle.sw.time", func(s *timeline.State) device.Value { return throttled(s, s.SW) }},
	{"gpu.span.throttle.hw.time", func(s *timeline.State) device.Value { return throttled(s, s.HW) }},
}

// otherNumbers are there only on spans with a neighbor.
var otherNumbers = []number{{"gpu.span.neighbours.utilization", func(s *timeline.State) device.Value { return s.Others }}}

// guideNumbers are those of the code that people copy from guides: percent and MiB.
var guideNumbers = []number{
	{"gpu.utilization_at_start", func(s *timeline.State) device.Value { return s.Utilization.Start.Scale(100) }},
	{"gpu.memory_used_mb_at_start", func(s *timeline.State) device.Value { return s.Memory.Start.Scale(1.0 / (1 << 20)) }},
	{"gpu.temperature_at_start", func(s *timeline.State) device.Value { return s.Temperature.Start }},
	{"gpu.utilization_at_end", func(s *timeline.State) device.Value { return s.Utilization.End.Scale(100) }},
}

func throttled(s *timeline.State, seconds float64) device.Value {
	if !s.Throttles || s.Late {
		return device.Value{}
	}
	return device.Of(seconds)
}

// dress adds the states of its devices to a span.
func (k *memory) dress(span ptrace.Span, states []timeline.State, at *timeline.Span) {
	attrs := span.Attributes()
	attrs.EnsureCapacity(attrs.Len() + 15)
	identify(attrs, states)
	if k.cfg.Names != namesGuide {
		k.own(attrs, states)
	}
	if k.cfg.Names != namesOwn {
		if v, there := attrs.GetOrPutEmpty("gpu.index"); !there {
			if len(states) == 1 {
				v.SetInt(int64(states[0].ID.Index))
			} else {
				list := v.SetEmptySlice()
				for i := range states {
					list.AppendEmpty().SetInt(int64(states[i].ID.Index))
				}
			}
		}
		numbers(attrs, guideNumbers, states)
	}
	k.events(span, states, at)
}

// own adds the attributes under our names.
func (k *memory) own(attrs pcommon.Map, states []timeline.State) {
	numbers(attrs, ownNumbers, states)
	if anyOf(states, func(s *timeline.State) bool { return s.Throttled > 0 }) {
		numbers(attrs, bucketNumbers, states)
	}
	given, used, age, counted := device.Of(0), device.Of(0), int64(0), true
	for i := range states {
		s := &states[i]
		given, used = plus(given, s.Joules), plus(used, s.Workload)
		age, counted = max(age, s.Age), counted && s.Counted
	}
	single(attrs, keyEnergy, given)
	single(attrs, keyWorkload, used)
	if given.OK() || used.OK() {
		if v, there := attrs.GetOrPutEmpty(keyEnergyBasis); !there {
			v.SetStr(basis(counted))
		}
	}
	if age > 0 {
		single(attrs, keyAge, device.Of(float64(age)/1e9))
	}
	if names := neighbours(states); len(names) > 0 {
		if v, there := attrs.GetOrPutEmpty(keyNeighbours); !there {
			list := v.SetEmptySlice()
			for _, name := range names {
				list.AppendEmpty().SetStr(name)
			}
		}
		numbers(attrs, otherNumbers, states)
	}
}

// called adds what the process asked of CUDA meanwhile, if it is traced.
func (k *memory) called(attrs pcommon.Map, pid uint32, at *timeline.Span) {
	c, ok := k.board.Calls(pid, at.From, at.To)
	if !ok {
		return
	}
	single(attrs, "gpu.span.cuda.launches", device.Of(c.Launches))
	single(attrs, "gpu.span.cuda.busy.time", device.Of(c.Busy))
	single(attrs, "gpu.span.cuda.copy.io", device.Of(c.Copied))
	single(attrs, "gpu.span.cuda.sync.wait", device.Of(c.Waited))
}

// anyOf reports whether f holds for any state. A State is too large to be copied for each span.
func anyOf(states []timeline.State, f func(*timeline.State) bool) bool {
	for i := range states {
		if f(&states[i]) {
			return true
		}
	}
	return false
}

func basis(counted bool) string {
	if counted {
		return "counter"
	}
	return "power"
}

// plus adds a value to a sum, which is absent if any part is.
func plus(sum, v device.Value) device.Value {
	a, ok := sum.Get()
	b, also := v.Get()
	if !ok || !also {
		return device.Value{}
	}
	return device.Of(a + b)
}

// neighbours returns the names of the other workloads on any device.
func neighbours(states []timeline.State) []string {
	if len(states) == 1 {
		return states[0].Neighbours
	}
	var all []string
	for i := range states {
		all = append(all, states[i].Neighbours...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// identify adds which devices they are.
func identify(attrs pcommon.Map, states []timeline.State) {
	if len(states) == 1 {
		id := &states[0].ID
		name(attrs, keyUUID, id.Physical())
		name(attrs, keyModel, id.Model)
		if id.Parent != "" {
			name(attrs, keyPartition, id.UUID)
		}
		return
	}
	put(attrs, keyUUID, states, func(v pcommon.Value, s *timeline.State) bool { v.SetStr(s.ID.Physical()); return true })
	put(attrs, keyModel, states, func(v pcommon.Value, s *timeline.State) bool { v.SetStr(s.ID.Model); return true })
	put(attrs, keyPartition, states, func(v pcommon.Value, s *timeline.State) bool {
		if s.ID.Parent != "" {
			v.SetStr(s.ID.UUID)
		}
		return s.ID.Parent != ""
	})
}

// numbers adds a number of each device, unless none has it.
func numbers(attrs pcommon.Map, list []number, states []timeline.State) {
	for _, n := range list {
		if len(states) == 1 {
			single(attrs, n.key, n.of(&states[0]))
			continue
		}
		put(attrs, n.key, states, func(v pcommon.Value, s *timeline.State) bool {
			x, ok := n.of(s).Get()
			if ok {
				v.SetDouble(x)
			}
			return ok
		})
	}
}

func name(attrs pcommon.Map, key, value string) {
	if v, there := attrs.GetOrPutEmpty(key); !there {
		v.SetStr(value)
	}
}

func single(attrs pcommon.Map, key string, value device.Value) {
	x, ok := value.Get()
	if !ok {
		return
	}
	if v, there := attrs.GetOrPutEmpty(key); !there {
		v.SetDouble(x)
	}
}

// put adds an attribute that is a list with a value for each of several devices, in their order. set reports
// whether a device has the value; a device without it has an empty one in the list.
func put(attrs pcommon.Map, key string, states []timeline.State, set func(pcommon.Value, *timeline.State) bool) {
	scratch := pcommon.NewValueEmpty()
	if !anyOf(states, func(s *timeline.State) bool { return set(scratch, s) }) {
		return
	}
	v, there := attrs.GetOrPutEmpty(key)
	if there {
		return
	}
	list := v.SetEmptySlice()
	list.EnsureCapacity(len(states))
	for i := range states {
		set(list.AppendEmpty(), &states[i])
	}
}
