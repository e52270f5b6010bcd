package training

import "math"

// verdict is what the other kernels say about a number of launches in a step.
type verdict int

const (
	possible verdict = iota // nothing speaks against it, but a shorter step is as good
	proven                  // all of them run a whole number of times in it, and not so in a shorter one
	doubtful                // some run a fraction of a time in it, as a kernel that logs each tenth step
	refuted                 // so do most kernels of the backward pass, or one of them does not run in each
)

// check compares what a number of launches of the marker in a step means for the other kernels. Only kernels
// of the backward pass and of the optimizer can refute it: all others may run between steps, too, as those of
// an evaluation. That all have a common divisor, as with accumulated gradients, is no contradiction.
func (r *rhythm) check(marker string, every uint64) verdict {
	n := float64(r.grown(marker)) / float64(every)
	if n < leastSteps {
		return possible
	}
	part, other, rare, whole := 0, 0, false, []uint64{}
	vote := func(name string, counts bool) {
		g := r.grown(name)
		// Both readings are within a step: times*(n-1) <= g <= times*(n+1).
		low, high := uint64(math.Ceil(float64(g)/(n+1))), uint64(float64(g)/(n-1))
		switch {
		case g == 0:
		case low > high && counts:
			part, rare = part+1, rare || high == 0
		case low > high:
			other++
		case low == high:
			whole = append(whole, low)
		}
	}
	for name, kind := range r.kinds {
		if name != marker && kind != None && 10*r.growing(name) >= 9*r.growing(marker) {
			vote(name, true)
		}
	}
	for _, name := range r.plain {
		if r.together(name, marker) {
			vote(name, false)
		}
	}
	switch {
	case rare || part > len(whole):
		return refuted
	case part+other > 0:
		return doubtful
	case coprime(every, whole):
		return proven
	}
	return possible
}

// coprime reports whether a number has no common divisor with a list, whichever one of the list is left out: one
// kernel proves nothing.
func coprime(n uint64, list []uint64) bool {
	for skip := range list {
		d := n
		for i, m := range list {
			if i != skip {
				d = gcd(d, m)
			}
		}
		if d != 1 {
			return false
		}
	}
	return len(list) > 1
}
