package cost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// The counters that a bill is made of. Idle time is what is left of held time: an agent
// works it out so, and one counter less cannot differ.
const (
	heldSeries   = "gpu_workload_allocated_time_seconds_total"
	activeSeries = "gpu_workload_active_time_seconds_total"
	energySeries = "gpu_workload_energy_joules_total"
)

// Options of a bill.
type Options struct {
	// Match are labels that a series must have, such as gpu_workload_team of a tenant.
	Match map[string]string
	// Memory is how long before a period a sum is looked for that was silent since. 0: 31
	// days. A sum that was silent for longer counts from where it is seen again.
	Memory time.Duration
}

// maxEdges of a period: a price that changes every hour of a quarter has fewer.
const maxEdges = 5000

// Bill says what was used in (from, to], to the millisecond, and what it cost. For every
// moment between, the bills of the two parts add up to that of the whole.
func Bill(ctx context.Context, store query.Store, p Prices, from, to time.Time, o Options) (Statement, error) {
	from, to = from.UTC().Truncate(time.Millisecond), to.UTC().Truncate(time.Millisecond)
	if !from.Before(to) {
		return Statement{}, errors.New("the period of a bill must end after it begins")
	}
	o.Memory = cmp.Or(o.Memory, 31*24*time.Hour)
	b := &biller{store: store, prices: p, o: o, sums: map[string]*known{}, rows: map[string]*Row{}, tariffs: map[string]tariff{}}
	edges := p.edges(from, to)
	if len(edges) > maxEdges {
		return Statement{}, fmt.Errorf("prices change %d times in this period, over %d: ask for a shorter one", len(edges), maxEdges)
	}
	empty := false
	for i, edge := range edges[1:] {
		clear(b.tariffs)
		if err := b.chunk(ctx, edges[i], edge); err != nil {
			return Statement{}, err
		}
		empty = empty || i == 0 && len(b.sums) == 0
	}
	s := b.statement(from, to)
	if empty && len(s.Rows) > 0 {
		var err error
		if s.Since, err = b.since(ctx, from, to); err != nil {
			return Statement{}, err
		}
	}
	return s, nil
}

// edges are the ends of a period, all changes of prices in it, and each midnight, so that
// no question is about more than a day.
func (p Prices) edges(from, to time.Time) []time.Time {
	out := []time.Time{from, to}
	for _, t := range p.changes {
		if t.After(from) && t.Before(to) {
			out = append(out, t)
		}
	}
	for t := from.Truncate(24 * time.Hour).Add(24 * time.Hour); t.Before(to); t = t.Add(24 * time.Hour) {
		out = append(out, t)
	}
	slices.SortFunc(out, time.Time.Compare)
	return slices.CompactFunc(out, time.Time.Equal)
}

// biller works out one bill, edge by edge.
type biller struct {
	store  query.Store
	prices Prices
	o      Options

	sums    map[string]*known // at the edge where a chunk begins
	rows    map[string]*Row
	tariffs map[string]tariff // of rows, in a chunk

	older   int
	olderOn Seconds
	refused int
}

// known is a sum at an edge.
type known struct {
	sums
	series int
}

// seen is a sum in a chunk.
type seen struct {
	sums   // where it stands at the end
	low    Seconds
	row    string
	series int
	resets bool
	uuid   string
}

// selector is a plain selector of a counter, with more matchers.
func (b *biller) selector(name string, more ...string) string {
	return selector(name, b.o.Match, more...)
}

func selector(name string, match map[string]string, more ...string) string {
	var parts []string
	for _, label := range slices.Sorted(maps.Keys(match)) {
		parts = append(parts, label+"="+strconv.Quote(match[label]))
	}
	parts = append(parts, more...)
	if len(parts) == 0 {
		return name
	}
	return name + "{" + strings.Join(parts, ",") + "}"
}

// over evaluates a function of the samples in the time before a moment.
func (b *biller) over(ctx context.Context, f, name string, d time.Duration, at time.Time, more ...string) ([]query.Sample, error) {
	return b.store.Instant(ctx, f+"("+b.selector(name, more...)+"["+query.Duration(d)+"])", at)
}

// begin learns where sums stand at an edge. It looks back further than a store's five
// minutes: sums of what has ended are there no more.
func (b *biller) begin(ctx context.Context, at time.Time) error {
	clear(b.sums)
	held, err := b.over(ctx, "last_over_time", heldSeries, back, at)
	if err != nil {
		return err
	}
	for _, s := range held {
		if v, ok := micro(s.Value); ok {
			key := sumKey(s.Labels)
			if b.sums[key] == nil {
				b.sums[key] = &known{}
			}
			b.sums[key].held = v
			b.sums[key].series++
		}
	}
	others, err := b.others(ctx, "last_over_time", back, at)
	if err != nil {
		return err
	}
	for key, k := range b.sums {
		k.sums = k.with(others[key])
	}
	return nil
}

// others evaluates a function of the counters that go with that of held time. What comes
// by several series is looked at again.
func (b *biller) others(ctx context.Context, f string, d time.Duration, at time.Time) (map[string]sums, error) {
	out := map[string]sums{}
	active, err := b.over(ctx, f, activeSeries, d, at)
	if err != nil {
		return nil, err
	}
	for _, s := range active {
		if v, ok := micro(s.Value); ok {
			key := sumKey(s.Labels)
			out[key] = out[key].with(sums{active: v, hasActive: true})
		}
	}
	energy, err := b.over(ctx, f, energySeries, d, at)
	if err != nil {
		return nil, err
	}
	for _, s := range energy {
		if v, ok := milli(s.Value); ok {
			key := sumKey(s.Labels)
			out[key] = out[key].with(sums{energy: v, hasEnergy: true})
		}
	}
	return out, nil
}

// chunk counts what happened between two edges, in which no price changes. It needs
// nothing from the chunk before: an edge is the same for both.
func (b *biller) chunk(ctx context.Context, from, to time.Time) error {
	if err := b.begin(ctx, from); err != nil {
		return err
	}
	found, err := b.look(ctx, from, to)
	if err != nil {
		return err
	}
	silent, err := b.silent(ctx, found, from)
	if err != nil {
		return err
	}
	var raw, old []string
	for _, key := range slices.Sorted(maps.Keys(found)) {
		s, k := found[key], b.sums[key]
		switch {
		case s.resets || s.series > 1 || silent[key] || k != nil && !k.leads(s):
			raw = append(raw, key)
		case k == nil && s.low > fresh:
			old = append(old, key)
		case k == nil:
			b.count(s.row, from, sums{}, s.sums)
		default:
			b.count(s.row, from, k.sums, s.with(k.with(s.sums)))
		}
	}
	if err := b.unseen(ctx, found, old, from, to); err != nil {
		return err
	}
	return b.fold(ctx, raw, found, silent, from, to)
}

// leads reports whether the edges of a chunk say all of a sum: it comes by one way, did not
// go back, and has the counters that it had.
func (k *known) leads(s *seen) bool {
	return k.series == 1 && s.low >= k.held && !s.below(k.sums) && (k.hasActive || !s.hasActive) && (k.hasEnergy || !s.hasEnergy)
}

// look asks what sums did between two edges.
func (b *biller) look(ctx context.Context, from, to time.Time) (map[string]*seen, error) {
	d := to.Sub(from)
	last, err := b.over(ctx, "last_over_time", heldSeries, d, to)
	if err != nil {
		return nil, err
	}
	found := map[string]*seen{}
	for _, s := range last {
		v, ok := micro(s.Value)
		if !ok {
			b.refused++
			continue
		}
		labels := rowLabels(s.Labels)
		key, row := sumKey(labels), b.row(labels)
		if found[key] == nil {
			found[key] = &seen{low: v, row: row, uuid: labels["gpu_uuid"]}
		}
		found[key].held = v
		found[key].series++
	}
	low, err := b.over(ctx, "min_over_time", heldSeries, d, to)
	if err != nil {
		return nil, err
	}
	for _, s := range low {
		if v, ok := micro(s.Value); ok {
			if f := found[sumKey(s.Labels)]; f != nil {
				f.low = min(f.low, v)
			}
		}
	}
	for _, name := range []string{heldSeries, activeSeries, energySeries} {
		resets, err := b.over(ctx, "resets", name, d+back, to) // also those over the edge
		if err != nil {
			return nil, err
		}
		for _, s := range resets {
			if f := found[sumKey(s.Labels)]; f != nil && s.Value > 0 {
				f.resets = true
			}
		}
	}
	others, err := b.others(ctx, "last_over_time", d, to)
	if err != nil {
		return nil, err
	}
	for key, f := range found {
		f.sums = f.with(others[key])
	}
	return found, nil
}

// silent finds those of the sums that are not known at the edge which the store knew
// before.
func (b *biller) silent(ctx context.Context, found map[string]*seen, at time.Time) (map[string]bool, error) {
	groups := map[string][]string{} // values by label
	for key, f := range found {
		if b.sums[key] != nil {
			continue
		}
		labels := b.rows[f.row].Labels
		label := "gpu_uuid"
		for _, id := range []string{"k8s_pod_uid", "slurm_job_id", "container_id"} {
			if labels[id] != "" {
				label = id
				break
			}
		}
		groups[label] = append(groups[label], labels[label])
	}
	out := map[string]bool{}
	for _, label := range slices.Sorted(maps.Keys(groups)) {
		for _, match := range anyOf(label, groups[label]) {
			more := []string{match}
			if label == "gpu_uuid" { // all that has no other name, such as what nobody holds
				more = append(more, `k8s_pod_uid=""`, `slurm_job_id=""`, `container_id=""`)
			}
			list, err := b.over(ctx, "last_over_time", heldSeries, b.o.Memory, at, more...)
			if err != nil {
				return nil, err
			}
			for _, s := range list {
				if key := sumKey(s.Labels); found[key] != nil && b.sums[key] == nil {
					out[key] = true
				}
			}
		}
	}
	return out, nil
}

// anyOf writes matchers for any of the values, in parts that stores accept.
func anyOf(label string, values []string) []string {
	slices.Sort(values)
	values = slices.Compact(values)
	var out []string
	for len(values) > 0 {
		n, size := 0, 0
		for n < len(values) && n < 200 && (n == 0 || size+len(values[n]) < 6000) {
			size += len(values[n])
			n++
		}
		quoted := make([]string, n)
		for i, v := range values[:n] {
			quoted[i] = regexp.QuoteMeta(v)
		}
		out = append(out, label+"=~"+strconv.Quote(strings.Join(quoted, "|")))
		values = values[n:]
	}
	return out
}

// unseen counts sums that the store did not see begin from where it first saw them.
func (b *biller) unseen(ctx context.Context, found map[string]*seen, old []string, from, to time.Time) error {
	if len(old) == 0 {
		return nil
	}
	others, err := b.others(ctx, "min_over_time", to.Sub(from), to)
	if err != nil {
		return err
	}
	for _, key := range old {
		s := found[key]
		b.older++
		b.olderOn += s.low
		b.count(s.row, from, sums{held: s.low}.with(others[key]), s.sums)
	}
	return nil
}

// count adds what was used between two states to a row.
func (b *biller) count(row string, at time.Time, from, to sums) {
	r := b.rows[row]
	t, ok := b.tariffs[row]
	if !ok {
		t.unallocated = r.Labels["gpu_workload_kind"] == "unallocated"
		t.price, t.priced = b.prices.At(r.Labels, at)
		t.power, _ = b.prices.PowerAt(r.Labels, at)
		b.tariffs[row] = t
	}
	r.Amounts = r.Add(t.between(from, to))
	r.counted = true
}

// row returns the key of the row with these labels.
func (b *biller) row(labels query.Labels) string {
	key := labels.Key()
	if b.rows[key] == nil {
		b.rows[key] = &Row{Labels: labels}
	}
	return key
}

// since returns about when the store begins to know anything.
func (b *biller) since(ctx context.Context, from, to time.Time) (time.Time, error) {
	step := max(time.Minute, (to.Sub(from) / 500).Truncate(time.Second))
	list, err := b.store.Range(ctx, "count("+b.selector(heldSeries)+")", from, to, step)
	if err != nil || len(list) == 0 || len(list[0].Points) == 0 {
		return time.Time{}, err
	}
	return list[0].Points[0].Time, nil
}
