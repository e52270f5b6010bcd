package fleet

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Holder is one owner on one device or partition: its share and its usage.
type Holder struct {
	Owner
	Device    string // DeviceKey
	Partition string // ID; empty for the whole device
	Profile   string // of the partition

	Allocation  optional.Float // share of the device, 0 to 1; 0 for use without an allocation
	Utilization optional.Float // share of the device's utilization
	Memory      optional.Float // bytes
	Power       optional.Float // watts
}

// Uninvited reports whether a workload uses a device that is not allocated to it.
func (h *Holder) Uninvited() bool {
	a, _ := h.Allocation.Get()
	return a == 0 && IsWorkload(h.Kind)
}

// Holdings returns the holdings at a moment, ordered by device, partition and owner. A non-empty
// uuid restricts the result to one device.
func (r *Reader) Holdings(ctx context.Context, at time.Time, uuid string) ([]Holder, error) {
	match := map[string]string{}
	if uuid != "" {
		match[LabelUUID] = uuid
	}
	fields := []struct {
		series string
		field  func(*Holder) *optional.Float
	}{
		{SeriesAllocation, func(h *Holder) *optional.Float { return &h.Allocation }},
		{SeriesWorkloadUtilization, func(h *Holder) *optional.Float { return &h.Utilization }},
		{SeriesWorkloadMemory, func(h *Holder) *optional.Float { return &h.Memory }},
		{SeriesWorkloadPower, func(h *Holder) *optional.Float { return &h.Power }},
	}
	exprs := make([]string, len(fields))
	for i, f := range fields {
		exprs[i] = "sum by (" + keyLabels + ", " + LabelPartition + ", " + LabelPartitionProfile + ", " + ownerLabels + ") " + Once(Select(f.series, match))
	}
	answers, err := query.Instants(ctx, r.store, at, exprs...)
	if err != nil {
		return nil, err
	}
	type key struct{ device, partition, owner string }
	place := map[key]int{}
	var out []Holder
	for i, samples := range answers {
		for _, s := range samples {
			o, ok := OwnerOf(s.Labels)
			if !ok || math.IsNaN(s.Value) {
				continue
			}
			k := key{DeviceKey(s.Labels), s.Labels[LabelPartition], o.ID}
			n, ok := place[k]
			if !ok {
				n = len(out)
				place[k] = n
				out = append(out, Holder{Owner: o, Device: k.device, Partition: k.partition, Profile: s.Labels[LabelPartitionProfile]})
			}
			*fields[i].field(&out[n]) = optional.Of(s.Value)
		}
	}
	slices.SortFunc(out, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// Held returns the shares of devices that are held at a moment, one sample per instance, ordered by
// labels. They are the shares whose time bills have as held, unknown owners included.
func Held(ctx context.Context, store query.Store, at time.Time, match map[string]string) ([]query.Sample, error) {
	list, err := store.Instant(ctx, Select(SeriesAllocation, match), at)
	if err != nil {
		return nil, err
	}
	once := map[string]query.Sample{} // scraped and pushed count once
	for _, s := range list {
		s.Labels = Row(s.Labels)
		if IsHeld(s.Labels[LabelKind]) {
			once[Instance(s.Labels)] = s
		}
	}
	byKey := make(map[string]query.Sample, len(once))
	for _, s := range once {
		byKey[s.Labels.Key()] = s // instances differ in their labels
	}
	out := make([]query.Sample, 0, len(byKey))
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		out = append(out, byKey[key])
	}
	return out, nil
}

// Parts adds up shares of devices and rounds away the error of sevenths and eighths.
func Parts(samples []query.Sample, of func(query.Labels) bool) float64 {
	sum := 0.0
	for _, s := range samples {
		if of(s.Labels) {
			sum += s.Value
		}
	}
	return round(sum)
}

// Pods returns the names of an owner's pods or containers at a moment.
func (r *Reader) Pods(ctx context.Context, at time.Time, owner string) ([]string, error) {
	_, _, matchers, err := ParseOwner(owner)
	if err != nil {
		return nil, err
	}
	samples, err := r.store.Instant(ctx, "count by ("+LabelPod+", "+LabelContainerName+") ("+Select(SeriesAllocation, nil, matchers...)+")", at)
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, s := range samples {
		if name := cmp.Or(s.Labels[LabelPod], s.Labels[LabelContainerName]); name != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Fact is a property of a device that is constant while its driver is loaded.
type Fact struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// factLabels are the labels of gpu_info to show, with their display names.
var factLabels = [][2]string{
	{LabelArchitecture, "Architecture"},
	{LabelDriver, "Driver"},
	{LabelFirmware, "Firmware"},
	{LabelVBIOS, "VBIOS"},
	{LabelPCI, "PCI address"},
	{LabelNUMA, "NUMA node"},
}

// Facts returns the constant properties of a device.
func (r *Reader) Facts(ctx context.Context, at time.Time, uuid string) ([]Fact, error) {
	samples, err := r.store.Instant(ctx, Select(SeriesInfo, map[string]string{LabelUUID: uuid}), at)
	if err != nil {
		return nil, err
	}
	out := []Fact{}
	if len(samples) == 0 {
		return out, nil
	}
	// If a series reached the store on two paths, the larger label set wins.
	best := slices.MinFunc(samples, func(a, b query.Sample) int {
		return cmp.Or(cmp.Compare(len(b.Labels), len(a.Labels)), cmp.Compare(a.Labels.Key(), b.Labels.Key()))
	})
	for _, known := range factLabels {
		if text := best.Labels[known[0]]; text != "" {
			out = append(out, Fact{known[1], text})
		}
	}
	return out, nil
}
