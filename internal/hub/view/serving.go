package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost/tokens"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
)

// served is what a workload serves of a model: now, and in the period.
type served struct {
	Model     string       `json:"model"`           // empty if it is unknown
	Providers []string     `json:"providers"`       // the engines, such as vllm
	Owner     *fleet.Owner `json:"owner,omitempty"` // absent if it is unknown
	Engines   int          `json:"engines"`         // 0: served in the period only
	Up        int          `json:"up"`              // of them, those whose metrics could be read
	GPUs      []servedGPU  `json:"gpus"`

	Running   number            `json:"running"` // requests
	Waiting   number            `json:"waiting"`
	Finished  map[string]number `json:"finished"`  // requests per second by outcome: success, error, abort; null if unknown
	TokensIn  number            `json:"tokensIn"`  // per second
	TokensOut number            `json:"tokensOut"` // per second

	TTFT  percentiles `json:"ttft"` // seconds
	TPOT  percentiles `json:"tpot"`
	ITL   percentiles `json:"itl"`
	E2E   percentiles `json:"e2e"`
	Queue percentiles `json:"queue"`

	KVCache    number `json:"kvCache"`    // 0 to 1, of the fullest rank
	PrefixHits number `json:"prefixHits"` // 0 to 1

	SM          number `json:"sm"` // 0 to 1, like tensor and utilization a mean over gpus
	Tensor      number `json:"tensor"`
	Utilization number `json:"utilization"`
	Memory      number `json:"memory"` // bytes
	Watts       number `json:"watts"`

	Period servedCost `json:"period"`

	judgement
}

type servedGPU struct {
	UUID      string `json:"uuid"`
	Partition string `json:"partition,omitempty"`
	Profile   string `json:"profile,omitempty"` // of the partition
	Index     string `json:"index"`
	Model     string `json:"model"` // short name
	Node      string `json:"node"`
}

type percentiles struct {
	P50 number `json:"p50"`
	P95 number `json:"p95"`
	P99 number `json:"p99"`
}

// servedCost is what was served in the period, and what the GPUs of the engines cost. Unknown is null.
type servedCost struct {
	Time     number `json:"time"`   // device seconds
	Energy   number `json:"energy"` // joules
	Cost     number `json:"cost"`
	IdleCost number `json:"idleCost"` // part of cost

	TokensIn     number `json:"tokensIn"`
	TokensOut    number `json:"tokensOut"`
	TokensCached number `json:"tokensCached"` // part of tokensIn
	Requests     number `json:"requests"`
	Failed       number `json:"failed"`
	Aborted      number `json:"aborted"`

	PerMillion         number `json:"perMillion"` // money for a million tokens, in and out
	PerMillionOutput   number `json:"perMillionOutput"`
	PerMillionWeighted number `json:"perMillionWeighted"`
	TokensPerJoule     number `json:"tokensPerJoule"`
	OutputPerJoule     number `json:"outputPerJoule"`
}

type servingAnswer struct {
	At   int64 `json:"at"`
	From int64 `json:"from"` // of the period
	To   int64 `json:"to"`
	// Window is the time before at over which rates and quantiles are computed, in seconds.
	Window   int64  `json:"window"`
	Currency string `json:"currency,omitempty"`
	// InputWeight is what a computed token of a prompt counts in tokens of output.
	InputWeight float64    `json:"inputWeight"`
	Simulated   simulation `json:"simulated"` // of the whole fleet, as on the other pages
	Serving     []served   `json:"serving"`
	Total       servedCost `json:"total"` // of the period
	// NoEngine is what workloads with engines held meanwhile without one, on the days (UTC) on which they had one.
	NoEngine *servedCost `json:"noEngine,omitempty"`
	Notes    []string    `json:"notes,omitempty"`
}

func (v *viewer) servingPage(ctx context.Context, r request) (any, error) {
	rows, period, err := v.serving(ctx, r)
	if err != nil {
		return nil, err
	}
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, err
	}
	total := period.Total()
	a := servingAnswer{
		At: r.at.Unix(), From: period.From.Unix(), To: period.To.Unix(), Window: int64(serving.Window.Seconds()), Currency: v.accounts.Currency,
		InputWeight: period.InputWeight.Float(), Simulated: simulationOf(f, nil), Serving: rows, Total: servedCostOf(&total), Notes: slices.Concat(v.accounts.Notes, period.Notes()),
	}
	if rest := period.RestTotal(); rest.Time() > 0 {
		c := servedCostOf(&rest)
		a.NoEngine = &c
	}
	return a, nil
}

// serving returns what is served now and was served in a period, ordered by cost, then tokens.
func (v *viewer) serving(ctx context.Context, r request) ([]served, *tokens.Bill, error) {
	at := r.at.Truncate(freshness)
	now, err := v.served.get(ctx, at.Unix(), v.opts.Now(), freshness, func(ctx context.Context) ([]serving.Row, error) { return serving.At(ctx, v.store, at, serving.Window) })
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read what engines serve: %w", err)
	}
	period, err := v.tokens(ctx, r.from, r.to)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot compute the cost of tokens: %w", err)
	}
	places, rows := map[servedKey]int{}, []served{}
	for i := range now {
		s := &now[i]
		places[keyOf(s.Model, &s.Owner)] = len(rows)
		rows = append(rows, v.servedOf(s))
	}
	v.judge(ctx, at, now, rows)
	owners := map[servedKey]fleet.Owner{}
	groups := period.Groups(func(row *tokens.Row) []string {
		o, _ := fleet.OwnerOf(row.Labels)
		k := keyOf(row.Labels[fleet.LabelServedModel], &o)
		owners[k] = o
		return []string{k.model, k.owner, k.team, k.user}
	})
	for i := range groups {
		g := &groups[i]
		k := servedKey{g.Keys[0], g.Keys[1], g.Keys[2], g.Keys[3]}
		n, ok := places[k]
		if !ok {
			n = len(rows)
			rows = append(rows, v.servedOf(&serving.Row{Model: k.model, Owner: owners[k], Providers: g.Providers}))
		}
		rows[n].Period = servedCostOf(g)
	}
	slices.SortStableFunc(rows, func(a, b served) int {
		// An absent number is NaN, which sorts last.
		return cmp.Or(cmp.Compare(b.Period.Cost, a.Period.Cost), cmp.Compare(b.Period.TokensOut, a.Period.TokensOut), cmp.Compare(a.Model, b.Model))
	})
	return rows, period, nil
}

// tokens returns what was served in a period, aligned to whole minutes as bills are.
func (v *viewer) tokens(ctx context.Context, from, to time.Time) (*tokens.Bill, error) {
	from, to = from.Truncate(time.Minute), to.Truncate(time.Minute)
	now := v.opts.Now()
	return v.periods.get(ctx, span{from.Unix(), to.Unix()}, now, time.Minute, func(ctx context.Context) (*tokens.Bill, error) {
		if !from.Before(to) {
			return &tokens.Bill{From: from, To: to, InputWeight: tokens.DefaultInputWeight}, nil
		}
		return v.tokenBills.Read(ctx, from, to, now)
	})
}

// servedOf returns the row without its period.
func (v *viewer) servedOf(s *serving.Row) served {
	of := func(f optional.Float) number { return number(float(f)) }
	percents := func(q serving.Quantiles) percentiles { return percentiles{of(q.P50), of(q.P95), of(q.P99)} }
	out := served{
		Model: s.Model, Providers: s.Providers, Engines: s.Engines, Up: s.Up, GPUs: []servedGPU{},
		Running: of(s.Running), Waiting: of(s.Waiting), TokensIn: of(s.In), TokensOut: of(s.Out),
		TTFT: percents(s.FirstToken), TPOT: percents(s.PerToken), ITL: percents(s.InterToken), E2E: percents(s.Request), Queue: percents(s.Queue),
		KVCache: of(s.Cache), PrefixHits: of(s.Hits),
		SM: of(s.SM), Tensor: of(s.Tensor), Utilization: of(s.Utilization), Memory: of(s.Memory), Watts: of(s.Power),
		Period: servedCostOf(&tokens.Group{}),
	}
	if out.Providers == nil {
		out.Providers = []string{}
	}
	if s.Owner.ID != "" {
		out.Owner = &s.Owner
	}
	for _, d := range s.Devices {
		out.GPUs = append(out.GPUs, servedGPU{UUID: d.UUID, Partition: d.Partition, Profile: d.Profile, Index: d.Index, Model: v.opts.shortModel(d.Model), Node: d.Node})
	}
	if s.Finished != nil {
		out.Finished = map[string]number{}
		for outcome, n := range s.Finished {
			out.Finished[outcome] = number(n)
		}
	}
	return out
}

// servedCostOf converts the sums of a period.
func servedCostOf(g *tokens.Group) servedCost {
	count := func(t serving.Tally) number {
		if !t.Known {
			return number(absent)
		}
		return number(t.N)
	}
	of := func(f optional.Float) number { return number(float(f)) }
	t := takenOf(g.Amounts)
	out := servedCost{
		Time: t.Time, Energy: t.Energy, Cost: t.Cost, IdleCost: t.IdleCost,
		TokensIn: count(g.In), TokensOut: count(g.Out), TokensCached: count(g.Cached), Requests: count(g.Finished), Failed: count(g.Failed), Aborted: count(g.Aborted),
		PerMillion: of(g.PerMillion), PerMillionOutput: of(g.PerMillionOutput), PerMillionWeighted: of(g.PerMillionWeighted),
		TokensPerJoule: of(g.TokensPerJoule), OutputPerJoule: of(g.OutputPerJoule),
	}
	if g.Time() == 0 { // no device of the bill
		out.Time, out.Cost, out.IdleCost = number(absent), number(absent), number(absent)
	}
	if g.Energy == 0 {
		out.Energy = number(absent)
	}
	return out
}
