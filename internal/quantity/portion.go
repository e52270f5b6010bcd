package quantity

import "math/bits"

// Portion returns v*part/all, rounded down; part is at most all.
func Portion(v int64, part, all uint64) int64 {
	if v <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(v), part)
	q, _ := bits.Div64(hi, lo, all)
	return int64(q)
}
