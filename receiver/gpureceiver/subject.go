package gpureceiver

import (
	"strconv"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// subject is what a point is about: a device or partition, or a workload on it.
type subject struct {
	*node.Reading
	holder  *node.Holder         // nil for the device itself
	profile string               // of the partition
	owner   []workload.Attribute // attributes of the workload, shared by many points
	runtime time.Time            // start of its runtime's counters; zero: unknown
}

func newSubject(r *node.Reading) subject {
	s := subject{Reading: r, profile: r.ID.Profile}
	s.owner = s.attributes()
	return s
}

// attributes returns the attributes of the workload.
func (s subject) attributes() []workload.Attribute {
	if w := s.workload(); w != nil {
		return w.Identity()
	}
	return nil
}

// subjects returns the subjects of a tick by the value of gpu.uuid before decoration.
func subjects(t node.Tick, runtimes epochs) map[string]subject {
	all := make(map[string]subject, len(t.Readings))
	for i := range t.Readings {
		r := &t.Readings[i]
		s := newSubject(r)
		s.runtime = runtimes[r.ID.UUID].since
		all[r.ID.UUID] = s
	}
	for i := range t.Readings {
		r := &t.Readings[i]
		for j := range r.Holders {
			h := &r.Holders[j]
			s := subject{Reading: r, holder: h, profile: h.Profile}
			s.owner = s.attributes()
			all[holderKey(r, j)] = s
		}
		if len(r.Holders) > 0 {
			s := subject{Reading: r, holder: &node.Holder{Workload: nobody}}
			s.owner = s.attributes()
			all[restKey(r)] = s
		}
	}
	return all
}

// holderKey identifies a workload on a device until its points are decorated.
func holderKey(r *node.Reading, i int) string { return r.ID.UUID + "#" + strconv.Itoa(i) }

// nobody is the holder of what no workload holds. restKey is its holderKey.
var nobody = workload.Workload{ID: workload.Unallocated, Kind: workload.Unallocated}

func restKey(r *node.Reading) string { return r.ID.UUID + "#" + workload.Unallocated }

// workload returns the owner of the point, nil if there is not exactly one.
func (s subject) workload() *workload.Workload {
	if s.holder != nil {
		return &s.holder.Workload
	}
	return s.Owner
}

// partition returns the UUID of the partition, empty for the whole device.
func (s subject) partition() string {
	switch {
	case s.holder != nil:
		return s.holder.Partition
	case s.ID.Parent != "":
		return s.ID.UUID
	}
	return ""
}

// beginning returns when the counter of a point was 0, and the zero time if that is unknown. It is known for
// what the agent counts itself (XIDs, the usage of workloads) and for a runtime that started while the
// agent watched. The device's own counters have run since the driver was loaded or the board was made: a
// start time would make a database book all of that as new.
func (s subject) beginning(m pmetric.Metric, dp series.Point) time.Time {
	switch {
	case s.holder != nil:
		return s.holder.Since
	case ofRuntime(m):
		return s.runtime
	}
	if code, ok := dp.Attributes().Get("gpu.xid.code"); ok {
		for _, x := range s.XIDs {
			if int64(x.Code) == code.Int() {
				return x.Since
			}
		}
	}
	return time.Time{}
}

// holders records the holders of the device and their usage. A device with known owners has one point of
// gpu.unallocated even if it is 0: without it, an average over devices would be too high.
func (p *point) holders() {
	free := 0.0
	for i := range p.r.Holders {
		h := &p.r.Holders[i]
		key := holderKey(p.r, i)
		if h.Kind == workload.Unallocated && !h.Ended {
			free += h.Allocation
		}
		if !h.Ended {
			p.holds(h, key)
		}
		p.used(h, key)
	}
	if len(p.r.Holders) > 0 {
		p.mb.RecordGpuUnallocatedDataPoint(p.ts, free, p.index, p.model, restKey(p.r), p.vendor)
	}
}

// holds records what a workload holds now.
func (p *point) holds(h *node.Holder, key string) {
	gauge := func(v device.Value, record labeled) {
		if f, ok := v.Get(); ok {
			record(p.ts, f, p.index, p.model, string(h.Basis), key, p.vendor)
		}
	}
	// A workload that uses a device without an allocation has 0.
	if !isRest(h) || h.Kind == workload.Unattributed && h.Allocation > 0 {
		gauge(device.Of(h.Allocation), p.mb.RecordGpuAllocationDataPoint)
	}
	gauge(h.Utilization, p.mb.RecordGpuWorkloadUtilizationDataPoint)
	gauge(h.MemoryUsed, p.mb.RecordGpuWorkloadMemoryUsedDataPoint)
	gauge(h.Power, p.mb.RecordGpuWorkloadPowerDrawDataPoint)
}

// used records the usage of a workload since it started on the device.
func (p *point) used(h *node.Holder, key string) {
	sum := func(v device.Value, record func(pcommon.Timestamp, float64, int64, string, string, string)) {
		if f, ok := v.Get(); ok {
			record(p.ts, f, p.index, p.model, key, p.vendor)
		}
	}
	sum(h.Energy, p.mb.RecordGpuWorkloadEnergyDataPoint)
	if h.Kind == workload.Unallocated {
		sum(device.Of(h.Allocated), p.mb.RecordGpuUnallocatedTimeDataPoint)
		return
	}
	sum(device.Of(h.Allocated), p.mb.RecordGpuWorkloadAllocatedTimeDataPoint)
	if isRest(h) {
		return // an unidentified holder is neither active nor idle
	}
	sum(h.Active, p.mb.RecordGpuWorkloadActiveTimeDataPoint)
	if active, ok := h.Active.Get(); ok {
		sum(device.Of(max(0, h.Allocated-active)), p.mb.RecordGpuWorkloadIdleTimeDataPoint)
	}
}

// isRest reports whether h is not a workload.
func isRest(h *node.Holder) bool {
	return h.Kind == workload.Unallocated || h.Kind == workload.Unattributed
}
