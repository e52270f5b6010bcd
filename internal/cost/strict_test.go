package cost

import (
	"strings"
	"testing"
)

// Catches a price or quota file that means something else than it seems to: a misspelled label whose
// rule never applies, a second document that nobody reads, and numbers that readers of YAML disagree
// about.
func TestFilesAreStrict(t *testing.T) {
	t.Parallel()
	prices := func(text string) error { _, err := Parse([]byte(text)); return err }
	quotas := func(text string) error { _, err := ParseQuotas([]byte(text)); return err }
	f := func(parse func(string) error, text, want string) {
		t.Helper()
		if err := parse(text); err == nil || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
	rule := func(match string) string {
		return "currency: EUR\nprices:\n- match:\n    model: H100\n    " + match + "\n  rates: [{from: 2026-01-01, kind: spot, per_hour: 1}]\n"
	}
	const added = " Labels that --resource-label or another store adds are listed under labels"
	f(prices, rule("zon: eu-1a"), `line 5: prices[0]: match: zon: no row has the label "zon": did you mean zone?`+added)
	f(prices, rule("k8s.namepsace.name: a"), `line 5: prices[0]: match: k8s.namepsace.name: no row has the label "k8s.namepsace.name": did you mean k8s_namespace_name?`+added)
	f(prices, rule("gpu_index: 0"), `line 5: prices[0]: match: gpu_index: no row has the label "gpu_index": did you mean gpu_model?`+added) // bills have no index
	f(prices, rule("purchase_order: 0"), `line 5: prices[0]: match: purchase_order: no row has the label "purchase_order": labels that --resource-label or another store adds are listed under labels`)
	f(prices, rule("gpu_model: H200"), `line 4: prices[0]: match: model: gpu_model is the same label`)
	f(prices, rule("zone:"), `line 5: prices[0]: match: zone: has no value: "" is a missing label, "*" any value`)
	f(prices, rule("model: H200"), `cannot parse the price file: line 5: mapping key "model" already defined at line 4`)
	f(prices, "currency: EUR\nlabels: [a b]\n", `line 2: labels: "a b" is not the name of a label`)
	f(prices, "currency: EUR\n---\ncurrency: USD\n", `cannot parse the price file: line 2: a second document begins: the file must have one`)
	f(prices, "currency: EUR\ncurrency: USD\n", `cannot parse the price file: line 2: mapping key "currency" already defined at line 1`)
	f(prices, "currency: [EUR]\n", `cannot parse the price file: line 1: must be a single value`)
	f(prices, "currency: EUR\nprices: 3\n", `cannot parse the price file: line 2: "3" must be a list`)
	f(prices, "currency: EUR\npower:\n- rates: [{from: 2026-01-01, per_kwh: 1, pue: 0x1}]\n", `line 3: power[0].rates[0]: pue: must be from 1 to 10`)
	f(quotas, "quotas:\n- {team: a, gpus: 1}\n---\nquotas: []\n", `cannot parse the quota file: line 3: a second document begins: the file must have one`)
	f(quotas, "quotas:\n- {team: a, gpus: 1}\n- {team: b, match: {team: c}, gpus: 1}\n", `line 3: quotas[1]: match: team: the quota already has a team`)
	f(quotas, "quotas:\n- name: a\n  gpus: 1\n  match:\n    nammespace: b\n", `line 5: quotas[0]: match: nammespace: no row has the label "nammespace": did you mean namespace?`+added)
	for _, text := range []string{"", " \n\t\n"} { // a write that failed or goes on takes no prices away
		f(prices, text, `cannot parse the price file: the file is empty: a file without rules has at least a comment`)
		f(quotas, text, `cannot parse the quota file: the file is empty: a file without rules has at least a comment`)
	}
	f(quotas, "currency: eur\n", `line 1: currency: "eur" is not a currency code: did you mean EUR?`)
	for _, n := range []string{"0b101", "0x10", "0o17", "017", "1_000", ".inf", "-.inf", ".nan", "1e3", "0x1p4", "+1", ".5", "5.", "1/2", "Infinity", "true", "1:30"} {
		bad := ": " + `"` + n + `" is not a plain number such as 2.50`
		f(prices, "currency: EUR\nprices:\n- rates:\n  - {from: 2026-01-01, kind: spot, per_hour: "+n+"}\n", `line 4: prices[0].rates[0]: per_hour`+bad)
		f(prices, "currency: EUR\nprices:\n- rates:\n  - {from: 2026-01-01, kind: owned, years: 3, capex: "+n+"}\n", `line 4: prices[0].rates[0]: capex`+bad)
		f(prices, "currency: EUR\ncommitments:\n- {name: a, from: 2026-01-01, per_hour: 1, gpus: "+n+"}\n", `line 3: commitments[0]: gpus: must be a whole number from 1 to 1000000`)
		f(quotas, "quotas:\n- {team: a, gpus: "+n+"}\n", `line 2: quotas[0]: gpus`+bad)
		f(quotas, "quotas:\n- {team: a, gpu_hours_per_month: "+n+"}\n", `line 2: quotas[0]: gpu_hours_per_month`+bad)
		f(quotas, "quotas:\n- {team: a, money_per_month: "+n+"}\n", `line 2: quotas[0]: money_per_month`+bad)
	}
	for _, text := range []string{
		rule("k8s.node.label.pool: spot"), rule("cloud.availability_zone: eu-1a"), rule("rack: 1.10"), rule(`zone: ""`), "# nothing\n",
		"labels: [purchase.order]\n" + rule("purchase_order: a"),
	} {
		if err := prices(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	// A value of a label is text, whatever it looks like.
	p := mustParse(t, strings.Replace(rule("rack: 0x10"), "model: H100", `vendor: "*"`, 1))
	if _, ok := p.At(map[string]string{"rack": "0x10"}, noon); !ok {
		t.Error("the rack 0x10 has no price")
	}
}
