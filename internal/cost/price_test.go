package cost

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

const priceText = `
currency: EUR
prices:
- match: {gpu_model: "NVIDIA H100*", instance_type: p5.*}
  rates:
  - {from: 2026-07-01, kind: reserved, per_hour: 2.60}
  - {from: 2026-01-01, kind: on_demand, per_hour: 4.100000001}
- match: {model: "NVIDIA H100*"}
  rates:
  - {from: 2025-01-01, kind: owned, capex: 35064, years: 4}
- match: {gpu.model: "*MI300?", k8s.node.label.pool: train}
  rates:
  - {from: 2026-03-01T12:00:00+02:00, kind: spot, per_hour: 1}
power:
- match: {cluster: north}
  rates: [{from: 2026-01-01, per_kwh: 0.05, pue: 1.2, co2_g_per_kwh: 20}]
- rates: [{from: 2026-01-01, per_kwh: 0.30}]
`

// Catches a wrong choice among matching rules, a rate applied before its start, and rounding
// above a billionth.
func TestPrices(t *testing.T) {
	t.Parallel()
	p := mustParse(t, priceText)
	date := func(y, m, d, h int) time.Time { return time.Date(y, time.Month(m), d, h, 0, 0, 0, time.UTC) }
	h100 := map[string]string{"gpu_model": "NVIDIA H100 80GB HBM3"}
	cloud := map[string]string{"gpu_model": "NVIDIA H100 80GB HBM3", "host_type": "p5.48xlarge"}
	amd := map[string]string{"gpu_model": "AMD Instinct MI300X", "k8s_node_label_pool": "train"}
	for _, tt := range []struct {
		labels map[string]string
		at     time.Time
		want   Price
		ok     bool
	}{
		{cloud, date(2026, 7, 1, 0), Price{Kind: Reserved, PerHour: 2.6e9}, true},
		{cloud, date(2026, 7, 1, 0).Add(-time.Millisecond), Price{Kind: OnDemand, PerHour: 4_100_000_001}, true},
		{cloud, date(2025, 7, 1, 0), Price{Kind: Owned, PerHour: 1e9}, true}, // neither the rule above nor power has started
		{h100, date(2026, 7, 1, 0), Price{Kind: Owned, PerHour: 1e9, PerKWh: 0.3e9}, true},
		{map[string]string{"gpu_model": "NVIDIA H100", "k8s_cluster_name": "north"}, date(2026, 7, 1, 0), Price{Kind: Owned, PerHour: 1e9, PerKWh: 0.06e9}, true},
		{amd, date(2026, 3, 1, 10), Price{Kind: Spot, PerHour: 1e9}, true},
		{amd, date(2026, 3, 1, 9), Price{}, false},
		{map[string]string{"gpu_model": "AMD Instinct MI300X"}, date(2026, 7, 1, 0), Price{}, false},
		{h100, date(2024, 12, 31, 23), Price{}, false},
	} {
		got, ok := p.At(tt.labels, tt.at)
		if diff := cmp.Diff(tt.want, got); ok != tt.ok || diff != "" {
			t.Errorf("%v at %v: %v (-want +got):\n%s", tt.labels, tt.at, ok, diff)
		}
	}
	power, ok := p.PowerAt(map[string]string{"k8s_cluster_name": "north"}, date(2026, 7, 1, 0))
	if diff := cmp.Diff(Power{PerKWh: 0.06e9, Milligrams: 24_000, Priced: true, Emits: true}, power); !ok || diff != "" {
		t.Errorf("power (-want +got):\n%s", diff)
	}
	if (Prices{}).Empty() != true || p.Empty() {
		t.Error("Empty is wrong")
	}
}

// Catches a rate that applies after its end, a month of the wrong length, and a discount taken
// for a price.
func TestPricesForms(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `
currency: EUR
prices:
- match: {model: H100}
  rates:
  - {from: 2026-01-01, to: 2026-03-01, kind: reserved, per_month: 1461}
  - {from: 2026-06-01, kind: on_demand, per_hour: 4, discount: 12.5%}
- rates: [{from: 2026-01-01, kind: spot, per_hour: 1}]
`)
	f := func(month int, want Price) {
		t.Helper()
		got, ok := p.At(map[string]string{"gpu_model": "H100"}, time.Date(2026, time.Month(month), 1, 0, 0, 0, 0, time.UTC))
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("month %d (-want +got):\n%s", month, diff)
		}
	}
	f(1, Price{Kind: Reserved, PerHour: 2e9}) // 730.5 hours
	f(2, Price{Kind: Reserved, PerHour: 2e9})
	f(3, Price{Kind: Spot, PerHour: 1e9}) // it has ended: the next rule applies
	f(6, Price{Kind: OnDemand, PerHour: 3.5e9})
}

// Catches a commitment that is free when nothing runs, and one that is paid outside its dates.
func TestCommitments(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := range 121 { // one H100 for two hours
		one(m, noon.Add(time.Duration(i)*time.Minute), float64(i*60), float64(i*60))
	}
	p := mustParse(t, `
currency: EUR
commitments:
- {name: h100, match: {model: H100}, gpus: 3, from: 2026-01-01, per_hour: 2}
- {name: half, match: {model: A100}, gpus: 2, from: `+noon.Add(time.Hour).Format(time.RFC3339)+`, per_hour: 2, discount: 50%}
- {name: full, match: {model: H100}, gpus: 1, from: 2026-01-01, per_hour: 2}
- {name: over, match: {model: H100}, gpus: 1, from: 2026-01-01, to: 2026-01-02, per_hour: 2}
`)
	got := mustBill(t, m, p, noon, noon.Add(2*time.Hour))
	const h = Seconds(3600e6)
	want := []Committed{
		{Name: "h100", GPUs: 3, Time: 6 * h, Metered: 2 * h, Unmetered: 4 * h, Cost: 12e6, UnmeteredCost: 8e6},
		{Name: "half", GPUs: 2, Time: 2 * h, Unmetered: 2 * h, Cost: 2e6, UnmeteredCost: 2e6},
		{Name: "full", GPUs: 1, Time: 2 * h, Metered: 2 * h, Cost: 4e6},
	}
	if diff := cmp.Diff(want, got.Commitments); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if note := got.Commitments[0].Note("EUR"); note != "Commitment h100: 4.0 of 6.0 GPU-hours were not metered. Their 8.00 EUR are paid and in no row." {
		t.Error(note)
	}
}

// Catches a misspelled price that silently becomes no price.
func TestPricesRefuse(t *testing.T) {
	t.Parallel()
	rate := func(s string) string { return "currency: EUR\nprices:\n- rates: [{" + s + "}]\n" }
	committed := func(s string) string { return "currency: EUR\ncommitments: [{" + s + "}]\n" }
	for text, want := range map[string]string{
		"prises: []": "prises",
		"currency: EUR\nprices:\n- {match: {model: x}}":                                                                "prices[0]: rates",
		rate("from: 2026-01-01"):                                                                                       "kind",
		rate("from: 2026-13-01, kind: spot, per_hour: 1"):                                                              "from",
		rate("kind: spot, per_hour: 1"):                                                                                "from",
		rate("from: 2026-01-01, kind: spot, per_hour: -1"):                                                             "per_hour: must be from 0",
		rate("from: 2026-01-01, kind: spot, per_hour: 1e999999999"):                                                    "per_hour",
		rate("from: 2026-01-01, kind: spot, per_hour: free"):                                                           "per_hour",
		rate("from: 2026-01-01, kind: spot"):                                                                           "per_hour",
		rate("from: 2026-01-01, kind: spot, per_hour: 1, capex: 3"):                                                    "takes only per_hour or per_month",
		rate("from: 2026-01-01, kind: owned, per_hour: 1"):                                                             "capex and years",
		rate("from: 2026-01-01, kind: owned, capex: 1000"):                                                             "years: missing",
		rate("from: 2026-01-01, kind: owned, capex: 1000, years: 0"):                                                   "years",
		rate("from: 2026-01-01, kind: spot, per_hour: 1}, {from: 2026-01-01, kind: spot, per_hour: 2"):                 "two rates start",
		"currency: EUR\npower:\n- rates: [{from: 2026-01-01, per_kwh: 1, pue: 0.5}]":                                   "pue",
		"currency: EUR\npower:\n- rates: [{from: 2026-01-01, kind: spot}]":                                             "power takes only",
		"currency: EUR\npower:\n- rates: [{from: 2026-01-01}]":                                                         "is required",
		"prices: [{rates: [{from: 2026-01-01, kind: spot, per_hour: 1}]}]":                                             "currency: missing",
		"power: [{rates: [{from: 2026-01-01, per_kwh: 1}]}]":                                                           "currency: missing",
		rate("from: 2026-01-01, to: 2026-01-01, kind: spot, per_hour: 1"):                                              "to: must be after from",
		rate("from: 2026-01-01, to: soon, kind: spot, per_hour: 1"):                                                    "to: ",
		rate("from: 2026-01-01, to: 2026-06-01, kind: spot, per_hour: 1}, {from: 2026-05-01, kind: spot, per_hour: 2"): "begins before",
		rate("from: 2026-01-01, kind: spot, per_hour: 1, per_month: 700"):                                              "only one of",
		rate("from: 2026-01-01, kind: spot, per_hour: 1, discount: 101%"):                                              "discount",
		rate("from: 2026-01-01, kind: spot, per_hour: 1, discount: -1%"):                                               "discount",
		rate("from: 2026-01-01, kind: owned, capex: 1, years: 1, discount: 1%"):                                        "capex and years",
		committed("name: x, from: 2026-01-01, per_hour: 1"):                                                            "gpus: must be",
		committed("gpus: 1, from: 2026-01-01, per_hour: 1"):                                                            "name: missing",
		committed("name: x, gpus: 1, per_hour: 1"):                                                                     "commitments[0]: from",
		committed("name: x, gpus: 1, from: 2026-01-01"):                                                                "per_hour",
		"currency: US DOLLAR":        "currency",
		"a: &a [x,x]\nb: &b [*a,*a]": "line 1: unknown key a; line 2: unknown key b",
		"currency: EUR\nprices: [" + strings.Repeat("{rates: []},", 20_000) + "]": "more than",
		strings.Repeat("#", maxFile+1):                                            "larger than 4 MiB",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
	if p, err := Parse([]byte("# none yet\n")); err != nil || !p.Empty() || p.Currency != "" {
		t.Errorf("a file without prices: %v %v", p, err)
	}
}

// Catches lost digits or signs in formatted amounts.
func TestMoney(t *testing.T) {
	t.Parallel()
	for m, want := range map[Money][3]string{
		0: {"0.00", "0.000000", "0"}, 1: {"0.00", "0.000001", "0"}, -1: {"0.00", "-0.000001", "0"}, 5000: {"0.01", "0.005000", "0"}, -5000: {"-0.01", "-0.005000", "0"},
		1_234_567_890: {"1234.57", "1234.567890", "1235"}, -999_999: {"-1.00", "-0.999999", "-1"},
	} {
		if diff := cmp.Diff(want, [3]string{m.String(), m.Decimals(6), m.Decimals(0)}); diff != "" {
			t.Errorf("%d (-want +got):\n%s", m, diff)
		}
	}
	// The highest price of the highest counter must not overflow.
	if got := Nano(maxPrice * 1e9).Capacity(1e9 * 1e6); got <= 0 {
		t.Errorf("cost is %d", got)
	}
	if got := Nano(maxPrice * 1e9).Energy(1e13 * 1e3); got <= 0 {
		t.Errorf("cost is %d", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(priceText))
	f.Add([]byte("quotas: [{team: a, gpus: 8, money_per_month: 1.5}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := Parse(text); err == nil {
			price, ok := p.At(map[string]string{"gpu_model": "NVIDIA H100"}, noon)
			if ok && (price.PerHour < 0 || price.PerKWh < 0) {
				t.Errorf("negative price: %+v", price)
			}
		}
		_, _ = ParseQuotas(text)
	})
}
