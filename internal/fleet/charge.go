package fleet

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Hourly is what an hour costs: of a whole device, and of a kilowatt that it draws.
type Hourly struct{ Device, Kilowatt float64 }

// Pricer returns what an hour costs under the labels of a row of a bill, and false if no price is
// known. Bills and hourly rates use the same labels, so that a rate is the bill of the next hour.
type Pricer func(row query.Labels, at time.Time) (Hourly, bool)

// Part is the part of a device that a row of a bill has at one moment: a holder, or what is free.
type Part struct {
	Row   query.Labels
	Ratio float64 // of the device
}

// Charge is what a part of a device costs per hour at one moment.
type Charge struct {
	Owner     string // ID; empty for the free part
	Partition string
	Ratio     float64 // of the device
	// Capacity is the cost of the time and Energy that of the power draw. They are absent without a
	// price.
	Capacity, Energy optional.Float
}

// PerHour returns the whole cost.
func (c Charge) PerHour() optional.Float {
	capacity, ok := c.Capacity.Get()
	if !ok {
		return optional.Float{}
	}
	energy, _ := c.Energy.Get()
	return optional.Of(capacity + energy)
}

// Charges returns what the parts of one device cost per hour. The power draw is divided by size:
// which part draws how much changes every second.
func Charges(parts []Part, at time.Time, watts optional.Float, price Pricer) []Charge {
	var out []Charge
	for _, p := range parts {
		if !(p.Ratio > 0) {
			continue // use without an allocation is not billed
		}
		c := Charge{Ratio: p.Ratio, Partition: p.Row[LabelPartition]}
		if o, ok := OwnerOf(p.Row); ok {
			c.Owner = o.ID
		}
		if h, ok := price(p.Row, at); ok {
			w, _ := watts.Get()
			c.Capacity, c.Energy = optional.Of(h.Device*p.Ratio), optional.Of(h.Kilowatt*w/1000*p.Ratio)
		}
		out = append(out, c)
	}
	return out
}

// Rate returns the sum of the charges, absent if none is priced. It is the cost of the next hour if
// nothing changes.
func Rate(charges []Charge) optional.Float { return sumOfCharges(charges, Charge.PerHour) }

// HeldRate returns what the held time of a device costs per hour, without energy: what is lost while
// nobody uses it, as in the idle cost of a bill.
func HeldRate(charges []Charge) optional.Float {
	return sumOfCharges(charges, func(c Charge) optional.Float {
		if c.Owner == "" {
			return optional.Float{}
		}
		return c.Capacity
	})
}

func sumOfCharges(charges []Charge, of func(Charge) optional.Float) optional.Float {
	sum, priced := 0.0, false
	for _, c := range charges {
		if v, ok := of(c).Get(); ok {
			sum, priced = sum+v, true
		}
	}
	if !priced {
		return optional.Float{}
	}
	return optional.Of(sum)
}

// charge sets what devices cost.
func (r *Reader) charge(ctx context.Context, f *Fleet) error {
	if r.o.Price == nil {
		return nil
	}
	answers, err := query.Instants(ctx, r.store, f.At, Once(SeriesAllocation), Once(SeriesUnallocated))
	if err != nil {
		return err
	}
	parts := make([][]Part, len(f.Devices))
	for n, list := range answers {
		for _, s := range list {
			i, ok := f.find(s.Labels)
			if !ok || math.IsNaN(s.Value) {
				continue
			}
			row := Row(s.Labels)
			if n == 1 {
				row[LabelKind] = KindUnallocated
			}
			parts[i] = append(parts[i], Part{row, s.Value})
		}
	}
	var without []int
	for i := range f.Devices {
		if !slices.ContainsFunc(parts[i], func(p Part) bool { return p.Ratio > 0 }) {
			without = append(without, i)
		}
	}
	// The agent of such a device does not know the holders, or is away: it costs what it costs free.
	machines, err := r.machines(ctx, f, without)
	if err != nil {
		return err
	}
	for _, i := range without {
		row := OfMachine(Row(f.Devices[i].Labels))
		maps.Copy(row, machines[f.Devices[i].Key()])
		row[LabelKind] = KindUnallocated
		parts[i] = []Part{{row, 1}}
	}
	for i := range f.Devices {
		d := &f.Devices[i]
		d.Charges = Charges(parts[i], f.At, d.Power, r.o.Price)
		d.Rate = Rate(d.Charges)
	}
	return nil
}

// machinesFor is how long the labels of devices without parts are remembered. The query reads a day
// of samples.
const machinesFor = 10 * time.Minute

// machines returns all labels of the machines of some devices, by DeviceKey: those that a bill of their
// free time would have. The labels that identify a device lack what users add, such as the pool.
func (r *Reader) machines(ctx context.Context, f *Fleet, devices []int) (map[string]query.Labels, error) {
	r.mu.Lock()
	known, asked := r.machine, r.machined
	r.mu.Unlock()
	keys, uuids := make([]string, len(devices)), make([]string, len(devices))
	for n, i := range devices {
		keys[n], uuids[n] = f.Devices[i].Key(), f.Devices[i].UUID
	}
	if f.At.Sub(asked).Abs() <= machinesFor && !slices.ContainsFunc(keys, func(key string) bool { return known[key] == nil }) {
		return known, nil
	}
	known = map[string]query.Labels{}
	for _, key := range keys {
		known[key] = query.Labels{} // not searched for again soon
	}
	for _, match := range AnyOf(LabelUUID, uuids) {
		list, err := r.store.Instant(ctx, Over("last_over_time", Select(SeriesUp, nil, match), query.Duration(SilentFor)), f.At)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			if l, ok := known[DeviceKey(s.Labels)]; ok {
				maps.Copy(l, OfMachine(Row(s.Labels)))
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.machine, r.machined = known, f.At
	return known, nil
}
