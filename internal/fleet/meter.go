package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
	"unique"

	"github.com/gpumeter/gpumeter/internal/query"
)

const (
	// fresh is how much an account may have accrued when the store first sees it and still be
	// counted from zero. An account with more started before the store knew it: only later
	// growth counts, and the rest is reported as Unseen.
	fresh = Seconds(3600e6)
	// Back is how far before an edge samples are considered.
	Back = time.Hour
	back = Back
	// DefaultMemory is how far before a period the store is searched for an account that has
	// been silent. An account silent for longer counts from where it reappears.
	DefaultMemory = 31 * 24 * time.Hour

	day = 24 * time.Hour
)

// MeterOptions restrict what a Meter reads. The zero value reads everything.
type MeterOptions struct {
	// Match has labels that a series must have, such as the team of a tenant.
	Match map[string]string
	// Matchers are additional PromQL matchers.
	Matchers []string
	// Workloads excludes free device time.
	Workloads bool
	// Memory overrides DefaultMemory.
	Memory time.Duration
	// Late, if not nil, is called with the row and the device time of every account whose
	// start the store missed.
	Late func(row query.Labels, held Seconds)
}

// Unseen is what counters had accrued before the store first saw them. No period includes it.
type Unseen struct {
	Accounts int     `json:"accounts"`
	Held     Seconds `json:"held_seconds"` // device time of those accounts
}

// Meter converts the counters of accounts to usage between two moments.
//
// Usage is what an account had at the end of a period, counted from midnight (UTC), less what it
// had at the start. Splitting a period at any moment therefore yields two parts that add up to
// the whole. No device has more usage in a period than time passed, whatever the samples say: see
// sweep.
//
// A Meter is not safe for concurrent use.
type Meter struct {
	store query.Store
	o     MeterOptions
	edges map[time.Time]edge // of questions

	last    moment // the end of the last period
	known   bool
	unseen  Unseen
	refused int
	dropped Seconds
}

// moment is the usage of a day up to a moment.
type moment struct {
	at time.Time
	*Day
}

// Day is the usage of a fleet from midnight (UTC) to a moment of the day.
type Day struct {
	// Rows has the usage of each row, once. See Add.
	Rows []DayRow
	// Late has the accounts whose start the store missed.
	Late []LateRow
	// Known is set if the store had an account before midnight.
	Known bool
	// Refused counts values that no counter can have.
	Refused int
	// Dropped is the device time that was reported more than once, such as by two agents on one
	// host. Rows do not include it.
	Dropped Seconds
	Twice   map[string]Seconds // Dropped by DeviceKey, where it is not 0
	Kept    time.Time          // the usage up to then was kept; zero: all was computed from samples
	// Hourly has the device time of each hour by DeviceKey. It is nil if that is not known, or if rows
	// of devices are left out.
	Hourly map[string]*DayHours

	places map[RowKey]int // of Rows, while rows are added
}

// RowKey is the key of a row's labels. It is compared by address: keys have hundreds of bytes, and
// the days of a bill the same ones.
type RowKey = unique.Handle[string]

// KeyOf returns the key of a row.
func KeyOf(row query.Labels) RowKey { return unique.Make(row.Key()) }

// DayRow is the usage of a row.
type DayRow struct {
	Key    RowKey
	Labels query.Labels
	// Number helps to find the row again: a Keeper gives different rows different numbers, from 1 on, for
	// as long as it remembers them. It is 0 if the row has none.
	Number int32
	Sums
}

// LateRow is the device time that an account had when the store first saw it.
type LateRow struct {
	Labels query.Labels
	Held   Seconds
	At     time.Time
}

// ErrNotKept is returned by a Keeper that has samples only.
var ErrNotKept = errors.New("the store keeps no usage")

// Keeper is a store that keeps the usage of past hours, so that it need not be computed from
// samples each time.
type Keeper interface {
	query.Store
	// Usage returns the usage from midnight to a moment of the same day, or ErrNotKept.
	Usage(ctx context.Context, midnight, at time.Time) (*Day, error)
}

// Keeps reports whether a store keeps usage, as far as is known: one at a URL may be no hub.
func Keeps(store query.Store) bool {
	if r, ok := store.(interface{ Keeps() bool }); ok {
		return r.Keeps()
	}
	_, ok := store.(Keeper)
	return ok
}

// NewMeter returns a Meter of the counters in store.
func NewMeter(store query.Store, o MeterOptions) *Meter {
	o.Memory = cmp.Or(o.Memory, DefaultMemory)
	return &Meter{store: store, o: o}
}

// Unseen returns the usage that the periods read so far exclude.
func (m *Meter) Unseen() Unseen { return m.unseen }

// Refused returns how many values were rejected because no counter can have them.
func (m *Meter) Refused() int { return m.refused }

// Dropped returns the device time that was reported more than once, and counted once.
func (m *Meter) Dropped() Seconds { return m.dropped }

// Day returns the usage of a day up to the end of the last period.
func (m *Meter) Day() *Day { return m.last.Day }

// Known reports whether the store had any account before the last period.
func (m *Meter) Known() bool { return m.known }

// Count is called for a row with its counters at both ends of a period, which start at zero at
// midnight (UTC): those at its end are in the row.
type Count func(row *DayRow, from Sums)

// Between calls count for every row with usage in (from, to].
func (m *Meter) Between(ctx context.Context, from, to time.Time, count Count) error {
	edges := append(append([]time.Time{from}, Days(from, to)...), to)
	for i, end := range edges[1:] {
		known, err := m.within(ctx, edges[i], end, count)
		if err != nil {
			return err
		}
		if i == 0 {
			m.known = known
		}
	}
	return nil
}

// within is Between for a period of one day. known reports whether there was an account before it.
func (m *Meter) within(ctx context.Context, from, to time.Time, count Count) (known bool, err error) {
	midnight := from.UTC().Truncate(day)
	a := &Day{}
	if !from.Equal(midnight) {
		if m.last.Day == nil || !m.last.at.Equal(from) {
			d, err := m.usage(ctx, midnight, from)
			if err != nil {
				return false, err
			}
			m.last = moment{from, d}
		}
		a = m.last.Day
	}
	b, err := m.usage(ctx, midnight, to)
	if err != nil {
		return false, err
	}
	m.last = moment{to, b}
	m.refused += b.Refused - a.Refused
	m.dropped += b.Dropped - a.Dropped
	for _, l := range b.Late[min(len(a.Late), len(b.Late)):] {
		m.unseen.Accounts++
		m.unseen.Held += l.Held
		if m.o.Late != nil {
			m.o.Late(l.Labels, l.Held)
		}
	}
	old := make(map[RowKey]Sums, len(a.Rows))
	for i := range a.Rows {
		old[a.Rows[i].Key] = a.Rows[i].Sums
	}
	for i := range b.Rows {
		r := &b.Rows[i]
		before := old[r.Key]
		if before != r.Sums || before == (Sums{}) {
			count(r, before)
		}
	}
	return b.Known || len(a.Rows) > 0, nil
}

// usage returns the usage from midnight to a moment of the same day.
func (m *Meter) usage(ctx context.Context, midnight, at time.Time) (*Day, error) {
	if k, ok := m.store.(Keeper); ok && len(m.o.Matchers) == 0 {
		d, err := k.Usage(ctx, midnight, at)
		if err == nil {
			return d.only(&m.o), nil
		}
		if !errors.Is(err, ErrNotKept) {
			return nil, err
		}
	}
	q := m.questions()
	d, err := q.usage(ctx, midnight, at)
	m.edges = q.edges
	return d, err
}

func (m *Meter) questions() *questions {
	return &questions{store: m.store, o: &m.o, hours: Hours{store: m.store, o: &m.o, series: m.heldSeries()}, edges: m.edges}
}

// Only returns the rows that have these labels.
func (d *Day) Only(match map[string]string) *Day { return d.only(&MeterOptions{Match: match}) }

// only returns the rows that the options select.
func (d *Day) only(o *MeterOptions) *Day {
	if len(o.Match) == 0 && !o.Workloads {
		return d
	}
	match := func(l query.Labels) bool {
		for name, value := range o.Match {
			if l[name] != value {
				return false
			}
		}
		return !o.Workloads || l[LabelKind] != KindUnallocated
	}
	out := &Day{Known: d.Known, Refused: d.Refused, Twice: d.Twice, Kept: d.Kept}
	for i := range d.Rows {
		if match(d.Rows[i].Labels) {
			out.Rows = append(out.Rows, d.Rows[i])
		}
	}
	for _, l := range d.Late {
		if match(l.Labels) {
			out.Late = append(out.Late, l)
		}
	}
	return out
}

// heldSeries returns the device time counters: with a holder, and free.
func (m *Meter) heldSeries() []string {
	if m.o.Workloads {
		return []string{SeriesAllocatedTime}
	}
	return []string{SeriesAllocatedTime, SeriesUnallocatedTime}
}

func (m *Meter) selector(name string, more ...string) string {
	return Select(name, m.o.Match, slices.Concat(m.o.Matchers, more)...)
}

// Since returns approximately when the store's data begins within a period, and the zero time if
// there is none, or if there is data from before the period, however old.
func (m *Meter) Since(ctx context.Context, from, to time.Time) (time.Time, error) {
	step := max(time.Minute, (to.Sub(from) / 500).Truncate(time.Second))
	var first time.Time
	for _, name := range m.heldSeries() {
		before, err := m.store.Range(ctx, "count("+m.selector(name)+")", from.Add(-m.o.Memory), from, max(time.Minute, m.o.Memory/5000))
		if err != nil || len(before) > 0 {
			return time.Time{}, err
		}
		list, err := m.store.Range(ctx, "count("+m.selector(name)+")", from, to, step)
		if err != nil {
			return time.Time{}, err
		}
		if len(list) > 0 && len(list[0].Points) > 0 && (first.IsZero() || list[0].Points[0].Time.Before(first)) {
			first = list[0].Points[0].Time
		}
	}
	return first, nil
}

// Days returns the midnights (UTC) within a period: the edges that keep queries short.
func Days(from, to time.Time) []time.Time {
	var out []time.Time
	for t := from.UTC().Truncate(day).Add(day); t.Before(to); t = t.Add(day) {
		out = append(out, t)
	}
	return out
}
