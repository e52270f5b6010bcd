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
	return fmt.Sprintf("Weighted, a token of a prompt counts as %g of a token of output, and nothing if the prefix cache had it.", w.Float())
}

// of returns the weighted tokens, in thousandths of a token of output.
func (w InputWeight) of(t serving.Tokens) int64 {
	return int64(w)*max(0, t.In.N-t.Cached.N) + 1000*t.Out.N
}

// NoEngine is the model, engine and tenant of rows of Bill.Rest.
const NoEngine = "(no engine)"

// Row is what an engine counted of a model for a workload, and what its part of the workload's
// devices cost.
type Row struct {
	serving.Engine

	Labels query.Labels // of the engine's series, with the model and the engine, and of its devices
	cost.Amounts
	serving.Tokens

	key     servedKey
	devices []string // see fleet.DeviceKey; in order
	// Of the days that are in a cost per token, and in tokens per joule.
	paid, metered sums
	unbilled      int64 // tokens of days of which the bill has no device of the engine
}

// sums are what was paid, and what for.
type sums struct {
	cost.Amounts
	serving.Tokens
}

func (s sums) plus(a cost.Amounts, t serving.Tokens) sums { return sums{s.Add(a), s.Plus(t)} }

// Bill is what the inference engines of a fleet counted and cost in a period.
type Bill struct {
	From        time.Time
	To          time.Time
	Currency    string
	InputWeight InputWeight
	// Rows are those of engines and models, in order. Their amounts and those of Rest add up to the rows of the bill
	// of workloads with engines.
	Rows []Row
	// Rest has what these workloads held of devices while none of their engines worked on them, by workload and
	// device. It is in no model's cost.
	Rest []Row
	// Remote is the part of the time of Rows on machines without an engine of the workload.
	Remote cost.Seconds

	Missed  int // see serving.TokenUse
	Refused int
}

// servedKey identifies a row.
type servedKey struct {
	engine serving.Engine
	owner  string // ID
	model  string
	tenant string
	device string // of a row of Rest
}

func (k servedKey) compare(o servedKey) int {
	return cmp.Or(k.engine.Compare(o.engine), cmp.Compare(k.owner, o.owner), cmp.Compare(k.model, o.model), cmp.Compare(k.tenant, o.tenant), cmp.Compare(k.device, o.device))
}

// seat is what a workload holds of a device or partition.
type seat struct{ device, partition, owner string }

// working has the rows whose engines work somewhere, with the hours in which they do.
type working map[servedKey]serving.Hours

// in returns those of an hour, in order.
func (w working) in(hour serving.Hours) []servedKey {
	var out []servedKey
	for key, hours := range w {
		if hours.Has(hour) {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, servedKey.compare)
	return out
}

// division divides the bill of a day, or of a part of one.
type division struct {
	weight InputWeight
	rows   map[servedKey]*Row
	rest   map[servedKey]*Row
	remote cost.Seconds

	seats  map[seat]working
	owners map[string]working // by ID
	width  map[servedKey]int64
}

// Divide divides the bill of a day (UTC), or of a part of one, among the models that were served in it. The bill comes
// in parts: in each of them the same engines work on the same devices, see serving.TokenUse.
//
// The money of what a workload holds of a device in an hour in which an engine of the workload works on it belongs to
// the model of the engine. Several of them divide it by weighted tokens, the tokens of an engine counting equally for
// each hour on each of its devices; if nobody has tokens, each has the same part. Tenants are divided like models where
// an engine says who asked; where only a gateway does, see byTenant.
//
// What the workload holds at that time on machines without any engine of it belongs to its only model: of an engine
// that spans machines, one has the metrics. All else that it holds on the day is in Rest.
func Divide(parts []cost.Statement, use *serving.TokenUse, w InputWeight) *Bill {
	d := newDivision(parts, use, w)
	out := &Bill{InputWeight: w, Missed: use.Missed, Refused: use.Refused}
	for i := range parts {
		d.divide(&parts[i])
		if out.Currency = parts[i].Currency; i == 0 {
			out.From = parts[i].From
		}
		out.To = parts[i].To
	}
	for _, key := range slices.SortedFunc(maps.Keys(d.rows), servedKey.compare) {
		// An engine that had neither tokens nor a part of a device says nothing, such as one that failed to start
		// before another one did.
		if r := d.rows[key]; r.Amounts != (cost.Amounts{}) || r.In.Known || r.Out.Known || r.Finished.Known {
			out.Rows = append(out.Rows, *r)
		}
	}
	out.Rows = byTenant(out.Rows, use.Gateways, w)
	slices.SortStableFunc(out.Rows, func(a, b Row) int { return a.key.compare(b.key) })
	for i := range out.Rows {
		out.Rows[i].price()
	}
	for _, key := range slices.SortedFunc(maps.Keys(d.rest), servedKey.compare) {
		out.Rest = append(out.Rest, *d.rest[key])
	}
	out.Remote = d.remote
	return out
}

// price finds out whether a day is in a cost per token. Its tokens are those of priced and of free hours together, so
// it is only if it has a price as a whole.
func (r *Row) price() {
	switch {
	case len(r.devices) == 0:
		r.unbilled = r.In.N + r.Out.N
	case r.Unpriced == 0 && r.Time() > 0:
		r.paid = sums{r.Amounts, r.Tokens}
	}
	if r.Energy > 0 {
		r.metered = sums{r.Amounts, r.Tokens}
	}
}

func newDivision(parts []cost.Statement, use *serving.TokenUse, w InputWeight) *division {
	d := &division{weight: w, rows: servedRows(use), rest: map[servedKey]*Row{}, seats: map[seat]working{}, owners: map[string]working{}, width: map[servedKey]int64{}}
	models := map[servedKey][]servedKey{} // by engine and owner
	for _, key := range slices.SortedFunc(maps.Keys(d.rows), servedKey.compare) {
		of := servedKey{engine: key.engine, owner: key.owner}
		models[of] = append(models[of], key)
	}
	for i := range use.Works {
		x := &use.Works[i]
		if !fleet.IsWorkload(x.Owner.Kind) {
			continue // nobody knows which part of the device it holds
		}
		at := seat{x.Device, x.Partition, x.Owner.ID}
		if d.seats[at] == nil {
			d.seats[at] = working{}
		}
		if d.owners[x.Owner.ID] == nil {
			d.owners[x.Owner.ID] = working{}
		}
		for _, key := range models[servedKey{engine: x.Engine, owner: x.Owner.ID}] {
			if x.Model != "" && key.model != x.Model {
				continue // of another time: the engine began anew
			}
			if l := d.rows[key].Labels; l[fleet.LabelModel] == "" {
				l[fleet.LabelModel] = x.Labels[fleet.LabelModel]
			}
			d.seats[at][key] |= x.Hours
			d.owners[x.Owner.ID][key] |= x.Hours
		}
	}
	var billed serving.Hours
	for i := range parts {
		for at := parts[i].From.Truncate(time.Hour); at.Before(parts[i].To); at = at.Add(time.Hour) {
			billed |= serving.HourOf(at)
		}
	}
	for _, rows := range d.seats {
		for key, hours := range rows {
			d.width[key] += int64((hours & billed).Len())
		}
	}
	return d
}

// divide divides a part of the bill.
func (d *division) divide(s *cost.Statement) {
	hour := serving.HourOf(s.From)
	present := map[string][]servedKey{} // by owner, where that was asked
	remote := map[string]cost.Amounts{} // by owner: the same rows divide all of it
	for i := range s.Rows {
		r := &s.Rows[i]
		owner, ok := fleet.OwnerOf(r.Labels)
		all, serves := d.owners[owner.ID]
		if !ok || !serves {
			continue
		}
		if keys := d.seats[seat{r.Device(), r.Labels[fleet.LabelPartition], owner.ID}].in(hour); len(keys) > 0 {
			d.share(r.Amounts, keys)
			for _, key := range keys {
				d.rows[key].on(r.Device())
			}
			continue
		}
		if _, ok := present[owner.ID]; !ok {
			present[owner.ID] = all.in(hour)
		}
		keys := spanning(present[owner.ID], r.Labels[fleet.LabelHost])
		if len(keys) == 0 {
			d.without(r, owner)
			continue
		}
		remote[owner.ID] = remote[owner.ID].Add(r.Amounts)
		d.rows[keys[0]].on(r.Device())
	}
	for owner, a := range remote {
		d.share(a, present[owner])
		d.remote += a.Time()
	}
}

// share divides amounts among rows by weighted tokens.
func (d *division) share(a cost.Amounts, keys []servedKey) {
	weights := make([]uint64, len(keys))
	for i, key := range keys {
		weights[i] = uint64(max(0, d.weight.of(d.rows[key].Tokens)) / max(1, d.width[key]))
	}
	for i, part := range a.Divide(weights) {
		x := d.rows[keys[i]]
		x.Amounts = x.Add(part)
	}
}

// spanning returns the rows whose engines can work on a machine on which none was found: those of the only model.
func spanning(keys []servedKey, host string) []servedKey {
	for _, key := range keys {
		if key.engine.Host == host || key.model != keys[0].model {
			return nil
		}
	}
	return keys
}

// on adds a device.
func (r *Row) on(devices ...string) {
	for _, device := range devices {
		if i, ok := slices.BinarySearch(r.devices, device); !ok {
			r.devices = slices.Insert(r.devices, i, device)
		}
	}
}

// without adds what a workload holds of a device on which it has no engine.
func (d *division) without(r *cost.Row, owner fleet.Owner) {
	if r.Amounts == (cost.Amounts{}) {
		return
	}
	key := servedKey{owner: owner.ID, model: NoEngine, device: r.Device()}
	x := d.rest[key]
	if x == nil {
		labels := maps.Clone(r.Labels)
		labels[fleet.LabelServedModel], labels[fleet.LabelProvider], labels[fleet.LabelTenant] = NoEngine, NoEngine, NoEngine
		x = &Row{Labels: labels, key: key, devices: []string{key.device}}
		d.rest[key] = x
	}
	x.Amounts = x.Add(r.Amounts)
}

// servedRows returns the rows without amounts.
func servedRows(use *serving.TokenUse) map[servedKey]*Row {
	rows := map[servedKey]*Row{}
	named := map[servedKey]bool{} // engines with a model, also without the model
	add := func(e serving.Engine, owner, model, tenant, provider string, l query.Labels) *Row {
		key := servedKey{engine: e, owner: owner, model: model, tenant: tenant}
		if rows[key] == nil {
			labels := query.Labels{}
			maps.Copy(labels, l)
			labels[fleet.LabelServedModel], labels[fleet.LabelTenant], labels[fleet.LabelProvider] = model, tenant, provider
			rows[key] = &Row{Engine: e, Labels: labels, key: key}
			named[servedKey{engine: e, owner: owner, model: model}], named[servedKey{engine: e, owner: owner}] = true, true
		}
		return rows[key]
	}
	for i := range use.Rows {
		r := &use.Rows[i]
		x := add(r.Engine, r.Owner.ID, r.Model, r.Tenant, r.Provider, r.Labels)
		x.Tokens = x.Plus(r.Tokens)
	}
	for i := range use.Works {
		// An engine that counted nothing, such as one that was starting: its devices cost nevertheless.
		if w := &use.Works[i]; !named[servedKey{engine: w.Engine, owner: w.Owner.ID, model: w.Model}] {
			add(w.Engine, w.Owner.ID, w.Model, "", w.Provider, w.Labels)
		}
	}
	return rows
}
