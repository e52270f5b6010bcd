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
	"strconv"
	"strings"
	"time"
)

// Money is an amount in millionths of the currency: 9.2e12 of it fit, and no part of a
// bill is wrong by more than one of them.
type Money int64

// String writes the amount with two decimals, rounded to the nearest.
func (m Money) String() string { return m.Decimals(2) }

// Decimals writes the amount with n decimals, 0 to 6, rounded to the nearest.
func (m Money) Decimals(n int) string {
	if n = min(max(n, 0), 6); n == 6 {
		return decimal(int64(m), 6)
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
	return decimal((v+half)/unit, n)
}

// MarshalJSON writes a number with all six decimals, which is exact.
func (m Money) MarshalJSON() ([]byte, error) { return []byte(m.Decimals(6)), nil }

func decimal(v int64, n int) string {
	if n == 0 {
		return strconv.FormatInt(v, 10)
	}
	sign := ""
	if v < 0 {
		sign, v = "-", -v
	}
	s := strconv.FormatInt(v, 10)
	if len(s) <= n {
		s = strings.Repeat("0", n+1-len(s)) + s
	}
	return sign + s[:len(s)-n] + "." + s[len(s)-n:]
}

// Seconds is device time in microseconds: 10,000 GPUs have 2.6e16 of them a month.
type Seconds int64

// Hours are device hours.
func (s Seconds) Hours() float64 { return float64(s) / 3600e6 }

// Duration is the same as a length of time of one device.
func (s Seconds) Duration() time.Duration { return time.Duration(s) * time.Microsecond }

// MarshalJSON writes seconds with all six decimals, which is exact.
func (s Seconds) MarshalJSON() ([]byte, error) { return []byte(decimal(int64(s), 6)), nil }

// Energy is in millijoules.
type Energy int64

// KWh is the same in kilowatt-hours.
func (e Energy) KWh() float64 { return float64(e) / 3.6e9 }

// MarshalJSON writes joules with all three decimals, which is exact.
func (e Energy) MarshalJSON() ([]byte, error) { return []byte(decimal(int64(e), 3)), nil }

// Carbon is CO2 equivalent in milligrams.
type Carbon int64

// Kilograms is the same in kilograms.
func (c Carbon) Kilograms() float64 { return float64(c) / 1e6 }

// MarshalJSON writes grams with all three decimals, which is exact.
func (c Carbon) MarshalJSON() ([]byte, error) { return []byte(decimal(int64(c), 3)), nil }

// Nano is a price in billionths of the currency, for an hour of a device or a kWh.
type Nano int64

// maxPrice is the highest price for an hour of a device or a kWh, in units of currency.
const maxPrice = 1_000_000

// Float is the same in the currency.
func (n Nano) Float() float64 { return float64(n) / 1e9 }

// MarshalJSON writes the currency with all nine decimals.
func (n Nano) MarshalJSON() ([]byte, error) { return []byte(decimal(int64(n), 9)), nil }

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
