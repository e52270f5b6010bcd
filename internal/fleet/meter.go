package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

const (
	// fresh is how much an account may have accrued when the store first sees it and still be
	// counted from zero. An account with more started before the store knew it: only later
	// growth counts, and the rest is reported as Unseen.
	fresh = Seconds(3600e6)
	// behind is how long, and how far, one path to a store may lag behind another.
	behind = 5 * time.Minute
	// back is how far before an edge samples are considered.
	back = time.Hour
	// DefaultMemory is how far before a period the store is searched for an account that has
	// been silent. An account silent for longer counts from where it reappears.
	DefaultMemory = 31 * 24 * time.Hour
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

// Meter converts the counters of accounts to usage between two moments. Each increase is the
// difference of two states of the counters, so splitting a period at any moment yields two parts
// that add up to the whole.
//
// A Meter is not safe for concurrent use.
type Meter struct {
	store query.Store
	o     MeterOptions

	sums  map[string]*known // by account, at the start of the period
	rows  map[string]query.Labels
	edges map[time.Time]edge // the ends of the period

	unseen  Unseen
	refused int
	count   func(row query.Labels, from, to Sums)
}

// NewMeter returns a Meter of the counters in store.
func NewMeter(store query.Store, o MeterOptions) *Meter {
	o.Memory = cmp.Or(o.Memory, DefaultMemory)
	return &Meter{store: store, o: o, sums: map[string]*known{}, rows: map[string]query.Labels{}}
}

// Unseen returns the usage that the periods read so far exclude.
func (m *Meter) Unseen() Unseen { return m.unseen }

// Refused returns how many values were rejected because no counter can have them.
func (m *Meter) Refused() int { return m.refused }

// Known reports whether the store had any account at the start of the last period.
func (m *Meter) Known() bool { return len(m.sums) > 0 }

// known has the counters of an account at an edge.
type known struct {
	Sums
	series   int
	labels   query.Labels // of its last series
	instance string       // key of its workload instance
}

// seen has the counters of an account in a period.
type seen struct {
	Sums     // at the end
	low      Seconds
	row      string
	series   int
	labels   query.Labels // of its last series
	resets   bool
	uuid     string
	instance string // key of its workload instance
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

// over evaluates a function over the samples of a range that ends at a moment. The last value
// at an edge is the one between its samples.
func (m *Meter) over(ctx context.Context, f, name string, d time.Duration, at time.Time, more ...string) ([]query.Sample, error) {
	list, err := m.store.Instant(ctx, over(f, m.selector(name, more...), query.Duration(d)), at)
	if err != nil || f != "last_over_time" {
		return list, err
	}
	return m.edges[at].move(name, list, len(more) == 0), nil
}

// held is over for both device time counters.
func (m *Meter) held(ctx context.Context, f string, d time.Duration, at time.Time, more ...string) ([]query.Sample, error) {
	var out []query.Sample
	for _, name := range m.heldSeries() {
		list, err := m.over(ctx, f, name, d, at, more...)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return out, nil
}

// Between calls count for every increase of an account in (from, to], with the labels of its row
// and the counters before and after. A row may have several consecutive increases. The period
// should not exceed a day, because stores limit how much one query may read.
func (m *Meter) Between(ctx context.Context, from, to time.Time, count func(row query.Labels, from, to Sums)) error {
	m.count = count
	if err := m.split(ctx, from, to); err != nil {
		return err
	}
	if err := m.begin(ctx, from); err != nil {
		return err
	}
	found, err := m.look(ctx, from, to)
	if err != nil {
		return err
	}
	silent, err := m.silent(ctx, found, from)
	if err != nil {
		return err
	}
	raw := m.unexplained(found, silent)
	var old []string
	for _, key := range slices.Sorted(maps.Keys(found)) {
		s, k := found[key], m.sums[key]
		switch {
		case raw[s.instance]:
		case k == nil && s.low > fresh:
			old = append(old, key)
		case k == nil:
			m.add(s.row, Sums{}, s.Sums)
		default:
			m.add(s.row, k.Sums, s.with(k.with(s.Sums)))
		}
	}
	if err := m.late(ctx, found, old, from, to); err != nil {
		return err
	}
	return m.fold(ctx, raw, found, silent, from, to)
}

func (m *Meter) add(row string, from, to Sums) { m.count(m.rows[row], from, to) }

// begin reads the counters at an edge. It looks back further than the five minutes of an instant
// query: the series of ended workloads are stale by then.
func (m *Meter) begin(ctx context.Context, at time.Time) error {
	clear(m.sums)
	held, err := m.held(ctx, "last_over_time", back, at)
	if err != nil {
		return err
	}
	for _, s := range held {
		if v, ok := micro(s.Value); ok {
			key := Account(s.Labels)
			if m.sums[key] == nil {
				m.sums[key] = &known{instance: Instance(s.Labels)}
			}
			m.sums[key].Held, m.sums[key].labels = v, s.Labels
			m.sums[key].series++
		}
	}
	others, err := m.others(ctx, "last_over_time", back, at)
	if err != nil {
		return err
	}
	for key, k := range m.sums {
		k.Sums = k.with(others[key])
	}
	return nil
}

// others evaluates a function over the counters other than held time. An account with several
// series is read again sample by sample.
func (m *Meter) others(ctx context.Context, f string, d time.Duration, at time.Time) (map[string]Sums, error) {
	out := map[string]Sums{}
	active, err := m.over(ctx, f, SeriesActiveTime, d, at)
	if err != nil {
		return nil, err
	}
	for _, s := range active {
		if v, ok := micro(s.Value); ok {
			key := Account(s.Labels)
			out[key] = out[key].with(Sums{Active: v, HasActive: true})
		}
	}
	energy, err := m.over(ctx, f, SeriesEnergy, d, at)
	if err != nil {
		return nil, err
	}
	for _, s := range energy {
		if v, ok := milli(s.Value); ok {
			key := Account(s.Labels)
			out[key] = out[key].with(Sums{Energy: v, HasEnergy: true})
		}
	}
	return out, nil
}

// leads reports whether the edges of a period fully explain an account: it has one series, the same
// as before, was not reset, and has the same counters as before. Between two series no function of
// PromQL sees a reset.
func (k *known) leads(s *seen) bool {
	return k.series == 1 && sameSeries(k.labels, s.labels) && s.low >= k.Held && !s.below(k.Sums) && (k.HasActive || !s.HasActive) && (k.HasEnergy || !s.HasEnergy)
}

// look reads what counters did between two edges.
func (m *Meter) look(ctx context.Context, from, to time.Time) (map[string]*seen, error) {
	d := to.Sub(from)
	last, err := m.held(ctx, "last_over_time", d, to)
	if err != nil {
		return nil, err
	}
	found := map[string]*seen{}
	for _, s := range last {
		v, ok := micro(s.Value)
		if !ok {
			m.refused++
			continue
		}
		labels := Row(s.Labels)
		key, row := Account(labels), m.row(labels)
		if found[key] == nil {
			found[key] = &seen{low: v, row: row, uuid: labels[LabelUUID], instance: Instance(labels)}
		}
		found[key].Held, found[key].labels = v, s.Labels
		found[key].series++
	}
	low, err := m.held(ctx, "min_over_time", d, to)
	if err != nil {
		return nil, err
	}
	for _, s := range low {
		if v, ok := micro(s.Value); ok {
			if f := found[Account(s.Labels)]; f != nil {
				f.low = min(f.low, v)
			}
		}
	}
	for _, name := range append(m.heldSeries(), SeriesActiveTime, SeriesEnergy) {
		resets, err := m.over(ctx, "resets", name, d+back, to) // including resets across the edge
		if err != nil {
			return nil, err
		}
		for _, s := range resets {
			if f := found[Account(s.Labels)]; f != nil && s.Value > 0 {
				f.resets = true
			}
		}
	}
	others, err := m.others(ctx, "last_over_time", d, to)
	if err != nil {
		return nil, err
	}
	for key, f := range found {
		f.Sums = f.with(others[key])
	}
	return found, nil
}

// silent finds the accounts that are unknown at the edge although the store knew them before.
func (m *Meter) silent(ctx context.Context, found map[string]*seen, at time.Time) (map[string]bool, error) {
	groups := map[string][]string{} // values by label
	for key, f := range found {
		if m.sums[key] != nil {
			continue
		}
		labels := m.rows[f.row]
		label := LabelUUID
		for _, id := range identities {
			if labels[id] != "" {
				label = id
				break
			}
		}
		groups[label] = append(groups[label], labels[label])
	}
	out := map[string]bool{}
	for _, label := range slices.Sorted(maps.Keys(groups)) {
		for _, match := range AnyOf(label, groups[label]) {
			more := []string{match}
			if label == LabelUUID { // accounts without an identity of their own, such as free time
				more = append(more, Equals(LabelPodUID, ""), Equals(LabelSlurmJob, ""), Equals(LabelContainerID, ""))
			}
			list, err := m.held(ctx, "last_over_time", m.o.Memory, at, more...)
			if err != nil {
				return nil, err
			}
			for _, s := range list {
				if key := Account(s.Labels); found[key] != nil && m.sums[key] == nil {
					out[key] = true
				}
			}
		}
	}
	return out, nil
}

// late counts accounts whose start the store missed from their first sample.
func (m *Meter) late(ctx context.Context, found map[string]*seen, old []string, from, to time.Time) error {
	if len(old) == 0 {
		return nil
	}
	others, err := m.others(ctx, "min_over_time", to.Sub(from), to)
	if err != nil {
		return err
	}
	for _, key := range old {
		s := found[key]
		m.missed(s.row, s.low)
		m.add(s.row, Sums{Held: s.low}.with(others[key]), s.Sums)
	}
	return nil
}

// missed records the device time of an account whose start the store missed.
func (m *Meter) missed(row string, held Seconds) {
	m.unseen.Accounts++
	m.unseen.Held += held
	if m.o.Late != nil {
		m.o.Late(m.rows[row], held)
	}
}

// row returns the key of the row with these labels.
func (m *Meter) row(labels query.Labels) string {
	key := labels.Key()
	if m.rows[key] == nil {
		m.rows[key] = labels
	}
	return key
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
	for t := from.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour); t.Before(to); t = t.Add(24 * time.Hour) {
		out = append(out, t)
	}
	return out
}
