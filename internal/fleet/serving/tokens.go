package serving

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Engine identifies an inference engine.
type Engine struct {
	Host string `json:"host"`
	ID   string `json:"id"`
}

func engineOf(l query.Labels) Engine { return Engine{l[fleet.LabelHost], l[fleet.LabelEngine]} }

// Compare orders engines by host.
func (e Engine) Compare(o Engine) int {
	return cmp.Or(cmp.Compare(e.Host, o.Host), cmp.Compare(e.ID, o.ID))
}

// Tokens is what inference engines counted.
type Tokens struct {
	In  Tally `json:"tokens_in"` // of prompts
	Out Tally `json:"tokens_out"`
	// Cached is the part of In that a prefix cache had.
	Cached Tally `json:"tokens_cached"`
	// Finished requests, and those of them that failed or were aborted.
	Finished Tally `json:"requests"`
	Failed   Tally `json:"requests_failed"`
	Aborted  Tally `json:"requests_aborted"`
}

// Plus returns t + o.
func (t Tokens) Plus(o Tokens) Tokens {
	return Tokens{
		t.In.Plus(o.In), t.Out.Plus(o.Out), t.Cached.Plus(o.Cached), t.Finished.Plus(o.Finished), t.Failed.Plus(o.Failed), t.Aborted.Plus(o.Aborted),
	}
}

// TokenRow is what an engine counted of a model for a workload.
type TokenRow struct {
	Engine
	Provider string      // such as vllm
	Model    string      // empty if it is unknown
	Tenant   string      // empty if nobody says who asked
	Owner    fleet.Owner // zero if it is unknown
	Labels   query.Labels
	Tokens
}

// Work is that an engine works on a device or partition for a workload.
type Work struct {
	Engine
	Provider  string
	Model     string      // empty if it is unknown, or if the engine has several
	Owner     fleet.Owner // zero if it is unknown
	Device    string      // DeviceKey
	Partition string      // ID; empty for the whole device
	Labels    query.Labels
}

// TokenUse is what the engines of a fleet counted in a period.
type TokenUse struct {
	Rows  []TokenRow // in order of engines, models, owners and tenants
	Works []Work     // in order of engines and devices
	// Gateways has the tokens that routers and gateways counted of the same requests: none in addition.
	Gateways []TokenRow
	// Missed counts the counters that had a value when the store first saw them. What they had counted
	// before is in no period.
	Missed  int
	Refused int // values that no counter can have
}

// tokenSeries are the counters of tokens and requests with the sums that each of them adds to.
var tokenSeries = []struct {
	name string
	sums func(t *Tokens, l query.Labels) []*Tally
}{
	{fleet.SeriesTokensIn, func(t *Tokens, _ query.Labels) []*Tally { return []*Tally{&t.In} }},
	{fleet.SeriesTokensOut, func(t *Tokens, _ query.Labels) []*Tally { return []*Tally{&t.Out} }},
	{fleet.SeriesPrefixHits, func(t *Tokens, _ query.Labels) []*Tally { return []*Tally{&t.Cached} }},
	{fleet.SeriesFinished, func(t *Tokens, l query.Labels) []*Tally {
		switch l[fleet.LabelOutcome] {
		case fleet.OutcomeError:
			return []*Tally{&t.Finished, &t.Failed}
		case fleet.OutcomeAbort:
			return []*Tally{&t.Finished, &t.Aborted}
		}
		return []*Tally{&t.Finished}
	}},
}

// ofGateway returns the sums that a counter of a gateway adds to.
func ofGateway(t *Tokens, l query.Labels) []*Tally {
	switch l[fleet.LabelTokenType] {
	case fleet.TokenInput:
		return []*Tally{&t.In}
	case fleet.TokenOutput:
		return []*Tally{&t.Out}
	}
	return nil
}

// ReadTokens returns what the engines of a store counted in (from, to], to the millisecond. Values are
// those of counters, never rates: splitting the period at any moment yields two parts that add up to the
// whole. (Nearly, for a counter that reaches the store on two ways of which one lags, if both have gaps.) Options may select engines by labels of their machines and workloads.
//
// It asks for the counters at both ends of each day, which is all there is to know about a counter with
// one series that was there all the time. The samples of all others are read.
func ReadTokens(ctx context.Context, store query.Store, from, to time.Time, o fleet.MeterOptions) (*TokenUse, error) {
	from, to = from.UTC().Truncate(time.Millisecond), to.UTC().Truncate(time.Millisecond)
	o.Memory = cmp.Or(o.Memory, fleet.DefaultMemory)
	r := &tokenReader{store: store, o: &o, rows: map[string]*TokenRow{}, works: map[string]Work{}}
	edges := append(append([]time.Time{from}, fleet.Days(from, to)...), to)
	for _, c := range tokenSeries {
		if err := r.counter(ctx, c.name, edges, c.sums); err != nil {
			return nil, err
		}
	}
	for i, end := range edges[1:] {
		if err := r.work(ctx, edges[i], end); err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", fleet.SeriesEngineDevice, err)
		}
	}
	out := &TokenUse{Rows: r.sorted()}
	r.rows = map[string]*TokenRow{}
	if err := r.counter(ctx, fleet.SeriesGatewayTokens, edges, ofGateway); err != nil {
		return nil, err
	}
	out.Gateways, out.Missed, out.Refused = r.sorted(), r.missed, r.refused
	for _, key := range slices.Sorted(maps.Keys(r.works)) {
		out.Works = append(out.Works, r.works[key])
	}
	return out, nil
}

// counter adds what the counters of a name gained between the first and the last of some moments.
func (r *tokenReader) counter(ctx context.Context, name string, edges []time.Time, sums func(*Tokens, query.Labels) []*Tally) error {
	r.name, r.edge = name, nil
	for i, end := range edges[1:] {
		if err := r.within(ctx, edges[i], end, sums); err != nil {
			return fmt.Errorf("cannot read %s: %w", name, err)
		}
	}
	return nil
}

// sorted returns the rows in order.
func (r *tokenReader) sorted() []TokenRow {
	var out []TokenRow
	for _, key := range slices.Sorted(maps.Keys(r.rows)) {
		out = append(out, *r.rows[key])
	}
	return out
}

// TokensSince returns approximately when the store's first engine appears in a period. It is from if there
// were engines in the hour before, and the zero time if there are none in the period.
func TokensSince(ctx context.Context, store query.Store, from, to time.Time, o fleet.MeterOptions) (time.Time, error) {
	selector := fleet.Select(fleet.SeriesEngineDevice, o.Match, o.Matchers...)
	before, err := store.Instant(ctx, "count("+fleet.Over("last_over_time", selector, query.Duration(fleet.Back))+")", from)
	if err != nil {
		return time.Time{}, err
	}
	if len(before) > 0 {
		return from, nil
	}
	step := max(time.Minute, (to.Sub(from) / 500).Truncate(time.Second))
	list, err := store.Range(ctx, "count("+selector+")", from, to, step)
	if err != nil || len(list) == 0 || len(list[0].Points) == 0 {
		return time.Time{}, err
	}
	return list[0].Points[0].Time.UTC(), nil
}

// counterKey tells the counters of engines apart. Workload labels do not: a counter goes on when they
// arrive late or are edited.
func counterKey(l query.Labels) string {
	own := []string{l[fleet.LabelHost]}
	for name, value := range l {
		if strings.HasPrefix(name, "inference_") || strings.HasPrefix(name, "gen_ai_") || strings.HasPrefix(name, "error_") {
			own = append(own, name+"\xff"+value)
		}
	}
	slices.Sort(own[1:])
	return strings.Join(own, "\xff")
}

// add adds to the row of a counter.
func (r *tokenReader) add(l query.Labels, n int64, sums func(*Tokens, query.Labels) []*Tally) {
	owner, _ := fleet.OwnerOf(l)
	e := engineOf(l)
	key := strings.Join([]string{e.Host, e.ID, l[fleet.LabelServedModel], owner.ID, l[fleet.LabelTenant]}, "\xff")
	row := r.rows[key]
	if row == nil {
		row = &TokenRow{Engine: e, Provider: l[fleet.LabelProvider], Model: l[fleet.LabelServedModel], Tenant: l[fleet.LabelTenant], Owner: owner, Labels: ofEngine(l)}
		r.rows[key] = row
	}
	for _, t := range sums(&row.Tokens, l) {
		*t = t.Plus(TallyOf(n))
	}
}

// errorType is no constant of package fleet, because pages of engines have a label of that name, too.
const errorType = "error_type"

// ofEngine returns the labels of a series that describe the engine, its machine and its workload.
func ofEngine(l query.Labels) query.Labels {
	out := fleet.Row(l)
	for _, name := range []string{fleet.LabelOutcome, fleet.LabelTier, fleet.LabelState, fleet.LabelWeight, fleet.LabelRankOfEngine, fleet.LabelFinishReason, fleet.LabelTenant, fleet.LabelTokenType, errorType} {
		delete(out, name)
	}
	return out
}

// work adds the devices that engines worked on in a period of a day at most.
func (r *tokenReader) work(ctx context.Context, from, to time.Time) error {
	list, err := r.store.Instant(ctx, fleet.Over("present_over_time", fleet.Select(fleet.SeriesEngineDevice, r.o.Match, r.o.Matchers...), query.Duration(to.Sub(from))), to)
	if err != nil {
		return err
	}
	for _, s := range list {
		owner, _ := fleet.OwnerOf(s.Labels)
		w := Work{
			Engine: engineOf(s.Labels), Provider: s.Labels[fleet.LabelProvider], Model: s.Labels[fleet.LabelServedModel], Owner: owner,
			Device: fleet.DeviceKey(s.Labels), Partition: s.Labels[fleet.LabelPartition], Labels: fleet.Row(s.Labels),
		}
		if w.Device != "" {
			r.works[strings.Join([]string{w.Host, w.ID, w.Device, w.Partition, w.Model, owner.ID}, "\xff")] = w
		}
	}
	return nil
}
