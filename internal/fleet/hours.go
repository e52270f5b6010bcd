package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// hours computes usage from raw samples. Its unit is one device in one hour (UTC): the result of
// an hour depends on the samples of the hour, of the hour before, and on the last reading before
// and the next one after them, but not on the period that is asked for.
type hours struct {
	store  query.Store
	o      *MeterOptions
	series []string // device time counters
}

// used has the usage of devices in consecutive slots.
type used struct {
	edges   []time.Time // the slots are between them
	devices []*usedDevice
	refused int // values that no counter can have
}

// usedDevice has the usage of one device, by row.
type usedDevice struct {
	key     string
	rows    []query.Labels
	slots   [][]Sums // by slot and row
	missed  []missed
	dropped Seconds // more device time than time passed
	// touched is the start of the earliest gap that ends in the first hour, crossed the newest end
	// of a segment that began before it, and seen the time of the newest reading, in ms.
	touched, crossed, seen int64
}

// missed is the device time of an account whose start the store missed, and when it was first seen.
type missed struct {
	row  int32
	at   int64 // ms
	held Seconds
}

// between returns the usage of the matching devices. from is the start of an hour; edges are other
// moments at which a slot ends. The last edge ends the period.
func (h *hours) between(ctx context.Context, match []string, from time.Time, edges []time.Time) (*used, error) {
	to := edges[len(edges)-1]
	end := to.Truncate(time.Hour)
	if end.Before(to) {
		end = end.Add(time.Hour)
	}
	out := &used{edges: hourly(from, append(slices.Clone(edges), end))} // an hour is always computed as a whole
	devices, err := h.read(ctx, match, from.Add(-back), end.Add(back), &out.refused)
	if err != nil {
		return nil, err
	}
	if err := h.before(ctx, devices, from); err != nil {
		return nil, err
	}
	if err := h.after(ctx, devices, end); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(devices)) {
		out.devices = append(out.devices, devices[key].fold(out.edges))
	}
	out.cut(to)
	return out, nil
}

// cut removes what is after a moment, which is an edge.
func (u *used) cut(at time.Time) {
	n := slices.IndexFunc(u.edges, at.Equal)
	u.edges = u.edges[:n+1]
	for _, d := range u.devices {
		d.slots = d.slots[:n]
		d.missed = slices.DeleteFunc(d.missed, func(m missed) bool { return m.at > at.UnixMilli() })
	}
}

// hourly returns from, the edges, and the hours between them.
func hourly(from time.Time, edges []time.Time) []time.Time {
	out := append([]time.Time{from}, edges...)
	last := edges[len(edges)-1]
	for t := from.Add(time.Hour); t.Before(last); t = t.Add(time.Hour) {
		out = append(out, t)
	}
	slices.SortFunc(out, time.Time.Compare)
	return slices.CompactFunc(out, time.Time.Equal)
}

// samples has the readings of one device.
type samples struct {
	key       string
	rows      []query.Labels
	rowOf     map[string]int32
	accountOf map[string]int32
	accounts  []int32        // by row
	classes   []uint8        // by account
	labels    []query.Labels // by account: of one of its series
	ways      map[string]*wayOf
	instances map[string][]*wayOf
}

// wayOf has the readings of one account on one way to the store.
type wayOf struct {
	account, row int32
	readings     []reading
}

func newSamples(key string) *samples {
	return &samples{key: key, rowOf: map[string]int32{}, accountOf: map[string]int32{}, ways: map[string]*wayOf{}, instances: map[string][]*wayOf{}}
}

// way returns the readings of the way of a series.
func (d *samples) way(l query.Labels) *wayOf {
	key := way(l)
	if w := d.ways[key]; w != nil {
		return w
	}
	account := Account(l)
	a, ok := d.accountOf[account]
	if !ok {
		a = int32(len(d.classes))
		d.accountOf[account] = a
		d.classes = append(d.classes, classOf(l[LabelKind]))
		d.labels = append(d.labels, l)
	}
	labels := Row(l)
	row, ok := d.rowOf[labels.Key()]
	if !ok {
		row = int32(len(d.rows))
		d.rowOf[labels.Key()] = row
		d.rows = append(d.rows, labels)
		d.accounts = append(d.accounts, a)
	}
	w := &wayOf{account: a, row: row}
	d.ways[key] = w
	instance := Instance(l)
	d.instances[instance] = append(d.instances[instance], w)
	return w
}

// add merges the samples of a counter into the readings of a way.
func (w *wayOf) add(name string, points []query.Point) (refused int) {
	if len(w.readings) == 0 {
		w.readings = make([]reading, 0, len(points))
	}
	i, sorted := 0, true
	n := len(w.readings)
	for _, p := range points {
		r := reading{at: p.Time.UnixMilli(), account: w.account, row: w.row}
		var ok bool
		switch name {
		case SeriesActiveTime:
			r.Active, ok = micro(p.Value)
			r.HasActive = ok
		case SeriesEnergy:
			r.Energy, ok = milli(p.Value)
			r.HasEnergy = ok
		default:
			r.Held, ok = micro(p.Value)
			r.hasHeld = ok
		}
		if !ok {
			refused++
			continue
		}
		for i < n && w.readings[i].at < r.at {
			i++
		}
		if i < n && w.readings[i].at == r.at {
			old := &w.readings[i]
			old.Sums = old.with(r.Sums)
			if r.hasHeld {
				old.Held, old.hasHeld = max(old.Held, r.Held), true
			}
			continue
		}
		sorted = sorted && i == n
		w.readings = append(w.readings, r)
	}
	if !sorted {
		slices.SortStableFunc(w.readings, func(a, b reading) int { return cmp.Compare(a.at, b.at) })
	}
	return refused
}

// read returns the readings of devices in (from, to], by device.
func (h *hours) read(ctx context.Context, match []string, from, to time.Time, refused *int) (map[string]*samples, error) {
	out := map[string]*samples{}
	for _, name := range append(slices.Clone(h.series), SeriesActiveTime, SeriesEnergy) {
		list, err := h.store.Raw(ctx, h.selector(name, match...), from, to)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			key := DeviceKey(s.Labels)
			if out[key] == nil {
				out[key] = newSamples(key)
			}
			*refused += out[key].way(s.Labels).add(name, s.Points)
		}
	}
	return out, nil
}

func (h *hours) selector(name string, more ...string) string {
	return Select(name, h.o.Match, slices.Concat(h.o.Matchers, more)...)
}

// instance has the readings of one workload instance in order of time. Among readings of the same
// moment, the most advanced comes last.
type instance struct {
	readings []reading
	accounts int
}

func newInstance(ways []*wayOf) instance {
	if len(ways) == 1 {
		return instance{ways[0].readings, 1}
	}
	var out instance
	accounts := map[int32]bool{}
	for _, w := range ways {
		out.readings = append(out.readings, w.readings...)
		accounts[w.account] = true
	}
	out.accounts = len(accounts)
	slices.SortStableFunc(out.readings, func(a, b reading) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.Held, b.Held), cmp.Compare(a.account, b.account), cmp.Compare(a.row, b.row))
	})
	return out
}

// fold returns the usage of a device.
func (d *samples) fold(edges []time.Time) *usedDevice {
	out := &usedDevice{key: d.key, rows: d.rows, touched: edges[0].UnixMilli()}
	slots := make([]Sums, len(d.rows)*(len(edges)-1))
	for i := range len(edges) - 1 {
		out.slots = append(out.slots, slots[i*len(d.rows):(i+1)*len(d.rows):(i+1)*len(d.rows)])
	}
	var all []instance
	for _, key := range slices.Sorted(maps.Keys(d.instances)) {
		i := newInstance(d.instances[key])
		all = append(all, i)
		if n := len(i.readings); n > 0 {
			out.seen = max(out.seen, i.readings[n-1].at)
		}
	}
	w := &sweep{accounts: d.accounts, classes: d.classes}
	for i := 0; i < len(edges)-1; {
		from := edges[i]
		to := from.Truncate(time.Hour).Add(time.Hour)
		n := 1
		for i+n < len(edges)-1 && edges[i+n].Before(to) {
			n++
		}
		w.edges = w.edges[:0]
		for _, t := range edges[i : i+n+1] {
			w.edges = append(w.edges, t.UnixMilli())
		}
		w.rows = out.slots[i : i+n]
		d.hour(w, all, from.Truncate(time.Hour).UnixMilli(), to.UnixMilli(), out, i == 0)
		i += n
	}
	out.dropped = w.dropped
	return out
}

// hour spreads the readings of one hour over its slots.
func (d *samples) hour(w *sweep, all []instance, from, to int64, out *usedDevice, first bool) {
	end := w.edges[len(w.edges)-1]
	f := follower{known: map[int32]int64{}, unseen: func(r *reading, held Seconds) {
		if r.at > w.edges[0] && r.at <= end {
			out.missed = append(out.missed, missed{r.row, r.at, held})
		}
	}}
	for i := range all {
		f.lanes = f.lanes[:0]
		clear(f.known)
		f.follow(all[i].window(from, to))
	}
	if first {
		for _, t := range f.tracks {
			for i := range t {
				if t[i].to <= from || t[i].from >= from {
					continue
				}
				if t[i].to-t[i].from > near.Milliseconds() {
					out.touched = min(out.touched, t[i].from)
				}
				out.crossed = max(out.crossed, t[i].to)
			}
		}
	}
	if len(f.tracks) > 0 {
		w.run(f.tracks)
	}
}

// window returns the readings that matter for an hour: those in the hour, in the one before and in
// the minutes after, the last earlier reading of each account, and the first later one.
func (i *instance) window(from, to int64) []reading {
	after := func(t int64) int {
		n, _ := slices.BinarySearchFunc(i.readings, t, func(r reading, t int64) int {
			if r.at > t {
				return 1
			}
			return -1
		})
		return n
	}
	a, b := after(from-back.Milliseconds()), after(to+near.Milliseconds())
	found := make(map[int32]bool, i.accounts)
	var prev, next []reading
	for n := a - 1; n >= 0 && len(found) < i.accounts && i.readings[n].at >= from-DefaultMemory.Milliseconds(); n-- {
		if r := &i.readings[n]; r.hasHeld && !found[r.account] {
			found[r.account] = true
			prev = append(prev, *r)
		}
	}
	clear(found)
	for n := b; n < len(i.readings) && len(found) < i.accounts && i.readings[n].at <= to+bridge.Milliseconds(); n++ {
		if r := &i.readings[n]; r.hasHeld && !found[r.account] {
			found[r.account] = true
			next = append(next, *r)
		}
	}
	if len(prev) == 0 && len(next) == 0 {
		return i.readings[a:b]
	}
	slices.Reverse(prev)
	return slices.Concat(prev, i.readings[a:b], next)
}

// way returns the key that distinguishes two series of one counter.
func way(l query.Labels) string {
	l = maps.Clone(l)
	maps.DeleteFunc(l, func(name, _ string) bool { return len(name) > 1 && name[:2] == "__" }) // name, type and unit
	return l.Key()
}

// into adds the usage of all slots to a day.
func (u *used) into(d *Day) {
	d.Refused += u.refused
	for _, x := range u.devices {
		d.Dropped += x.dropped
		for row, labels := range x.rows {
			var sum Sums
			for _, slot := range x.slots {
				sum = sum.plus(slot[row])
			}
			d.add(labels, sum)
		}
		for _, m := range x.missed {
			d.Late = append(d.Late, LateRow{x.rows[m.row], m.held, m.at})
		}
	}
}

// plus returns a + b.
func (a Sums) plus(b Sums) Sums {
	return Sums{
		Held: a.Held + b.Held, Active: a.Active + b.Active, Unmeasured: a.Unmeasured + b.Unmeasured, Energy: a.Energy + b.Energy,
		HasActive: a.HasActive || b.HasActive, HasEnergy: a.HasEnergy || b.HasEnergy,
	}
}

// add adds usage to a row.
func (d *Day) add(labels query.Labels, s Sums) {
	key := labels.Key()
	r := d.Rows[key]
	if r == nil {
		r = &DayRow{Labels: labels}
		d.Rows[key] = r
	}
	r.Sums = r.plus(s)
}

// sort orders late accounts by time: those of a shorter period come first.
func (d *Day) sort() {
	slices.SortStableFunc(d.Late, func(a, b LateRow) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.Labels.Key(), b.Labels.Key()))
	})
}
