package tokens

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches tenants that pay for what others asked, tokens of a gateway that count in addition to those of its engines,
// requests past the gateway that its tenants pay for, and models of one name in two clusters that are mixed up.
func TestTenants(t *testing.T) {
	t.Parallel()
	s := &cost.Statement{}
	use := &serving.TokenUse{}
	serve := func(engine, cluster, model string, tokens map[string][2]int64) {
		l := query.Labels{fleet.LabelKind: "deployment", fleet.LabelWorkload: engine, fleet.LabelCluster: cluster}
		owner, _ := fleet.OwnerOf(l)
		id := serving.Engine{Host: "n", ID: engine}
		use.Works = append(use.Works, serving.Work{Engine: id, Owner: owner, Device: "GPU-" + engine, Hours: 1, Labels: l})
		for tenant, n := range tokens {
			use.Rows = append(use.Rows, serving.TokenRow{
				Engine: id, Owner: owner, Model: model, Tenant: tenant, Labels: l,
				Tokens: serving.Tokens{In: serving.TallyOf(n[0]), Out: serving.TallyOf(n[1]), Finished: serving.TallyOf(n[1] / 10)},
			})
		}
		held := query.Labels{fleet.LabelUUID: "GPU-" + engine}
		maps.Copy(held, l)
		s.Rows = append(s.Rows, cost.Row{Labels: held, Amounts: cost.Amounts{Used: 3600e6, UsedCost: 12e6}})
	}
	gateway := func(cluster, model, tenant string, in, out int64) {
		use.Gateways = append(use.Gateways, serving.TokenRow{
			Model: model, Tenant: tenant, Labels: query.Labels{fleet.LabelCluster: cluster},
			Tokens: serving.Tokens{In: serving.TallyOf(in), Out: serving.TallyOf(out)},
		})
	}
	// The engine says who asked: weights 100 and 300.
	serve("labeled", "c1", "own", map[string][2]int64{"red": {0, 100}, "blue": {0, 300}})
	// Its gateway does: 500 of 2,000 went past it.
	serve("plain", "c1", "llama", map[string][2]int64{"": {0, 2000}})
	gateway("c1", "hosted_vllm/llama", "red", 0, 1000)
	gateway("c1", "llama", "blue", 0, 500)
	gateway("c1", "llama", "", 0, 100)
	// Another cluster has a model of that name and no gateway, and a model of a provider elsewhere is none of ours.
	serve("remote", "c2", "llama", map[string][2]int64{"": {0, 70}})
	gateway("c1", "openai/gpt", "red", 0, 1e9)

	type sum struct {
		Money         cost.Money
		Out, Finished int64
	}
	tenant, model := servingDimension("tenant"), servingDimension("model")
	want := map[string]sum{
		"red / own": {3e6, 100, 10}, "blue / own": {9e6, 300, 30},
		"red / llama": {6e6, 1000, 100}, "blue / llama": {3e6, 500, 50},
		"(none) / llama": {3e6 + 12e6, 500 + 70, 50 + 7},
	}
	got := map[string]sum{}
	for _, g := range Divide([]cost.Statement{*s}, use, DefaultInputWeight).By(tenant, model) {
		got[g.Name] = sum{g.Amounts.Total(), g.Out.N, g.Finished.N}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// A gateway that counted more than the engines, because its samples came earlier, divides all of it.
	use.Gateways[0].Out = serving.TallyOf(3500)
	got = map[string]sum{}
	for _, g := range Divide([]cost.Statement{*s}, use, DefaultInputWeight).By(tenant, model) {
		got[g.Name] = sum{g.Amounts.Total(), g.Out.N, g.Finished.N}
	}
	want["red / llama"], want["blue / llama"], want["(none) / llama"] = sum{10.5e6, 1750, 175}, sum{1.5e6, 250, 25}, sum{12e6, 70, 7}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("more than the engines (-want +got):\n%s", diff)
	}
}
