package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// quantities is a list of resources of the Kubernetes API.
type quantities map[string]quantity

// quantity is a number as Kubernetes writes it: 4, 100m, 1.5, 500Gi, 2e3.
type quantity string

// UnmarshalJSON implements json.Unmarshaler. The API server writes strings, and people also numbers.
func (q *quantity) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] != '"' {
		*q = quantity(bytes.TrimSpace(b))
		return nil
	}
	return json.Unmarshal(b, (*string)(q))
}

// Scales of a quantity: thousandths for CPUs, which may be fractions, and ones for the rest.
const (
	milli = 1000
	ones  = 1
)

// maxQuantity bounds the length of a quantity, and with it the time to parse one.
const maxQuantity = 40

// in returns the quantity times scale, rounded up like the scheduler does.
func (q quantity) in(scale int64) (int64, error) {
	if n, err := strconv.ParseInt(string(q), 10, 64); err == nil && n >= 0 && n <= math.MaxInt64/scale {
		return n * scale, nil
	}
	number, factor, ok := q.split()
	if !ok {
		return 0, fmt.Errorf("quantity %.50q cannot be parsed", string(q))
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok || r.Sign() < 0 {
		return 0, fmt.Errorf("quantity %.50q cannot be parsed", string(q))
	}
	r.Mul(r, factor)
	r.Mul(r, new(big.Rat).SetInt64(scale))
	n, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	if !n.IsInt64() { // Kubernetes caps it as well
		return math.MaxInt64, nil
	}
	return n.Int64(), nil
}

// split separates digits from the suffix and returns the factor of the suffix.
func (q quantity) split() (number string, factor *big.Rat, ok bool) {
	text := string(q)
	if text == "" || len(text) > maxQuantity {
		return "", nil, false
	}
	at := strings.LastIndexAny(text, "0123456789.") + 1
	if i := strings.IndexAny(text[:at], "eE"); i >= 0 { // 2e3; 2E is an exabyte
		exp, err := strconv.Atoi(text[i+1:])
		if err != nil || exp < -30 || exp > 30 {
			return "", nil, false
		}
		return plain(text[:i], power(10, exp))
	}
	number = text[:at]
	switch s := text[at:]; s {
	case "":
		return plain(number, power(10, 0))
	case "n", "u", "m":
		return plain(number, power(10, map[string]int{"n": -9, "u": -6, "m": -3}[s]))
	default:
		if i := strings.Index("k M G T P E ", s+" "); i >= 0 && len(s) == 1 {
			return plain(number, power(10, 3*(i/2+1)))
		}
		if i := strings.Index("KiMiGiTiPiEi", s); i >= 0 && len(s) == 2 && i%2 == 0 {
			return plain(number, power(1024, i/2+1))
		}
	}
	return "", nil, false
}

// plain rejects what a big.Rat accepts and Kubernetes does not: fractions, other bases, underscores.
func plain(number string, factor *big.Rat) (string, *big.Rat, bool) {
	return number, factor, strings.Trim(number, "+0123456789.") == "" && strings.Count(number, ".") <= 1
}

func power(base int64, exp int) *big.Rat {
	p := new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(max(exp, -exp))), nil)
	if exp < 0 {
		return new(big.Rat).SetFrac(big.NewInt(1), p)
	}
	return new(big.Rat).SetInt(p)
}
