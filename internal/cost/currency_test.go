package cost

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches two currencies that are added up as if they were one, and an exchange rate that applies
// before its date.
func TestExchange(t *testing.T) {
	t.Parallel()
	const rules = `
prices:
- match: {model: H100}
  rates:
  - {from: 2026-01-01, kind: spot, per_hour: 2, currency: USD}
  - {from: 2026-05-01, to: 2026-08-01, kind: owned, capex: 35064, years: 4, currency: USD}
- rates: [{from: 2026-01-01, kind: spot, per_hour: 1}]
power:
- rates: [{from: 2026-01-01, per_kwh: 0.10, currency: USD, co2_g_per_kwh: 100}]
`
	p := mustParse(t, `
currency: EUR
exchange: {USD: [{from: 2026-06-01, rate: 0.8}, {from: 2025-01-01, rate: 0.9}, {from: 2026-03-01, rate: 0.95}, {from: 2026-09-01, rate: 0.5}]}
`+rules)
	f := func(month int, want Price) {
		t.Helper()
		got, ok := p.At(map[string]string{"gpu_model": "H100"}, time.Date(2026, time.Month(month), 1, 0, 0, 0, 0, time.UTC))
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("month %d (-want +got):\n%s", month, diff)
		}
	}
	f(1, Price{Kind: Spot, PerHour: 1.8e9})
	f(3, Price{Kind: Spot, PerHour: 1.9e9})
	f(5, Price{Kind: Owned, PerHour: 0.95e9, PerKWh: 0.095e9})
	f(6, Price{Kind: Owned, PerHour: 0.8e9, PerKWh: 0.08e9})
	f(8, Price{Kind: Spot, PerHour: 1e9}) // over: the next rule applies
	f(9, Price{Kind: Spot, PerHour: 1e9})

	refuse := func(head, want string) {
		t.Helper()
		if _, err := Parse([]byte(head + rules)); err == nil || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", head, err, want)
		}
	}
	refuse("currency: EUR", `line 5: prices[0].rates[0]: currency: the file is in EUR and has no exchange rate of USD: add exchange: {USD: [{from: 2026-01-01, rate: ...}]}`)
	refuse("currency: EUR\nexchange: {USD: [{from: 2026-02-01, rate: 0.9}]}", `line 6: prices[0].rates[0]: currency: the exchange rates of USD begin at 2026-02-01T00:00:00Z, after this rate`)
	refuse("currency: EUR\nexchange: {EUR: [{from: 2026-02-01, rate: 0.9}]}", `line 2: exchange: EUR: is the currency of the file`)
	refuse("currency: EUR\nexchange: {US: [{from: 2026-02-01, rate: 0.9}]}", `line 2: exchange: US: "US" is not a currency code of ISO 4217, such as EUR or USD; XXX is for credits that are no currency`)
	refuse("currency: EUR\nexchange:\n  USD:\n  - {from: 2026-01-01, rate: 0}", `line 4: exchange.USD[0]: rate: must be a positive number`)
	refuse("currency: EUR\nexchange:\n  USD:\n  - {from: 2026-01-01, rate: 1}\n  - {from: 2026-01-01, rate: 2}", `line 5: exchange.USD[1]: two rates start at 2026-01-01T00:00:00Z`)
	refuse("currency: €", `line 1: currency: "€" is not a currency code of ISO 4217, such as EUR or USD; XXX is for credits that are no currency`)

	quotas, err := ParseQuotas([]byte("currency: USD\nquotas: [{team: a, money_per_month: 1}]"))
	if err != nil {
		t.Fatal(err)
	}
	if err := SameCurrency(quotas, p); err == nil || err.Error() != "the quota a is in USD, but the prices are in EUR" {
		t.Error(err)
	}
}

// Catches a bill over a change of the exchange rate that uses one rate for all of it.
func TestExchangeBill(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := range 121 { // one H100 for two hours
		one(m, noon.Add(time.Duration(i)*time.Minute), float64(i*60), float64(i*60))
	}
	p := mustParse(t, `
currency: EUR
exchange: {USD: [{from: 2026-01-01, rate: 0.9}, {from: `+noon.Add(time.Hour).Format(time.RFC3339)+`, rate: 0.8}]}
prices: [{rates: [{from: 2026-01-01, kind: spot, per_hour: 2, currency: USD}]}]
`)
	got := mustBill(t, m, p, noon, noon.Add(2*time.Hour))
	if diff := cmp.Diff(Money(1.8e6+1.6e6), got.Total.Total()); diff != "" || got.Currency != "EUR" {
		t.Errorf("%s (-want +got):\n%s", got.Currency, diff)
	}
}
