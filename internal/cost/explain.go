package cost

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/natural"
	"github.com/gpumeter/gpumeter/internal/query"
)

// maxLines bounds an explanation: a month of 130 devices by the hour.
const maxLines = 100_000

// Sources of the usage of a line.
const (
	FromKept    = "kept"    // the store has kept the usage of the hour
	FromSamples = "samples" // it was computed from samples for this answer
)

// Explanation says how one row of a report was made. Its lines add up to Sum exactly.
type Explanation struct {
	Row      []string  `json:"row"` // the value of each dimension
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Currency string    `json:"currency"`
	Holders  []Holder  `json:"holders"` // by device, then time

	// Prices and Power are the entries of the price file that applied, Changes where one took the
	// place of another in the period.
	Prices  []Entry  `json:"prices"`
	Power   []Entry  `json:"power"`
	Changes []Change `json:"price_changes"`

	NotCounted NotCounted `json:"not_counted"`
	Sum        Amounts    `json:"sum"`
}

// Holder is a row of a bill: what held one device or partition, under the labels of the time.
type Holder struct {
	Node      string `json:"node"`
	Device    string `json:"device"`
	Partition string `json:"partition,omitempty"`
	Model     string `json:"model"`
	// Name is the workload, in parentheses what is not one, and Identity what identifies its instance
	// for ever: the UID of a pod and its container, a Slurm job, or a container ID.
	Name     string       `json:"name"`
	Team     string       `json:"team,omitempty"`
	Identity string       `json:"identity,omitempty"`
	Labels   query.Labels `json:"labels"`
	Lines    []Line       `json:"lines"`
	Sum      Amounts      `json:"sum"`

	key string // of Labels
}

// Line is an hour (UTC) or a part of one, or several consecutive hours at one price.
//
// Its money is the difference of the cost of the day's usage at both ends, so that lines add up. It
// may differ from device time times price by a millionth.
type Line struct {
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	Source string    `json:"source"`
	// Price and Power are the numbers of the entries that applied; 0: none.
	Price int `json:"price,omitempty"`
	Power int `json:"power,omitempty"`
	// PerHour is the price of a device hour, PerKWh that of energy if it is paid in addition.
	PerHour Nano `json:"per_hour,omitempty"`
	PerKWh  Nano `json:"per_kwh,omitempty"`
	Amounts
	Cost Money `json:"cost"` // of time and energy

	Start Edge `json:"start,omitzero"`
	End   Edge `json:"end,omitzero"`

	price, power entryKey
}

// NotCounted is what a row omits, as far as it belongs to the row's devices.
type NotCounted struct {
	// Twice is device time that was reported more than once, and counted once, by device. It may
	// belong to another row of the device.
	Twice map[string]Seconds `json:"reported_twice_seconds"`
	// Unseen is what counters of the row had accrued before the store first saw them, by device.
	Unseen map[string]fleet.Unseen `json:"unseen"`
	// Refused counts values that no counter can have: of the row's devices, or of the whole fleet if
	// RefusedAnywhere is set, because kept usage does not tell.
	Refused         int  `json:"refused"`
	RefusedAnywhere bool `json:"refused_anywhere,omitempty"`
}

// ExplainOptions says which row to explain.
type ExplainOptions struct {
	Options             // of the bill
	By      []Dimension // of the report
	Row     []string    // the value of each
	// Hourly lines are not merged.
	Hourly bool
}

// explainer collects the lines of an explanation from a biller.
type explainer struct {
	prices  Prices
	o       *ExplainOptions
	nameOf  func(Dimension, query.Labels) string
	known   map[fleet.RowKey]bool // whether a row belongs to it, by key
	devices map[string]bool       // by DeviceKey
	holders map[fleet.RowKey]*Holder
	lines   int
	out     *Explanation
}

// Explain returns how a row of a report was made. s is the bill of the report. The usage comes from
// the same meter as the bill, asked at every hour, and the money from the same biller.
func Explain(ctx context.Context, store query.Store, p Prices, s *Statement, o ExplainOptions) (*Explanation, error) {
	e := &explainer{prices: p, o: &o, nameOf: s.Apart(o.By), known: map[fleet.RowKey]bool{}, devices: map[string]bool{}, holders: map[fleet.RowKey]*Holder{}}
	e.out = &Explanation{
		Row: o.Row, From: s.From, To: s.To, Currency: s.Currency, Prices: []Entry{}, Power: []Entry{}, Changes: []Change{},
		NotCounted: NotCounted{Twice: map[string]Seconds{}, Unseen: map[string]fleet.Unseen{}},
	}
	var uuids []string
	for i := range s.Rows {
		if l := s.Rows[i].Labels; e.belongs(fleet.KeyOf(l), l) {
			e.devices[fleet.DeviceKey(l)] = true
			uuids = append(uuids, l[fleet.LabelUUID])
		}
	}
	edges := append(p.edges(s.From, s.To), hours(s.From, s.To)...)
	slices.SortFunc(edges, time.Time.Compare)
	edges = slices.CompactFunc(edges, time.Time.Equal)
	slices.Sort(uuids)
	uuids = slices.Compact(uuids)
	if n, ok := store.(narrower); ok {
		store = n.Narrow(uuids)
	}
	if fleet.Keeps(store) && len(o.Matchers) == 0 {
		e.out.NotCounted.RefusedAnywhere = true
		if err := e.read(ctx, store, o.Options, edges); err != nil {
			return nil, err
		}
	} else {
		for _, match := range fleet.AnyOf(fleet.LabelUUID, uuids) { // usage is computed for each device alone
			only := o.Options
			only.Matchers = slices.Concat(o.Matchers, []string{match})
			if err := e.read(ctx, store, only, edges); err != nil {
				return nil, err
			}
		}
	}
	e.order()
	if err := e.entries(); err != nil {
		return nil, err
	}
	return e.out, e.samples(ctx, store)
}

// narrower is a store that can answer for some devices alone.
type narrower interface {
	Narrow(uuids []string) query.Store
}

// hours returns the hours (UTC) within a period.
func hours(from, to time.Time) []time.Time {
	var out []time.Time
	for t := from.Truncate(time.Hour).Add(time.Hour); t.Before(to); t = t.Add(time.Hour) {
		out = append(out, t)
	}
	return out
}

// belongs reports whether a row of the bill belongs to the row of the report.
func (e *explainer) belongs(key fleet.RowKey, l query.Labels) bool {
	yes, ok := e.known[key]
	if !ok {
		yes = true
		for i, d := range e.o.By {
			yes = yes && e.nameOf(d, l) == e.o.Row[i]
		}
		e.known[key] = yes
	}
	return yes
}

// read bills the time between the edges.
func (e *explainer) read(ctx context.Context, store query.Store, o Options, edges []time.Time) error {
	begun := false
	o.Late = func(row query.Labels, held Seconds) {
		if begun && e.belongs(fleet.KeyOf(row), row) {
			u := e.out.NotCounted.Unseen[row[fleet.LabelUUID]]
			u.Accounts++
			u.Held += held
			e.out.NotCounted.Unseen[row[fleet.LabelUUID]] = u
		}
	}
	meter := fleet.NewMeter(store, o)
	twice := func(sign Seconds) {
		for device, t := range meter.Day().Twice {
			if e.devices[device] && t != 0 {
				uuid, _, _ := strings.Cut(device, "\xff")
				e.out.NotCounted.Twice[uuid] += sign * t
			}
		}
	}
	if midnight := edges[0].Truncate(24 * time.Hour); midnight.Before(edges[0]) { // the meter remembers the result
		if err := meter.Between(ctx, midnight, edges[0], func(*fleet.DayRow, fleet.Sums) {}); err != nil {
			return err
		}
		twice(-1)
	}
	refused := meter.Refused()
	begun = true
	b := newBiller(e.prices)
	for i, edge := range edges[1:] {
		b.at = edges[i]
		err := meter.Between(ctx, edges[i], edge, func(r *fleet.DayRow, from fleet.Sums) {
			if e.belongs(r.Key, r.Labels) {
				line := Line{From: edges[i], To: edge, Source: FromSamples}
				if !edge.After(meter.Day().Kept) {
					line.Source = FromKept
				}
				e.count(b, r, from, line)
			}
		})
		if err != nil {
			return err
		}
		if e.lines > maxLines {
			return fmt.Errorf("the explanation has more than %d lines: choose a shorter period, or a row with fewer devices", maxLines)
		}
		if i == len(edges)-2 || edge.Equal(edge.Truncate(24*time.Hour)) {
			twice(1)
		}
	}
	maps.DeleteFunc(e.out.NotCounted.Twice, func(_ string, t Seconds) bool { return t == 0 })
	e.out.NotCounted.Refused += meter.Refused() - refused
	return nil
}

// count lets the biller count, and adds a line with what that adds to the bill.
func (e *explainer) count(b *biller, r *fleet.DayRow, from fleet.Sums, line Line) {
	added, t := b.count(r, from)
	if line.Amounts = added; added == (Amounts{}) {
		return
	}
	line.Cost = line.Total()
	if t.priced {
		if line.PerHour = t.price.PerHour; t.price.Kind == Owned && t.power.Priced {
			line.PerKWh = t.price.PerKWh
		}
	}
	line.price, line.power = e.prices.entryAt(r.Labels, b.at)
	h := e.holders[r.Key]
	if h == nil {
		h = holderOf(r.Key.Value(), r.Labels)
		e.holders[r.Key] = h
	}
	h.Sum = h.Sum.Add(line.Amounts)
	e.out.Sum = e.out.Sum.Add(line.Amounts)
	if n := len(h.Lines); n > 0 && !e.o.Hourly && h.Lines[n-1].continues(&line) {
		last := &h.Lines[n-1]
		last.To, last.Amounts, last.Cost = line.To, last.Add(line.Amounts), last.Cost+line.Cost
		return
	}
	h.Lines = append(h.Lines, line)
	e.lines++
}

func holderOf(key string, l query.Labels) *Holder {
	h := &Holder{
		Node: fleet.NodeOf(l), Device: l[fleet.LabelUUID], Partition: l[fleet.LabelPartition], Model: l[fleet.LabelModel], Labels: l, key: key,
		Name: "(" + l[fleet.LabelKind] + ")",
	}
	if fleet.IsWorkload(l[fleet.LabelKind]) {
		h.Name, h.Team = workloadOf(l), fleet.TeamOf(l)
	}
	switch {
	case l[fleet.LabelPodUID] != "":
		h.Identity = "pod " + l[fleet.LabelPodUID]
		if c := l[fleet.LabelContainer]; c != "" {
			h.Identity += " container " + c
		}
	case l[fleet.LabelSlurmJob] != "":
		h.Identity = "Slurm job " + l[fleet.LabelSlurmJob]
	case l[fleet.LabelContainerID] != "":
		h.Identity = "container " + l[fleet.LabelContainerID]
	}
	return h
}

// continues reports whether the next line may be merged with l.
func (l *Line) continues(next *Line) bool {
	return l.To.Equal(next.From) && l.Source == next.Source && l.price == next.price && l.power == next.power
}

// order puts the holders in order.
func (e *explainer) order() {
	e.out.Holders = make([]Holder, 0, len(e.holders))
	for _, h := range e.holders {
		e.out.Holders = append(e.out.Holders, *h)
	}
	slices.SortFunc(e.out.Holders, func(a, b Holder) int {
		return cmp.Or(natural.Compare(a.Node, b.Node), cmp.Compare(a.Device, b.Device), natural.Compare(a.Partition, b.Partition),
			a.Lines[0].From.Compare(b.Lines[0].From), cmp.Compare(a.key, b.key))
	})
}

// Find returns the group of a report with this name: the values of the dimensions, separated by
// commas.
func (s *Statement) Find(row string, by ...Dimension) (Group, error) {
	groups := s.By(by...)
	var found []Group
	for _, g := range groups {
		if strings.Join(g.Keys, ",") == row {
			found = append(found, g)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Group{}, fmt.Errorf("%d rows are %.200q", len(found), row)
	case len(groups) == 0:
		return Group{}, fmt.Errorf("no row is %.200q: the report has none", row)
	}
	far := func(g Group) int {
		return distance(strings.ToLower(strings.Join(g.Keys, ",")), strings.ToLower(row))
	}
	slices.SortStableFunc(groups, func(a, b Group) int { return cmp.Compare(far(a), far(b)) })
	var near []string
	for _, g := range groups[:min(5, len(groups))] {
		near = append(near, fmt.Sprintf("%.200q", strings.Join(g.Keys, ",")))
	}
	return Group{}, fmt.Errorf("no row is %.200q: the closest are %s", row, strings.Join(near, ", "))
}
