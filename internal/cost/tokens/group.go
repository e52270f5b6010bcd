package tokens

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Group is the sum of rows with the same values of some dimensions.
type Group struct {
	Name string   `json:"name"`
	Keys []string `json:"keys,omitempty"`
	cost.Amounts
	serving.Tokens

	Providers []string `json:"providers"` // the engines, such as vllm, in order

	Engines int `json:"engines"`
	Devices int `json:"devices"`
	// Unbilled are tokens whose engine works on no device of the bill. They are in no cost per token.
	Unbilled int64 `json:"tokens_unbilled,omitempty"`

	// Costs per million tokens: of prompts and output together, of output alone, and of output with
	// weighted prompts. They are absent without tokens and without prices, and leave out what has no price.
	PerMillion         optional.Float `json:"cost_per_million"`
	PerMillionOutput   optional.Float `json:"cost_per_million_output"`
	PerMillionWeighted optional.Float `json:"cost_per_million_weighted"`
	// TokensPerJoule has prompts and output, of devices that report energy.
	TokensPerJoule optional.Float `json:"tokens_per_joule"`
	OutputPerJoule optional.Float `json:"output_tokens_per_joule"`

	paid, metered sums
	engines       map[serving.Engine]bool
	devices       map[string]bool
}

// LeftOut returns the time that is in no cost per token, because some of it has no price, and of it the time without.
func (g *Group) LeftOut() (all, unpriced cost.Seconds) {
	if g.Unpriced == 0 {
		return 0, 0
	}
	return g.Time() - g.paid.Time(), g.Unpriced
}

// add adds a row to a group.
func (g *Group) add(r *Row) {
	g.Amounts, g.Tokens = g.Add(r.Amounts), g.Plus(r.Tokens)
	if g.engines == nil {
		g.engines, g.devices = map[serving.Engine]bool{}, map[string]bool{}
	}
	if r.key.device == "" {
		g.engines[r.Engine] = true
		if p := r.Labels[fleet.LabelProvider]; p != "" && !slices.Contains(g.Providers, p) {
			g.Providers = append(g.Providers, p)
			slices.Sort(g.Providers)
		}
	}
	for _, device := range r.devices {
		g.devices[device] = true
	}
	g.Engines, g.Devices = len(g.engines), len(g.devices)
	g.Unbilled += r.unbilled
	g.paid, g.metered = g.paid.plus(r.paid.Amounts, r.paid.Tokens), g.metered.plus(r.metered.Amounts, r.metered.Tokens)
}

// rates computes what a token costs.
func (g *Group) rates(w InputWeight) {
	money := optional.Of(float64(g.paid.Amounts.Total()))
	ratio := func(v optional.Float, tokens int64) optional.Float { return v.Ratio(optional.Of(float64(tokens))) }
	// A millionth of the currency for a token is the currency for a million tokens.
	g.PerMillion = ratio(money, g.paid.In.N+g.paid.Out.N)
	g.PerMillionOutput = ratio(money, g.paid.Out.N)
	g.PerMillionWeighted = ratio(money.Scale(1000), w.of(g.paid.Tokens))
	if joules := optional.Of(g.metered.Energy.Joules()); g.metered.In.N+g.metered.Out.N > 0 {
		g.TokensPerJoule = optional.Of(float64(g.metered.In.N + g.metered.Out.N)).Ratio(joules)
		g.OutputPerJoule = optional.Of(float64(g.metered.Out.N)).Ratio(joules)
	}
}

// By groups rows by one or more of Dimensions. The groups are ordered by descending cost, then
// tokens.
func (s *Bill) By(dims ...cost.Dimension) []Group { return s.by(s.Rows, dims) }

// RestBy groups Rest like By. A group of a dimension that it has in common with rows of engines, such as a team, is
// called by it and NoEngine.
func (s *Bill) RestBy(dims ...cost.Dimension) []Group {
	groups := s.by(s.Rest, dims)
	for i := range groups {
		if g := &groups[i]; !slices.Contains(g.Keys, NoEngine) {
			g.Keys[len(g.Keys)-1] += " " + NoEngine
			g.Name = strings.Join(g.Keys, " / ")
		}
	}
	return groups
}

func (s *Bill) by(rows []Row, dims []cost.Dimension) []Group {
	labels := cost.Statement{}
	for _, r := range slices.Concat(s.Rows, s.Rest) {
		labels.Rows = append(labels.Rows, cost.Row{Labels: r.Labels})
	}
	nameOf := labels.Apart(dims)
	groups := s.groups(rows, func(r *Row) []string {
		keys := make([]string, len(dims))
		for i, d := range dims {
			keys[i] = nameOf(d, r.Labels)
		}
		return keys
	})
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Amounts.Total(), a.Amounts.Total()), cmp.Compare(b.Out.N, a.Out.N), slices.Compare(a.Keys, b.Keys))
	})
	return groups
}

// Groups groups rows by keys, in order of keys.
func (s *Bill) Groups(keysOf func(*Row) []string) []Group { return s.groups(s.Rows, keysOf) }

func (s *Bill) groups(rows []Row, keysOf func(*Row) []string) []Group {
	groups := map[string]*Group{}
	for i := range rows {
		keys := keysOf(&rows[i])
		id := strings.Join(keys, "\x00")
		if groups[id] == nil {
			groups[id] = &Group{Name: strings.Join(keys, " / "), Keys: keys, Providers: []string{}}
		}
		groups[id].add(&rows[i])
	}
	out := make([]Group, 0, len(groups))
	for _, id := range slices.Sorted(maps.Keys(groups)) {
		groups[id].rates(s.InputWeight)
		out = append(out, *groups[id])
	}
	return out
}

// Total returns the sum of all rows of engines.
func (s *Bill) Total() Group { return s.total("total", s.Rows) }

// RestTotal returns the sum of Rest.
func (s *Bill) RestTotal() Group { return s.total(NoEngine, s.Rest) }

func (s *Bill) total(name string, rows []Row) Group {
	g := Group{Name: name, Providers: []string{}}
	for i := range rows {
		g.add(&rows[i])
	}
	g.rates(s.InputWeight)
	return g
}

// Simulated returns all or some if all or some of the engines are on simulated machines, else "".
func (s *Bill) Simulated() string {
	labels := cost.Statement{}
	for _, r := range slices.Concat(s.Rows, s.Rest) {
		labels.Rows = append(labels.Rows, cost.Row{Labels: r.Labels})
	}
	return labels.Simulated()
}

// Dimensions returns the dimensions by which what is served can be grouped. A model is the served
// one: that of the device is gpu.
func Dimensions() []cost.Dimension {
	out := []cost.Dimension{
		{Name: "model", Group: func(l query.Labels) string { return l[fleet.LabelServedModel] }, OfDevice: true},
		{Name: "engine", Group: func(l query.Labels) string { return l[fleet.LabelProvider] }, OfDevice: true},
	}
	out = append(out, cost.Dimension{Name: "tenant", Group: func(l query.Labels) string { return l[fleet.LabelTenant] }, OfDevice: true})
	for _, d := range cost.Dimensions() {
		if d.Name == "model" {
			d.Name = "gpu"
		}
		out = append(out, d)
	}
	return out
}
