// Package tokens divides the bill of GPUs among the models that were served on them, and says what a million
// tokens of each cost.
package tokens

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
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
func (w InputWeight) of(t serving.Tokens) int64 {
	return int64(w)*max(0, t.In.N-t.Cached.N) + 1000*t.Out.N
}

// Row is what an engine counted of a model for a workload, and what its part of the workload's
// devices cost.
type Row struct {
	serving.Engine

	Labels query.Labels // of the engine's series, with the model and the engine, and of its devices
	cost.Amounts
	serving.Tokens

	devices map[string]bool // see fleet.DeviceKey
	billed  bool            // the bill has a device of the engine
}

// Bill is what the inference engines of a fleet counted and cost in a period.
type Bill struct {
	From        time.Time
	To          time.Time
	Currency    string
	InputWeight InputWeight
	// Rows are those of engines and models, in order. Their amounts add up to those of the devices that
	// the engines work on, as far as the workloads of the engines hold them.
	Rows []Row
}

// servedKey identifies a row.
type servedKey struct {
	engine serving.Engine
	owner  string // ID
	model  string
	tenant string
}

func (k servedKey) compare(o servedKey) int {
	return cmp.Or(k.engine.Compare(o.engine), cmp.Compare(k.owner, o.owner), cmp.Compare(k.model, o.model), cmp.Compare(k.tenant, o.tenant))
}

// seat is what a workload holds of a device or partition.
type seat struct{ device, partition, owner string }

// Divide divides the bill of a period among the models that were served in it. The money of what a workload
// holds of a device that an engine of the workload works on belongs to the models of the engine. Several of them
// divide it by weighted tokens, the tokens of an engine counting equally for each of its devices; if nobody has
// tokens, each has the same part. Tenants are divided like models where an engine says who asked; where only a gateway does,
// see byTenant.
func Divide(s *cost.Statement, use *serving.TokenUse, w InputWeight) *Bill {
	rows := servedRows(use)
	seats, width := seatsOf(use, rows)
	for i := range s.Rows {
		r := &s.Rows[i]
		owner, ok := fleet.OwnerOf(r.Labels)
		if !ok {
			continue
		}
		keys := seats[seat{r.Device(), r.Labels[fleet.LabelPartition], owner.ID}]
		if len(keys) == 0 {
			continue
		}
		weights := make([]uint64, len(keys))
		for j, key := range keys {
			weights[j] = uint64(max(0, w.of(rows[key].Tokens)) / width[key])
		}
		for j, part := range r.Divide(weights) {
			x := rows[keys[j]]
			x.Amounts, x.billed = x.Add(part), true
			x.devices[r.Device()] = true
		}
	}
	out := &Bill{From: s.From, To: s.To, Currency: s.Currency, InputWeight: w}
	for _, key := range slices.SortedFunc(maps.Keys(rows), servedKey.compare) {
		// An engine that had neither tokens nor a part of a device says nothing, such as one that failed to start
		// before another one did.
		if r := rows[key]; r.Amounts != (cost.Amounts{}) || r.In.Known || r.Out.Known || r.Finished.Known {
			out.Rows = append(out.Rows, *r)
		}
	}
	out.Rows = byTenant(out.Rows, use.Gateways, w)
	return out
}

// servedRows returns the rows without amounts.
func servedRows(use *serving.TokenUse) map[servedKey]*Row {
	rows := map[servedKey]*Row{}
	add := func(e serving.Engine, owner, model, tenant, provider string, l query.Labels) *Row {
		key := servedKey{e, owner, model, tenant}
		if rows[key] == nil {
			labels := query.Labels{}
			maps.Copy(labels, l)
			labels[fleet.LabelServedModel], labels[fleet.LabelTenant], labels[fleet.LabelProvider] = model, tenant, provider
			rows[key] = &Row{Engine: e, Labels: labels, devices: map[string]bool{}}
		}
		return rows[key]
	}
	named := map[servedKey]bool{} // engines with a model, without the model and the tenant
	for i := range use.Rows {
		r := &use.Rows[i]
		x := add(r.Engine, r.Owner.ID, r.Model, r.Tenant, r.Provider, r.Labels)
		x.Tokens = x.Plus(r.Tokens)
		named[servedKey{engine: r.Engine, owner: r.Owner.ID}] = true
	}
	for i := range use.Works {
		// An engine that counted nothing, such as one that was starting: its devices cost nevertheless.
		if w := &use.Works[i]; !named[servedKey{engine: w.Engine, owner: w.Owner.ID}] {
			add(w.Engine, w.Owner.ID, w.Model, "", w.Provider, w.Labels)
		}
	}
	return rows
}

// seatsOf returns the rows by what their workloads hold of devices, and the number of seats of each row.
func seatsOf(use *serving.TokenUse, rows map[servedKey]*Row) (seats map[seat][]servedKey, width map[servedKey]int64) {
	models := map[servedKey][]servedKey{} // by engine and owner
	for _, key := range slices.SortedFunc(maps.Keys(rows), servedKey.compare) {
		of := servedKey{engine: key.engine, owner: key.owner}
		models[of] = append(models[of], key)
	}
	seats, width = map[seat][]servedKey{}, map[servedKey]int64{}
	for i := range use.Works {
		w := &use.Works[i]
		if !fleet.IsWorkload(w.Owner.Kind) {
			continue // nobody knows which part of the device it holds
		}
		at := seat{w.Device, w.Partition, w.Owner.ID}
		for _, key := range models[servedKey{engine: w.Engine, owner: w.Owner.ID}] {
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
