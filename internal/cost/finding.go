package cost

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sizing"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Rules of findings.
const (
	IdleHolder  = "idle_holder"  // holds devices and memory, but is idle
	NeverUsed   = "never_used"   // holds devices it never used
	PartlyUsed  = "partly_used"  // requested more devices than it uses
	BarelyUsed  = "barely_used"  // kernels run, but the compute units are nearly idle
	FitsSmaller = "fits_smaller" // a slice or a smaller device would suffice
	HostBound   = "host_bound"   // the devices wait for input
)

// Finding is a way to save money.
type Finding struct {
	Rule     string            `json:"rule"`
	Workload string            `json:"workload"` // namespace or account, and name
	Labels   map[string]string `json:"labels"`   // of the workload
	Devices  []string          `json:"devices"`  // UUIDs of devices or partitions, in order
	Models   []string          `json:"models"`
	Summary  string            `json:"summary"` // one sentence with the numbers
	// Evidence has the numbers: fractions from 0 to 1, bytes, hours, device counts.
	Evidence map[string]float64 `json:"evidence"`
	// PerDay is the waste per day. Priced is false if no price is known.
	PerDay   Money  `json:"money_per_day"`
	Priced   bool   `json:"priced"`
	Currency string `json:"currency"`
}

// Rules are the thresholds of findings. A zero field means its default.
type Rules struct {
	// Low is the activity below which a device counts as inactive: 0.05.
	Low float64
	// IdleFor is how long a device must be inactive and hold memory to be idle: 1 hour.
	IdleFor time.Duration
	// Held is the minimum device time of a workload to be judged: 1 device hour.
	Held time.Duration
	// Memory is more than a driver context takes: 512 MiB.
	Memory float64
	// Facts are what is known of models. Without them nobody knows which partitions a device can have.
	Facts sizing.Facts
}

func (r Rules) orDefault() Rules {
	return Rules{cmp.Or(r.Low, sizing.Low), cmp.Or(r.IdleFor, time.Hour), cmp.Or(r.Held, time.Hour), cmp.Or(r.Memory, 512<<20), r.Facts}
}

// FindingsOf finds waste in a period, most expensive first.
func FindingsOf(ctx context.Context, store query.Store, p Prices, from, to time.Time, rules Rules, o Options) ([]Finding, error) {
	bill, err := Bill(ctx, store, p, from, to, o)
	if err != nil {
		return nil, err
	}
	return FindingsIn(ctx, store, p, bill, rules, o)
}

// FindingsIn finds waste in a bill that was computed with the same options.
func FindingsIn(ctx context.Context, store query.Store, p Prices, bill Statement, rules Rules, o Options) ([]Finding, error) {
	d := &detective{store: store, o: o, rules: rules.orDefault(), to: bill.To, p: p, period: bill.To.Sub(bill.From)}
	if err := d.gather(ctx, &bill); err != nil {
		return nil, err
	}
	var out []Finding
	for _, g := range d.groups(&bill) {
		if f := d.judge(g); f != nil {
			f.Currency = bill.Currency
			out = append(out, *f)
		}
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.PerDay, a.PerDay), cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Rule, b.Rule), slices.Compare(a.Devices, b.Devices))
	})
	return out, nil
}

// detective has the gauges of a period.
type detective struct {
	store  query.Store
	o      Options
	rules  Rules
	p      Prices
	to     time.Time
	period time.Duration

	*sizing.Peaks
	// By instance, as in Peaks.
	idle      map[string]time.Duration // how long the device has been inactive, up to IdleFor
	memoryLow map[string]float64       // bytes: minimum in IdleFor
}

// gather queries the gauges.
func (d *detective) gather(ctx context.Context, bill *Statement) (err error) {
	if d.Peaks, err = sizing.ReadPeaks(ctx, d.store, d.period, d.to, d.o); err != nil {
		return err
	}
	list, err := sizing.OverTime(ctx, d.store, "min_over_time", fleet.SeriesWorkloadMemory, d.rules.IdleFor, d.to, d.o)
	if err != nil {
		return err
	}
	d.memoryLow = lowest(list)
	return d.lookBack(ctx, bill)
}

// lowest returns the lowest value of each instance.
func lowest(list []query.Sample) map[string]float64 {
	out := map[string]float64{}
	for _, s := range list {
		key := fleet.Instance(s.Labels)
		if old, ok := out[key]; !ok || s.Value < old {
			out[key] = s.Value
		}
	}
	return out
}

// lookBack determines how long the open counters of a bill have been idle.
func (d *detective) lookBack(ctx context.Context, bill *Statement) (err error) {
	var uuids []string
	for i := range bill.Rows {
		if l := bill.Rows[i].Labels; d.Now[fleet.Instance(l)] > 0 && fleet.IsWorkload(l[fleet.LabelKind]) {
			uuids = append(uuids, l[fleet.LabelUUID])
		}
	}
	slices.Sort(uuids)
	d.idle, err = fleet.IdleInstances(ctx, d.store, slices.Compact(uuids), d.to, d.rules.IdleFor)
	return err
}

// instance is one run of a workload: everything that one pod or job holds.
type instance struct {
	name string
	rows []*Row
	keys []string
}

// groups returns the instances that hold a device at the end of the period and have held it long
// enough.
func (d *detective) groups(bill *Statement) []*instance {
	by := map[string]*instance{}
	var order []*instance
	name, _ := DimensionOf("workload")
	rows := d.merged(bill)
	for i := range rows {
		r := &rows[i]
		if !fleet.IsWorkload(r.Labels[fleet.LabelKind]) {
			continue
		}
		key := fleet.Instance(r.Labels)
		if d.Now[key] <= 0 {
			continue // ended: no further cost
		}
		id := name.NameOf(r.Labels) + "\x00" + cmp.Or(r.Labels[fleet.LabelPodUID], r.Labels[fleet.LabelSlurmJob], r.Labels[fleet.LabelContainerID])
		g := by[id]
		if g == nil {
			g = &instance{name: name.NameOf(r.Labels)}
			by[id] = g
			order = append(order, g)
		}
		g.rows, g.keys = append(g.rows, r), append(g.keys, key)
	}
	return slices.DeleteFunc(order, func(g *instance) bool {
		var held Seconds
		for _, r := range g.rows {
			held += r.Allocated()
		}
		return held.Duration() < d.rules.Held
	})
}

// merged returns the rows of a bill, one per counter. A machine label that arrived late gives a
// counter two rows, although it is one device.
func (d *detective) merged(bill *Statement) []Row {
	var out []Row
	by := map[string]int{}
	for _, r := range bill.Rows {
		key := fleet.Instance(r.Labels)
		i, ok := by[key]
		if !ok {
			by[key] = len(out)
			out = append(out, r)
			continue
		}
		if d.later(key, r.Labels, out[i].Labels) {
			out[i].Labels = r.Labels
		}
		out[i].Amounts = out[i].Add(r.Amounts)
	}
	return out
}

// later reports whether a is a more recent label set of a counter than b: the label set of its
// gauge if either matches, otherwise the larger set, because labels arrive late and persist.
func (d *detective) later(key string, a, b query.Labels) bool {
	if now := d.Labels[key]; a.Key() == now || b.Key() == now {
		return a.Key() == now
	}
	return len(a) > len(b)
}

// judge returns the most expensive finding of an instance: only one, to count no waste twice.
func (d *detective) judge(g *instance) *Finding {
	for _, rule := range []func(*instance) *Finding{d.neverUsed, d.idleHolder, d.partlyUsed, d.barelyUsed, d.fitsSmaller, d.hostBound} {
		if f := rule(g); f != nil {
			return f
		}
	}
	return nil
}

// finding returns a finding about some rows. part is the wasted fraction of their cost.
func (d *detective) finding(rule string, g *instance, at []int, part float64, evidence map[string]float64, format string, args ...any) *Finding {
	f := &Finding{Rule: rule, Workload: g.name, Labels: fleet.OfWorkload(g.rows[0].Labels), Evidence: evidence, Summary: fmt.Sprintf(format, args...)}
	cost := 0.0
	for _, i := range at {
		r := g.rows[i]
		f.Devices = append(f.Devices, fleet.Unit(r.Labels))
		if m := r.Labels[fleet.LabelModel]; m != "" && !slices.Contains(f.Models, m) {
			f.Models = append(f.Models, m)
		}
		if price, ok := d.p.At(r.Labels, d.to); ok {
			f.Priced = true
			cost += float64(price.PerHour) / 1000 * 24 * d.Now[g.keys[i]] * part
		}
	}
	f.PerDay = Money(cost)
	slices.Sort(f.Devices)
	slices.Sort(f.Models)
	return f
}

// all returns the indices of the rows that pass.
func (g *instance) all(pass func(i int) bool) []int {
	var out []int
	for i := range g.rows {
		if pass(i) {
			out = append(out, i)
		}
	}
	return out
}

// measured reports whether a row has activity data.
func (g *instance) measured(i int) bool {
	return g.rows[i].Unmeasured == 0 && g.rows[i].Allocated() > 0
}
