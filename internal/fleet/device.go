package fleet

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/natural"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Device is one physical device at one moment, as seen from the fleet.
type Device struct {
	// Labels identify the device; its price may depend on them.
	Labels query.Labels

	UUID, Model, Vendor       string
	Host, Node, Cluster, Rack string
	Index                     optional.Float
	Up                        bool // the device answered its agent
	// Since is when a silent device sent its last sample; zero if the device reports.
	Since     time.Time
	Simulated bool

	Utilization optional.Float // 0 to 1
	Memory      optional.Float // bytes
	MemoryTotal optional.Float // bytes
	Power       optional.Float // watts
	Temperature optional.Float // degrees Celsius
	Health      optional.Float // 1 good, 0.5 warning, 0 critical

	Allocated float64        // share of the device that workloads hold, 0 to 1
	Owners    []int          // holders, largest share first; indices into Fleet.Owners
	Uninvited []int          // workloads that use the device without an allocation; indices into Fleet.Owners
	Idle      optional.Float // seconds since a holder used the device; absent if free or without activity data
	Rate      optional.Float // cost of the next hour: the sum of Charges
	Charges   []Charge       // by holder; nil without prices
}

// Fleet has every device at one moment, ordered by cluster, rack, node and index.
type Fleet struct {
	At      time.Time
	Devices []Device
	Index   map[string]int // index into Devices by DeviceKey
	Owners  []Owner        // every owner that a device refers to, ordered by ID
}

// Condition returns the health of a device, -1 if the device does not answer, absent if the
// device is silent.
func (d *Device) Condition() optional.Float {
	if !d.Up && !d.Silent() {
		return optional.Of(-1)
	}
	return d.Health
}

// Options configure a Reader. The zero value is usable.
type Options struct {
	Rack  string // label with the rack of a node, default LabelRack
	Price Pricer // nil: there are no prices
	// Restricted means that the store shows one team or some namespaces only. Such a reader has
	// no silent devices: what it sees of a device ends with the workload.
	Restricted bool
}

// Reader reads the fleet from a store. It is safe for concurrent use.
type Reader struct {
	store query.Store
	o     Options

	mu      sync.Mutex
	totals  map[string]float64 // memory size of devices by DeviceKey, constant
	totaled time.Time

	machine  map[string]query.Labels // labels of devices without parts by DeviceKey, see machines
	machined time.Time

	rosterMu sync.Mutex
	roster   *roster
}

// NewReader returns a Reader of store.
func NewReader(store query.Store, o Options) *Reader {
	o.Rack = cmp.Or(o.Rack, LabelRack)
	return &Reader{store: store, o: o}
}

// Newest returns the expression for when the newest sample of each device was taken.
func Newest(match string) string {
	return "max by (" + keyLabels + ") (timestamp(" + Select(SeriesUp, nil, match) + "))"
}

// keyLabels are the labels that DeviceKey needs.
var keyLabels = strings.Join([]string{LabelUUID, LabelVendor, LabelHost}, ", ")

// KeyLabels returns the labels that DeviceKey needs, separated by commas.
func KeyLabels() string { return keyLabels }

// perDevice returns an expression with one value per device and host. It deduplicates series that
// reach the store on two paths.
func perDevice(series string) string { return "max by (" + keyLabels + ") (" + series + ")" }

var (
	// exprOwners is the share of each device by owner.
	exprOwners = "sum by (" + keyLabels + ", " + ownerLabels + ") " + Once(SeriesAllocation)
	exprHealth = "min by (" + keyLabels + ") (" + SeriesHealth + ")"
	// identityLabels are on every series of a device.
	identityLabels = strings.Join([]string{
		LabelUUID, LabelIndex, LabelModel, LabelVendor, LabelHost, LabelNode, LabelCluster, LabelSimulated, LabelCloudProvider, LabelRegion, LabelZone, LabelHostType,
	}, ", ")
)

// identity returns the expression for the devices of the fleet that match.
func (r *Reader) identity(match ...string) string {
	return "max by (" + identityLabels + ", " + r.o.Rack + ") (" + Select(SeriesUp, nil, match...) + ")"
}

// values are the series with one value per device and the fields that they fill.
var values = []struct {
	expr  string
	field func(*Device) *optional.Float
}{
	{perDevice(SeriesUtilization), func(d *Device) *optional.Float { return &d.Utilization }},
	{perDevice(SeriesMemoryUsed), func(d *Device) *optional.Float { return &d.Memory }},
	{perDevice(SeriesPower), func(d *Device) *optional.Float { return &d.Power }},
	{perDevice(SeriesTemperature), func(d *Device) *optional.Float { return &d.Temperature }},
	{exprHealth, func(d *Device) *optional.Float { return &d.Health }},
}

// At returns the fleet at a moment.
func (r *Reader) At(ctx context.Context, at time.Time) (*Fleet, error) {
	exprs := []string{r.identity(), exprOwners}
	for _, v := range values {
		exprs = append(exprs, v.expr)
	}
	answers, err := query.Instants(ctx, r.store, at, exprs...)
	if err != nil {
		return nil, err
	}
	f := r.identities(answers[0], at)
	if err := r.moved(ctx, f, answers[0]); err != nil {
		return nil, err
	}
	if err := r.silent(ctx, f); err != nil {
		return nil, err
	}
	f.own(answers[1])
	f.sort() // after own, which fills in clusters
	for i, v := range values {
		f.fill(answers[2+i], v.field)
	}
	if err := r.memory(ctx, f); err != nil {
		return nil, err
	}
	if err := r.charge(ctx, f); err != nil {
		return nil, err
	}
	return f, r.idleness(ctx, f)
}

// memory fills in the memory size of devices. The size is constant, so it is queried every ten
// minutes and when a new device appears.
func (r *Reader) memory(ctx context.Context, f *Fleet) error {
	r.mu.Lock()
	totals, asked := r.totals, r.totaled // never changed once they are there
	r.mu.Unlock()
	stale := f.At.Sub(asked).Abs() > 10*time.Minute
	for i := 0; i < len(f.Devices) && !stale; i++ {
		_, known := totals[f.Devices[i].Key()]
		stale = !known && f.Devices[i].Memory.OK()
	}
	if stale {
		samples, err := r.store.Instant(ctx, perDevice(SeriesMemoryTotal), f.At)
		if err != nil {
			return err
		}
		totals = make(map[string]float64, len(samples))
		for _, s := range samples {
			totals[DeviceKey(s.Labels)] = s.Value
		}
		r.mu.Lock()
		r.totals, r.totaled = totals, f.At
		r.mu.Unlock()
	}
	for i := range f.Devices {
		if v, ok := totals[f.Devices[i].Key()]; ok && !f.Devices[i].Silent() {
			f.Devices[i].MemoryTotal = optional.Of(v)
		}
	}
	return nil
}

// identities returns the devices that the samples of SeriesUp identify.
func (r *Reader) identities(samples []query.Sample, at time.Time) *Fleet {
	f := &Fleet{At: at, Devices: make([]Device, 0, len(samples)), Index: make(map[string]int, len(samples))}
	// If a series reached the store on two paths, the larger label set wins.
	slices.SortStableFunc(samples, func(a, b query.Sample) int { return cmp.Compare(len(b.Labels), len(a.Labels)) })
	for _, s := range samples {
		d := r.device(s.Labels)
		d.Up = s.Value > 0
		if i, ok := f.Index[d.Key()]; ok { // the device moved to another node minutes ago: the reachable one wins
			if d.Up && !f.Devices[i].Up {
				f.Devices[i] = d
			}
			continue
		}
		f.Index[d.Key()] = len(f.Devices)
		f.Devices = append(f.Devices, d)
	}
	return f
}

// device returns the device that labels identify.
func (r *Reader) device(l query.Labels) Device {
	d := Device{
		Labels: l, UUID: l[LabelUUID], Model: l[LabelModel], Vendor: l[LabelVendor], Host: l[LabelHost], Node: NodeOf(l),
		Cluster: l[LabelCluster], Rack: l[r.o.Rack], Simulated: l[LabelSimulated] == "true",
	}
	if n, err := strconv.Atoi(l[LabelIndex]); err == nil {
		d.Index = optional.Of(float64(n))
	}
	return d
}

// fill sets one field of each device that reports.
func (f *Fleet) fill(samples []query.Sample, field func(*Device) *optional.Float) {
	for _, s := range samples {
		if i, ok := f.find(s.Labels); ok && !f.Devices[i].Silent() && !math.IsNaN(s.Value) {
			*field(&f.Devices[i]) = optional.Of(s.Value)
		}
	}
}

// own sets the owners of the devices.
func (f *Fleet) own(samples []query.Sample) {
	slices.SortFunc(samples, func(a, b query.Sample) int { return cmp.Compare(b.Value, a.Value) }) // largest share first
	known := map[string]int{}
	clusters := map[string]string{} // of nodes whose series lack the cluster
	for _, s := range samples {
		i, ok := f.find(s.Labels)
		if !ok || s.Value < 0 || f.Devices[i].Silent() {
			continue
		}
		o, ok := OwnerOf(s.Labels)
		if !ok || s.Value == 0 && !IsWorkload(o.Kind) {
			continue
		}
		n, ok := known[o.ID]
		if !ok {
			n = len(f.Owners)
			known[o.ID] = n
			f.Owners = append(f.Owners, o)
		}
		d := &f.Devices[i]
		d.Allocated += s.Value
		switch {
		case slices.Contains(d.Owners, n):
		case s.Value > 0:
			d.Owners = append(d.Owners, n)
		case !slices.Contains(d.Uninvited, n):
			d.Uninvited = append(d.Uninvited, n)
		}
		if d.Cluster == "" && o.Cluster != "" {
			clusters[d.Node] = o.Cluster
		}
	}
	for i := range f.Devices {
		d := &f.Devices[i]
		d.Allocated = min(1, round(d.Allocated)) // for minutes after it moved, a device has holders at both nodes
		if d.Cluster == "" {
			d.Cluster = clusters[d.Node]
		}
	}
	f.sortOwners()
}

// round turns eight eighths and seven sevenths into a whole.
func round(parts float64) float64 { return math.Round(parts*1e6) / 1e6 }

// sortOwners orders owners by ID, so that equal queries have equal answers.
func (f *Fleet) sortOwners() {
	order := make([]int, len(f.Owners))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(f.Owners[a].ID, f.Owners[b].ID) })
	sorted, place := make([]Owner, len(order)), make([]int, len(order))
	for to, from := range order {
		sorted[to], place[from] = f.Owners[from], to
	}
	f.Owners = sorted
	for i := range f.Devices {
		for j, n := range f.Devices[i].Owners {
			f.Devices[i].Owners[j] = place[n]
		}
		for j, n := range f.Devices[i].Uninvited {
			f.Devices[i].Uninvited[j] = place[n]
		}
	}
}

// sort puts devices into display order.
func (f *Fleet) sort() {
	order := make([]*Device, len(f.Devices)) // pointers are cheaper to move
	for i := range f.Devices {
		order[i] = &f.Devices[i]
	}
	index := func(d *Device) float64 {
		if v, ok := d.Index.Get(); ok {
			return v
		}
		return -1
	}
	slices.SortFunc(order, func(a, b *Device) int {
		if a.Node != b.Node || a.Cluster != b.Cluster || a.Rack != b.Rack {
			if c := cmp.Or(natural.Compare(a.Cluster, b.Cluster), natural.Compare(a.Rack, b.Rack), natural.Compare(a.Node, b.Node)); c != 0 {
				return c
			}
		}
		return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Model, b.Model), cmp.Compare(index(a), index(b)), cmp.Compare(a.UUID, b.UUID))
	})
	sorted := make([]Device, len(order))
	for i, d := range order {
		sorted[i] = *d
		f.Index[d.Key()] = i
	}
	f.Devices = sorted
}
