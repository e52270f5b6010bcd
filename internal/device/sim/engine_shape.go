package sim

import (
	"math"
	"math/bits"
)

// counts are how many of something there were at each level of load.
type counts [levels + 1]uint64

func (c *counts) total() (n uint64) {
	for _, v := range c {
		n += v
	}
	return n
}

// Requests differ: each has a quantile, which says how it compares with others at the same level of
// load. The quantiles come in the order of a van der Corput sequence, which fills the range evenly,
// so how many of the first n requests are below a bound has a closed form, whatever n is. Histograms
// are therefore whole at every moment, and none of their buckets ever loses a request.
const (
	quantileBits = 10
	quantiles    = 1 << quantileBits
)

// quantile returns the quantile of the n-th request.
func quantile(n uint64) int { return int(bits.Reverse16(uint16(n%quantiles)) >> (16 - quantileBits)) }

// below returns how many of the first n requests have a quantile below bound.
func below(n uint64, bound int) uint64 {
	sum := n / quantiles * uint64(bound)
	n %= quantiles
	var done uint64
	for bit := quantileBits - 1; bit >= 0; bit-- {
		size := 1 << bit
		if n&uint64(size) == 0 {
			continue
		}
		// The next size requests have evenly spaced quantiles.
		step := quantiles >> bit
		sum += uint64(min(max((bound-quantile(done)+step-1)/step, 0), size))
		done |= uint64(size)
	}
	return sum
}

// shape has a value for each quantile, ascending.
type shape struct {
	values [quantiles]float64
	sums   [quantiles + 1]float64 // of the first requests
}

// newShape takes the values from a function of the standard normal deviate.
func newShape(value func(z float64) float64) *shape {
	return indexed(func(i int) float64 { return value(math.Sqrt2 * math.Erfinv((2*float64(i)+1)/quantiles-1)) })
}

// indexed takes the values from a function of the quantile.
func indexed(value func(i int) float64) *shape {
	s := &shape{}
	for i := range s.values {
		s.values[i] = value(i)
	}
	for n := range uint64(quantiles) {
		s.sums[n+1] = s.sums[n] + s.values[quantile(n)]
	}
	return s
}

// spread returns a shape with a log-normal distribution of mean 1.
func spread(sigma float64) *shape {
	return newShape(func(z float64) float64 { return math.Exp(sigma*z - sigma*sigma/2) })
}

// sizes returns a shape of whole numbers with a given mean and maximum.
func sizes(mean, sigma, most float64) *shape {
	scale := mean
	var s *shape
	for range 20 { // the maximum and the rounding change the mean
		s = newShape(func(z float64) float64 {
			return min(max(2, math.Round(scale*math.Exp(sigma*z-sigma*sigma/2))), most)
		})
		scale *= mean / s.mean()
	}
	return s
}

func (s *shape) mean() float64 { return s.sums[quantiles] / quantiles }

// sum returns the sum over the first n requests.
func (s *shape) sum(n uint64) float64 {
	return float64(n/quantiles)*s.sums[quantiles] + s.sums[n%quantiles]
}

// term is a part of what a histogram observes: a shape, with a factor for each level.
type term struct {
	shape *shape
	scale byLevel
}

// same returns the factor for all levels of requests that got an answer.
func same(v float64) (s byLevel) {
	for i := range levels {
		s[i] = v
	}
	return s
}

// histogram counts observations, each of which is a sum of terms.
type histogram struct {
	bounds []float64
	terms  []term
	ranks  [][levels + 1]uint16 // by bound: how many quantiles are within it
}

func newHistogram(bounds []float64, terms ...term) *histogram {
	h := &histogram{bounds: bounds, terms: terms, ranks: make([][levels + 1]uint16, len(bounds))}
	for level := range levels + 1 {
		rank := 0
		for i, bound := range bounds {
			for rank < quantiles && h.value(level, rank) <= bound {
				rank++
			}
			h.ranks[i][level] = uint16(rank)
		}
	}
	return h
}

func (h *histogram) value(level, quantile int) (v float64) {
	for i := range h.terms {
		v += h.terms[i].scale[level] * h.terms[i].shape.values[quantile]
	}
	return v
}

// within returns how many observations are within the i-th bound.
func (h *histogram) within(i int, c *counts) (n uint64) {
	for level, count := range c {
		if count > 0 {
			n += below(count, int(h.ranks[i][level]))
		}
	}
	return n
}

// sum returns the sum of all observations.
func (h *histogram) sum(c *counts) (v float64) {
	for level, count := range c {
		if count == 0 {
			continue
		}
		for i := range h.terms {
			v += h.terms[i].scale[level] * h.terms[i].shape.sum(count)
		}
	}
	return v
}
