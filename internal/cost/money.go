// Package cost computes what GPU time and energy cost, and who owes it. It reads counters through
// query.Store, never rates: each amount is the difference of one function of a counter at two
// moments, in integers, so hours add up to their day on every store. The package is pure: it
// does not know where prices or samples come from.
package cost

import (
	"fmt"
	"math/big"
	"math/bits"
	"regexp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/quantity"
)

// Money is an amount in millionths of the currency. Amounts up to 9.2e12 units fit, and no part
// of a bill is off by more than one millionth.
type Money int64

// String formats the amount with two decimals, rounded to nearest.
func (m Money) String() string { return m.Decimals(2) }

// Decimals formats the amount with n decimals, 0 to 6, rounded to nearest.
func (m Money) Decimals(n int) string {
	if n = min(max(n, 0), 6); n == 6 {
		return quantity.Decimal(int64(m), 6)
	}
	unit := int64(1)
	for range 6 - n {
		unit *= 10
	}
	v := int64(m)
	half := unit / 2
	if v < 0 {
		half = -half
	}
	return quantity.Decimal((v+half)/unit, n)
}

// MarshalJSON encodes a number with all six decimals, which is exact.
func (m Money) MarshalJSON() ([]byte, error) { return []byte(m.Decimals(6)), nil }

// Seconds is device time in microseconds.
type Seconds = fleet.Seconds

// Energy is in millijoules.
type Energy = fleet.Energy

// Carbon is CO2 equivalent in milligrams.
type Carbon int64

// Kilograms returns c in kilograms.
func (c Carbon) Kilograms() float64 { return float64(c) / 1e6 }

// MarshalJSON encodes grams with all three decimals, which is exact.
func (c Carbon) MarshalJSON() ([]byte, error) { return []byte(quantity.Decimal(int64(c), 3)), nil }

// Nano is a price in billionths of the currency, per device hour or kWh.
type Nano int64

// maxPrice is the highest price per device hour or kWh, in units of the currency.
const maxPrice = 1_000_000

// Float returns n in units of the currency.
func (n Nano) Float() float64 { return float64(n) / 1e9 }

// MarshalJSON encodes units of the currency with all nine decimals.
func (n Nano) MarshalJSON() ([]byte, error) { return []byte(quantity.Decimal(int64(n), 9)), nil }

// Capacity returns the cumulative cost of a counter at s. Bills are differences of this one
// function.
func (n Nano) Capacity(s Seconds) Money { return Money(muldiv(int64(s), int64(n), 3600e6*1000)) }

// Energy returns the cumulative cost of a counter at e.
func (n Nano) Energy(e Energy) Money { return Money(muldiv(int64(e), int64(n), 3600e6*1000)) }

// muldiv returns a*b/c rounded down, for a, b >= 0. The limits on counters and prices keep the
// quotient below 2^63.
func muldiv(a, b int64, c uint64) int64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, c)
	return int64(q)
}

// nano parses a decimal amount without floating-point error.
func nano(text string) (Nano, error) {
	r, err := decimal(text)
	if err != nil {
		return 0, err
	}
	return nanoOf(r)
}

// decimal parses a decimal number exactly. Other notations are errors: readers of YAML disagree
// about 010, 0b101 and 1_000.
func decimal(text string) (*big.Rat, error) {
	if len(text) > 40 || !plainNumber.MatchString(text) {
		return nil, fmt.Errorf("%.40q is not a plain number such as 2.50", text)
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, fmt.Errorf("%.40q is not a number", text)
	}
	return r, nil
}

var plainNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)

// nanoOf rounds to the nearest billionth.
func nanoOf(r *big.Rat) (Nano, error) {
	if r.Sign() < 0 || r.Cmp(big.NewRat(maxPrice, 1)) > 0 {
		return 0, fmt.Errorf("must be from 0 to %d", maxPrice)
	}
	n := new(big.Int).Mul(r.Num(), big.NewInt(2_000_000_000))
	n.Add(n, r.Denom())
	n.Div(n, new(big.Int).Mul(r.Denom(), big.NewInt(2)))
	return Nano(n.Int64()), nil
}
