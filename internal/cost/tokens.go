package cost

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// InputWeight is what a token of a prompt counts, in thousandths of a token of output, where a device is
// divided among models. Prompts are computed many tokens at a time, so they are cheaper. Tokens that a prefix
// cache had count nothing.
type InputWeight int64

// DefaultInputWeight is the relation of list prices: most providers charge four to five times as much for
// output.
const DefaultInputWeight InputWeight = 200

// MaxInputWeight is a token of output.
const MaxInputWeight InputWeight = 1000

// Float returns the weight as a part of a token of output.
func (w InputWeight) Float() float64 { return float64(w) / 1000 }

// Text says how the tokens of prompts count.
func (w InputWeight) Text() string {
	return fmt.Sprintf("A token of a prompt counts as %g of a token of output, and nothing if the prefix cache had it.", w.Float())
}

// of returns the weighted tokens, in thousandths of a token of output.
func (w InputWeight) of(t fleet.Tokens) int64 {
	return int64(w)*max(0, t.In.N-t.Cached.N) + 1000*t.Out.N
}

// ServedRow is what an engine counted of a model for a workload, and what its part of the workload's
// devices cost.
type ServedRow struct {
	fleet.Engine

	Labels query.Labels // of the engine's series, with the model and the engine, and of its devices
	Amounts
	fleet.Tokens

	devices map[string]bool // see fleet.DeviceKey
	billed  bool            // the bill has a device of the engine
}

// Serving is what the inference engines of a fleet counted and cost in a period.
type Serving struct {
	From        time.Time
	To          time.Time
	Currency    string
	InputWeight InputWeight
	// Rows are those of engines and models, in order. Their amounts add up to those of the devices that
	// the engines work on, as far as the workloads of the engines hold them.
	Rows []ServedRow
}

// servedKey identifies a row.
type servedKey struct {
	engine fleet.Engine
	owner  string // ID
	model  string
}

func (k servedKey) compare(o servedKey) int {
	return cmp.Or(k.engine.Compare(o.engine), cmp.Compare(k.owner, o.owner), cmp.Compare(k.model, o.model))
}

// seat is what a workload holds of a device or partition.
type seat struct{ device, partition, owner string }

// Serve divides the bill of a period among the models that were served in it. The money of what a workload
// holds of a device that an engine of the workload works on belongs to the models of the engine. Several of them
// divide it by weighted tokens, the tokens of an engine counting equally for each of its devices; if nobody has
// tokens, each has the same part.
func Serve(s *Statement, use *fleet.TokenUse, w InputWeight) *Serving {
	rows := servedRows(use)
	seats, width := seatsOf(use, rows)
	for i := range s.Rows {
		r := &s.Rows[i]
		owner, ok := fleet.OwnerOf(r.Labels)
		if !ok {
			continue
		}
		keys := seats[seat{r.about().device, r.Labels[fleet.LabelPartition], owner.ID}]
		if len(keys) == 0 {
			continue
		}
		weights := make([]uint64, len(keys))
		for j, key := range keys {
			weights[j] = uint64(max(0, w.of(rows[key].Tokens)) / width[key])
		}
		for j, part := range r.divide(weights) {
			x := rows[keys[j]]
			x.Amounts, x.billed = x.Add(part), true
			x.devices[r.about().device] = true
		}
	}
	out := &Serving{From: s.From, To: s.To, Currency: s.Currency, InputWeight: w}
	for _, key := range slices.SortedFunc(maps.Keys(rows), servedKey.compare) {
		// An engine that had neither tokens nor a part of a device says nothing, such as one that failed to start
		// before another one did.
		if r := rows[key]; r.Amounts != (Amounts{}) || r.In.Known || r.Out.Known || r.Finished.Known {
			out.Rows = append(out.Rows, *r)
		}
	}
	return out
}

// servedRows returns the rows without amounts.
func servedRows(use *fleet.TokenUse) map[servedKey]*ServedRow {
	rows := map[servedKey]*ServedRow{}
	add := func(e fleet.Engine, owner, model, provider string, l query.Labels) *ServedRow {
		key := servedKey{e, owner, model}
		if rows[key] == nil {
			labels := query.Labels{}
			maps.Copy(labels, l)
			labels[fleet.LabelServedModel], labels[fleet.LabelProvider] = model, provider
			rows[key] = &ServedRow{Engine: e, Labels: labels, devices: map[string]bool{}}
		}
		return rows[key]
	}
	named := map[servedKey]bool{} // engines with a model, without the model
	for i := range use.Rows {
		r := &use.Rows[i]
		x := add(r.Engine, r.Owner.ID, r.Model, r.Provider, r.Labels)
		x.Tokens = x.Plus(r.Tokens)
		named[servedKey{r.Engine, r.Owner.ID, ""}] = true
	}
	for i := range use.Works {
		// An engine that counted nothing, such as one that was starting: its devices cost nevertheless.
		if w := &use.Works[i]; !named[servedKey{w.Engine, w.Owner.ID, ""}] {
			add(w.Engine, w.Owner.ID, w.Model, w.Provider, w.Labels)
		}
	}
	return rows
}

// seatsOf returns the rows by what their workloads hold of devices, and the number of seats of each row.
func seatsOf(use *fleet.TokenUse, rows map[servedKey]*ServedRow) (seats map[seat][]servedKey, width map[servedKey]int64) {
	models := map[servedKey][]servedKey{} // by engine and owner
	for _, key := range slices.SortedFunc(maps.Keys(rows), servedKey.compare) {
		of := servedKey{key.engine, key.owner, ""}
		models[of] = append(models[of], key)
	}
	seats, width = map[seat][]servedKey{}, map[servedKey]int64{}
	for i := range use.Works {
		w := &use.Works[i]
		if !fleet.IsWorkload(w.Owner.Kind) {
			continue // nobody knows which part of the device it holds
		}
		at := seat{w.Device, w.Partition, w.Owner.ID}
		for _, key := range models[servedKey{w.Engine, w.Owner.ID, ""}] {
			x := rows[key]
			if x.Labels[fleet.LabelModel] == "" {
				x.Labels[fleet.LabelModel] = w.Labels[fleet.LabelModel]
			}
			if !slices.Contains(seats[at], key) {
				seats[at] = append(seats[at], key)
				width[key]++
			}
		}
	}
	for _, keys := range seats {
		slices.SortFunc(keys, servedKey.compare)
	}
	return seats, width
}

// divide divides amounts in proportion to weights, equally if all are 0. The parts add up to the amounts
// exactly.
func (a Amounts) divide(weights []uint64) []Amounts {
	var all uint64
	for _, w := range weights {
		all += w
	}
	if all == 0 {
		weights = slices.Repeat([]uint64{1}, len(weights))
		all = uint64(len(weights))
	}
	out := make([]Amounts, len(weights))
	var upto uint64
	before := Amounts{}
	for i, w := range weights {
		upto += w
		now := a.portion(upto, all)
		out[i], before = now.Add(before.neg()), now
	}
	return out
}

// portion returns a*part/all, each amount rounded toward 0; part is at most all.
func (a Amounts) portion(part, all uint64) Amounts {
	return Amounts{
		portion(a.Used, part, all), portion(a.Idle, part, all), portion(a.Unmeasured, part, all), portion(a.Unallocated, part, all),
		portion(a.Energy, part, all), portion(a.Carbon, part, all),
		portion(a.UsedCost, part, all), portion(a.IdleCost, part, all), portion(a.UnmeasuredCost, part, all), portion(a.UnallocatedCost, part, all), portion(a.EnergyCost, part, all),
		portion(a.NotSeen, part, all), portion(a.NotSeenCost, part, all), portion(a.Unpriced, part, all), portion(a.UnpricedEnergy, part, all), portion(a.Uncounted, part, all),
	}
}

func portion[T ~int64](v T, part, all uint64) T {
	if v < 0 { // floating-point counters can make idle time a little negative
		return -portion(-v, part, all)
	}
	hi, lo := bits.Mul64(uint64(v), part)
	q, _ := bits.Div64(hi, lo, all)
	return T(q)
}
