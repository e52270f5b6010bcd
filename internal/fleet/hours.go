package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
	"unique"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Hours computes usage from the samples of a store. Its unit is one device in one hour (UTC): the
// result of an hour depends on the samples from an hour before it to an hour after it, and on the last
// earlier sample of an account that appears in between, but not on the period that is asked for.
type Hours struct {
	store  query.Store
	o      *MeterOptions
	series []string // device time counters
}

// NewHours returns the Hours of a store.
func NewHours(store query.Store) *Hours {
	return &NewMeter(store, MeterOptions{}).questions().hours
}

// Used is the usage of some devices in consecutive slots.
type Used struct {
	Edges   []time.Time // the slots are between them
	Devices []*UsedDevice
	Refused int // values that no counter can have
}

// UsedDevice is the usage of one device.
type UsedDevice struct {
	Key     string // see DeviceKey
	Rows    []query.Labels
	Keys    []RowKey // of Rows
	Slots   [][]Sums // by slot and row
	Late    []LateRow
	Dropped []Seconds // by slot: device time beyond the time that passed
	// Touched is the start of the earliest gap without samples that ends in the first hour, and
	// Crossed the newest sample that is needed to divide growth at its start; zero if there is none.
	Touched, Crossed time.Time
	// Seen is the time of the newest sample that was read.
	Seen time.Time
}

// Between returns the usage of the matching devices. from is the start of an hour; edges are other
// moments at which a slot ends. The last edge ends the period.
func (h *Hours) Between(ctx context.Context, match []string, from time.Time, edges []time.Time) (*Used, error) {
	to := edges[len(edges)-1]
	end := to.Truncate(time.Hour)
	if end.Before(to) {
		end = end.Add(time.Hour)
	}
	out := &Used{Edges: hourly(from, append(slices.Clone(edges), end))} // an hour is always computed as a whole
	devices, err := h.read(ctx, match, from.Add(-back), end.Add(back), func(at time.Time) {
		if at.After(from) && !at.After(to) { // the others are of other periods
			out.Refused++
		}
	})
	if err != nil {
		return nil, err
	}
	if err := h.before(ctx, devices, from); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(devices)) {
		out.Devices = append(out.Devices, devices[key].fold(out.Edges))
	}
	return out.Until(to), nil
}

// Until returns the usage up to a moment, which is an edge.
func (u *Used) Until(at time.Time) *Used {
	n := slices.IndexFunc(u.Edges, at.Equal)
	out := &Used{Edges: u.Edges[:n+1], Refused: u.Refused, Devices: make([]*UsedDevice, len(u.Devices))}
	for i, d := range u.Devices {
		x := *d
		x.Slots, x.Dropped, x.Late = d.Slots[:n], d.Dropped[:n], nil
		for _, l := range d.Late {
			if !l.At.After(at) {
				x.Late = append(x.Late, l)
			}
		}
		out.Devices[i] = &x
	}
	return out
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

// Way returns the readings of the way of a series.
func (d *samples) way(l query.Labels) *wayOf {
	key := Way(l)
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
	text := labels.Key()
	row, ok := d.rowOf[text]
	if !ok {
		row = int32(len(d.rows))
		d.rowOf[text] = row
		d.rows = append(d.rows, labels)
		d.accounts = append(d.accounts, a)
	}
	w := &wayOf{account: a, row: row}
	d.ways[key] = w
	instance := Instance(l)
	d.instances[instance] = append(d.instances[instance], w)
	return w
}

// add merges the samples of a counter into the readings of a way. It returns the times of those that no counter can have.
func (w *wayOf) add(name string, points []query.Point) (refused []time.Time) {
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
			refused = append(refused, p.Time)
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

// read returns the readings of devices in (from, to], by device. refuse is called for each value that no counter can have.
func (h *Hours) read(ctx context.Context, match []string, from, to time.Time, refuse func(at time.Time)) (map[string]*samples, error) {
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
			for _, at := range out[key].way(s.Labels).add(name, s.Points) {
				refuse(at)
			}
		}
	}
	return out, nil
}

func (h *Hours) selector(name string, more ...string) string {
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
func (d *samples) fold(edges []time.Time) *UsedDevice {
	out := &UsedDevice{Key: d.key, Rows: d.rows, Keys: make([]RowKey, len(d.rows)), Dropped: make([]Seconds, len(edges)-1)}
	for key, i := range d.rowOf {
		out.Keys[i] = unique.Make(key)
	}
	slots := make([]Sums, len(d.rows)*(len(edges)-1))
	for i := range len(edges) - 1 {
		out.Slots = append(out.Slots, slots[i*len(d.rows):(i+1)*len(d.rows):(i+1)*len(d.rows)])
	}
	var all []instance
	for _, key := range slices.Sorted(maps.Keys(d.instances)) {
		i := newInstance(d.instances[key])
		all = append(all, i)
		if n := len(i.readings); n > 0 {
			if last := time.UnixMilli(i.readings[n-1].at); last.After(out.Seen) {
				out.Seen = last
			}
		}
	}
	for i := 0; i < len(edges)-1; {
		hour := edges[i].Truncate(time.Hour)
		n := 1
		for i+n < len(edges)-1 && edges[i+n].Before(hour.Add(time.Hour)) {
			n++
		}
		w := &sweep{accounts: d.accounts, classes: d.classes, rows: out.Slots[i : i+n]}
		for _, t := range edges[i : i+n+1] {
			w.edges = append(w.edges, t.UnixMilli())
		}
		d.hour(w, all, hour, out, i == 0)
		out.Dropped[i] = w.dropped
		i += n
	}
	return out
}

// hour spreads the readings of one hour over its slots.
func (d *samples) hour(w *sweep, all []instance, hour time.Time, out *UsedDevice, first bool) {
	from, to := hour.UnixMilli(), hour.Add(time.Hour).UnixMilli()
	f := follower{known: map[int32]int64{}, unseen: func(r *reading, held Seconds) {
		if r.at > from && r.at <= to {
			out.Late = append(out.Late, LateRow{Labels: d.rows[r.row], Held: held, At: time.UnixMilli(r.at).UTC()})
		}
	}}
	for i := range all {
		f.lanes = f.lanes[:0]
		clear(f.known)
		f.follow(all[i].window(from, to))
	}
	if first {
		out.crosses(f.tracks, from)
	}
	if len(f.tracks) > 0 {
		w.run(f.tracks)
	}
}

// crosses sets what the segments across the start of the first hour depend on.
func (u *UsedDevice) crosses(tracks [][]segment, at int64) {
	for _, list := range tracks {
		for _, s := range list {
			if s.to <= at || s.from >= at {
				continue
			}
			if from := time.UnixMilli(s.from).UTC(); s.to-s.from > near.Milliseconds() && (u.Touched.IsZero() || from.Before(u.Touched)) {
				u.Touched = from
			}
			if to := time.UnixMilli(s.to).UTC(); to.After(u.Crossed) {
				u.Crossed = to
			}
		}
	}
}

// window returns the readings that matter for an hour: those from an hour before it to an hour after
// it, and the last earlier one of each account that appears in between.
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
	a, b := after(from-back.Milliseconds()), after(to+back.Milliseconds())
	var appear []int32
	seen := make(map[int32]bool, i.accounts)
	for n := a; n < b && len(seen) < i.accounts; n++ {
		if r := &i.readings[n]; r.hasHeld && !seen[r.account] {
			seen[r.account] = true
			if r.at > from && r.Held > 0 {
				appear = append(appear, r.account)
			}
		}
	}
	var prev []reading
	for n := a - 1; n >= 0 && len(appear) > 0; n-- {
		if r := &i.readings[n]; r.hasHeld {
			if x := slices.Index(appear, r.account); x >= 0 {
				appear = slices.Delete(appear, x, x+1)
				prev = append(prev, *r)
			}
		}
	}
	if len(prev) == 0 {
		return i.readings[a:b]
	}
	slices.Reverse(prev)
	return slices.Concat(prev, i.readings[a:b])
}

// Way returns the key that distinguishes two series of one counter.
func Way(l query.Labels) string {
	l = maps.Clone(l)
	maps.DeleteFunc(l, func(name, _ string) bool { return len(name) > 1 && name[:2] == "__" }) // name, type and unit
	return l.Key()
}
