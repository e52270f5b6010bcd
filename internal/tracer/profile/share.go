package profile

import (
	"cmp"
	"math/bits"
	"slices"
)

// Share divides a total by weights, so that the parts add up to it exactly. Without any weight the first
// part is the total.
func Share(total uint64, weights []uint64) []uint64 {
	parts := make([]uint64, len(weights))
	if len(weights) == 0 {
		return parts
	}
	var sum uint64
	for _, w := range weights {
		sum += w
	}
	if sum == 0 {
		parts[0] = total
		return parts
	}
	rests := make([]uint64, len(weights))
	left := total
	for i, w := range weights {
		high, low := bits.Mul64(total, w)
		parts[i], rests[i] = bits.Div64(high, low, sum) // w <= sum, so that it fits
		left -= parts[i]
	}
	order := make([]int, len(weights))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rests[b], rests[a]) })
	for _, i := range order[:left] { // fewer than parts
		parts[i]++
	}
	return parts
}
