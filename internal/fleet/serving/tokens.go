package serving

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/bits"
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

// Hours are hours of a day (UTC), bit by bit.
type Hours uint32

// HourOf returns the hour of a moment.
func HourOf(at time.Time) Hours { return 1 << at.UTC().Hour() }

// Has reports whether h has all hours of o.
func (h Hours) Has(o Hours) bool { return h&o == o }

// Len returns the number of hours.
func (h Hours) Len() int { return bits.OnesCount32(uint32(h)) }

// Work is that an engine works on a device or partition for a workload.
type Work struct {
	Engine
	Provider  string
	Model     string      // empty if it is unknown, or if the engine has several
	Owner     fleet.Owner // zero if it is unknown
	Device    string      // DeviceKey
	Partition string      // ID; empty for the whole device
	Hours     Hours       // in which it does
	Labels    query.Labels
}

// TokenUse is what the engines of a fleet counted in a day (UTC), or in a part of one.
type TokenUse struct {
	Rows []TokenRow // in order of engines, models, owners and tenants
	// Works are in order of engines and devices. They are those of the whole day, so that what follows from them
	// does not depend on the part.
	Works []Work
	// Gateways has the tokens that routers and gateways counted of the same requests: none in addition.
	Gateways []TokenRow
	// Missed counts the counters that had a value when the store first saw them. What they had counted
	// before is in no period.
	Missed  int
	Refused int // values that no counter can have
}

// Changes returns the hours in (from, to), a part of the day, at which an engine begins or ends to work on a device.
func (u *TokenUse) Changes(from, to time.Time) []time.Time {
	var out []time.Time
	for at := from.UTC().Truncate(time.Hour).Add(time.Hour); at.Before(to); at = at.Add(time.Hour) {
		before, after := HourOf(at.Add(-time.Hour)), HourOf(at)
		if slices.ContainsFunc(u.Works, func(w Work) bool { return w.Hours.Has(before) != w.Hours.Has(after) }) {
			out = append(out, at)
		}
	}
	return out
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

// TokenReader reads what the engines of a store counted, day by day. Values are those of counters, never rates:
// splitting a period at any moment yields two parts that add up to the whole. (Nearly, for a counter that reaches the
// store on two ways of which one lags, if both have gaps.)
//
// It asks for the counters at both ends of each day, which is all there is to know about a counter with
// one series that was there all the time. The samples of all others are read.
//
// A TokenReader is not safe for concurrent use.
type TokenReader struct {
	store query.Store
	o     fleet.MeterOptions

	end   time.Time            // of the last period
	edges map[string]tokenEdge // the counters at that moment, by name

	name string // of the counter that is read
	rows map[string]*TokenRow

	missed, refused int
}

// NewTokenReader returns a reader of the counters in store. Options may select engines by labels of their machines and
// workloads.
func NewTokenReader(store query.Store, o fleet.MeterOptions) *TokenReader {
	o.Memory = cmp.Or(o.Memory, fleet.DefaultMemory)
	return &TokenReader{store: store, o: o}
}

// Day returns what engines counted in (from, to], to the millisecond: a day (UTC) or a part of one.
func (r *TokenReader) Day(ctx context.Context, from, to time.Time) (*TokenUse, error) {
	from, to = from.UTC().Truncate(time.Millisecond), to.UTC().Truncate(time.Millisecond)
	if !r.end.Equal(from) {
		r.edges = map[string]tokenEdge{}
	}
	r.end, r.rows, r.missed, r.refused = time.Time{}, map[string]*TokenRow{}, 0, 0
	for _, c := range tokenSeries {
		if err := r.counter(ctx, c.name, from, to, c.sums); err != nil {
			return nil, err
		}
	}
	out := &TokenUse{Rows: r.sorted()}
	var err error
	if out.Works, err = r.works(ctx, from, to); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", fleet.SeriesEngineDevice, err)
	}
	r.rows = map[string]*TokenRow{}
	if err := r.counter(ctx, fleet.SeriesGatewayTokens, from, to, ofGateway); err != nil {
		return nil, err
	}
	out.Gateways, out.Missed, out.Refused = r.sorted(), r.missed, r.refused
	r.end = to
	return out, nil
}

// counter adds what the counters of a name gained.
func (r *TokenReader) counter(ctx context.Context, name string, from, to time.Time, sums func(*Tokens, query.Labels) []*Tally) error {
	r.name = name
	if err := r.within(ctx, from, to, sums); err != nil {
		return fmt.Errorf("cannot read %s: %w", name, err)
	}
	return nil
}

// sorted returns the rows in order.
func (r *TokenReader) sorted() []TokenRow {
	var out []TokenRow
	for _, key := range slices.Sorted(maps.Keys(r.rows)) {
		out = append(out, *r.rows[key])
	}
	return out
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
func (r *TokenReader) add(l query.Labels, n int64, sums func(*Tokens, query.Labels) []*Tally) {
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

// works returns the devices that engines work on in the day of a period.
func (r *TokenReader) works(ctx context.Context, from, to time.Time) ([]Work, error) {
	midnight := from.Truncate(24 * time.Hour)
	expr := fleet.Over("present_over_time", fleet.Select(fleet.SeriesEngineDevice, r.o.Match, r.o.Matchers...), query.Duration(time.Hour))
	list, err := r.store.Range(ctx, expr, midnight.Add(time.Hour), midnight.Add(24*time.Hour), time.Hour)
	if err != nil {
		return nil, err
	}
	if hour := to.Truncate(time.Hour); hour.Before(to) { // it may not be over, and some stores have no ranges that end later
		last, err := r.store.Instant(ctx, expr, hour.Add(time.Hour))
		if err != nil {
			return nil, err
		}
		for _, s := range last {
			list = append(list, query.Series{Labels: s.Labels, Points: []query.Point{{Time: hour.Add(time.Hour)}}})
		}
	}
	works := map[string]*Work{}
	for _, s := range list {
		owner, _ := fleet.OwnerOf(s.Labels)
		w := &Work{
			Engine: engineOf(s.Labels), Provider: s.Labels[fleet.LabelProvider], Model: s.Labels[fleet.LabelServedModel], Owner: owner,
			Device: fleet.DeviceKey(s.Labels), Partition: s.Labels[fleet.LabelPartition], Labels: fleet.Row(s.Labels),
		}
		if w.Device == "" {
			continue
		}
		key := strings.Join([]string{w.Host, w.ID, w.Device, w.Partition, w.Model, owner.ID}, "\xff")
		if works[key] != nil {
			w.Hours = works[key].Hours
		}
		for _, p := range s.Points {
			w.Hours |= HourOf(p.Time.Add(-time.Hour))
		}
		works[key] = w
	}
	var out []Work
	for _, key := range slices.Sorted(maps.Keys(works)) {
		out = append(out, *works[key])
	}
	return out, nil
}
