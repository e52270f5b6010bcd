package tokens

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/quantity"
)

// servedModel is a model as a gateway can know it.
type servedModel struct{ cluster, model string }

func modelOf(r *Row) servedModel {
	return servedModel{r.Labels[fleet.LabelCluster], r.Labels[fleet.LabelServedModel]}
}

// asked is what a gateway counted of a model for a tenant.
type asked struct {
	tenant  string
	in, out int64
}

// byTenant divides rows whose engines do not say who asked by what gateways in front of them counted. A gateway does
// not say which engine it used: all engines of a model in its cluster are divided alike. Tokens that no gateway
// counted, such as those of requests that went past it, stay without a tenant. The parts add up to the rows.
func byTenant(rows []Row, gateways []serving.TokenRow, w InputWeight) []Row {
	counted := map[servedModel]serving.Tokens{} // by engines that do not say who asked
	for i := range rows {
		if r := &rows[i]; r.Labels[fleet.LabelTenant] == "" {
			counted[modelOf(r)] = counted[modelOf(r)].Plus(r.Tokens)
		}
	}
	tenants := askedOf(gateways, counted)
	var out []Row
	for i := range rows {
		list := tenants[modelOf(&rows[i])]
		if rows[i].Labels[fleet.LabelTenant] != "" || len(list) == 0 {
			out = append(out, rows[i])
			continue
		}
		out = append(out, rows[i].divided(list, w)...)
	}
	return out
}

// askedOf returns the tenants of models that engines served, in order, and at their end what is left for nobody.
func askedOf(gateways []serving.TokenRow, served map[servedModel]serving.Tokens) map[servedModel][]asked {
	sums := map[servedModel]map[string]asked{}
	for i := range gateways {
		g := &gateways[i]
		key := servedModel{g.Labels[fleet.LabelCluster], g.Model}
		if _, ok := served[key]; !ok { // LiteLLM puts the provider before the model: hosted_vllm/llama
			_, key.model, _ = strings.Cut(g.Model, "/")
		}
		if _, ok := served[key]; !ok || g.Tenant == "" || key.model == "" {
			continue
		}
		if sums[key] == nil {
			sums[key] = map[string]asked{}
		}
		a := sums[key][g.Tenant]
		sums[key][g.Tenant] = asked{g.Tenant, a.in + g.In.N, a.out + g.Out.N}
	}
	out := map[servedModel][]asked{}
	for key, all := range sums {
		rest := asked{in: served[key].In.N, out: served[key].Out.N}
		for _, a := range all {
			rest.in, rest.out = rest.in-a.in, rest.out-a.out
		}
		rest.in, rest.out = max(0, rest.in), max(0, rest.out)
		out[key] = append(slices.SortedFunc(maps.Values(all), func(a, b asked) int { return cmp.Compare(a.tenant, b.tenant) }), rest)
	}
	return out
}

// divided returns the parts of a row by tenant.
func (r *Row) divided(list []asked, w InputWeight) []Row {
	var ins, outs, weights []uint64
	for _, a := range list {
		ins, outs = append(ins, uint64(a.in)), append(outs, uint64(a.out))
		weights = append(weights, uint64(int64(w)*a.in+1000*a.out))
	}
	if !slices.ContainsFunc(weights, func(weight uint64) bool { return weight > 0 }) {
		return []Row{*r}
	}
	amounts := r.Divide(weights)
	in, cached, out := parts(r.In, ins), parts(r.Cached, ins), parts(r.Out, outs)
	finished, failed, aborted := parts(r.Finished, weights), parts(r.Failed, weights), parts(r.Aborted, weights)
	var rows []Row
	for i, a := range list {
		x := *r
		x.Amounts = amounts[i]
		x.Tokens = serving.Tokens{In: in[i], Out: out[i], Cached: cached[i], Finished: finished[i], Failed: failed[i], Aborted: aborted[i]}
		if x.Amounts == (cost.Amounts{}) && x.In.N+x.Out.N+x.Cached.N+x.Finished.N+x.Failed.N+x.Aborted.N == 0 {
			continue
		}
		x.Labels = maps.Clone(r.Labels)
		x.Labels[fleet.LabelTenant], x.key.tenant = a.tenant, a.tenant
		rows = append(rows, x)
	}
	return rows
}

// parts divides a number in proportion to weights; nobody, who is last, has all of it if they are all 0. The parts add
// up to it exactly.
func parts(t serving.Tally, weights []uint64) []serving.Tally {
	out := make([]serving.Tally, len(weights))
	if !t.Known {
		return out
	}
	var all, upto uint64
	for _, weight := range weights {
		all += weight
	}
	before := int64(0)
	for i, weight := range weights {
		upto += weight
		now := t.N
		switch {
		case i == len(weights)-1:
		case all == 0:
			now = 0
		default:
			now = quantity.Portion(t.N, upto, all)
		}
		out[i], before = serving.TallyOf(now-before), now
	}
	return out
}
