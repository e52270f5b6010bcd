// Package cost says what GPU time and energy cost, and whom. It reads counters through
// query.Store, never rates: each sum of money is the difference of one function of a
// counter at two moments, in integers, so that hours add up to their day on every store.
// It is pure: nothing here knows where prices or answers come from.
package cost

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"strings"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// Money is an amount in millionths of the currency: 9.2e12 of it fit, and no part of a
// bill is wrong by more than one of them.
type Money int64

// String writes the amount with two decimals, rounded to the nearest.
func (m Money) String() string { return m.Decimals(2) }

// Decimals writes the amount with n decimals, 0 to 6, rounded to the nearest.
func (m Money) Decimals(n int) string {
	if n = min(max(n, 0), 6); n == 6 {
		return fleet.Decimal(int64(m), 6)
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
	return fleet.Decimal((v+half)/unit, n)
}

// MarshalJSON writes a number with all six decimals, which is exact.
func (m Money) MarshalJSON() ([]byte, error) { return []byte(m.Decimals(6)), nil }

// Seconds is device time in microseconds.
type Seconds = fleet.Seconds

// Energy is in millijoules.
type Energy = fleet.Energy

// Carbon is CO2 equivalent in milligrams.
type Carbon int64

// Kilograms is the same in kilograms.
func (c Carbon) Kilograms() float64 { return float64(c) / 1e6 }

// MarshalJSON writes grams with all three decimals, which is exact.
func (c Carbon) MarshalJSON() ([]byte, error) { return []byte(fleet.Decimal(int64(c), 3)), nil }

// Nano is a price in billionths of the currency, for an hour of a device or a kWh.
type Nano int64

// maxPrice is the highest price for an hour of a device or a kWh, in units of currency.
const maxPrice = 1_000_000

// Float is the same in the currency.
func (n Nano) Float() float64 { return float64(n) / 1e9 }

// MarshalJSON writes the currency with all nine decimals.
func (n Nano) MarshalJSON() ([]byte, error) { return []byte(fleet.Decimal(int64(n), 9)), nil }

// Capacity is what a counter that stands at s has cost in all at a price: the one function
// whose differences are money.
func (n Nano) Capacity(s Seconds) Money { return Money(muldiv(int64(s), int64(n), 3600e6*1000)) }

// Energy is what a counter that stands at e has cost in all.
func (n Nano) Energy(e Energy) Money { return Money(muldiv(int64(e), int64(n), 3600e6*1000)) }

// muldiv is a*b/c rounded down, for a, b >= 0. The counters and prices that are let in
// keep the quotient below 2^63.
func muldiv(a, b int64, c uint64) int64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, c)
	return int64(q)
}

// nano reads a decimal number of the currency without the errors of floating point.
func nano(text string) (Nano, error) {
	if len(text) > 40 || strings.ContainsAny(text, "/xXpPeE_") {
		return 0, errors.New("it must be a number such as 2.50")
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return 0, errors.New("it must be a number such as 2.50")
	}
	return nanoOf(r)
}

// nanoOf rounds to the nearest billionth.
func nanoOf(r *big.Rat) (Nano, error) {
	if r.Sign() < 0 || r.Cmp(big.NewRat(maxPrice, 1)) > 0 {
		return 0, fmt.Errorf("it must be from 0 to %d", maxPrice)
	}
	n := new(big.Int).Mul(r.Num(), big.NewInt(2_000_000_000))
	n.Add(n, r.Denom())
	n.Div(n, new(big.Int).Mul(r.Denom(), big.NewInt(2)))
	return Nano(n.Int64()), nil
}
