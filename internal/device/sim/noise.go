package sim

import "fmt"

// hash mixes its arguments into 64 pseudo-random bits, using SplitMix64
// (https://prng.di.unimi.it/splitmix64.c).
func hash(parts ...uint64) uint64 {
	var h uint64
	for _, p := range parts {
		h += p + 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// uuid returns a version 4 UUID derived from key.
func uuid(key uint64) string {
	a, b := hash(key, 1), hash(key, 2)
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x",
		a>>32, a>>16&0xffff, a&0xfff, b>>48&0x3fff|0x8000, b&(1<<48-1))
}

// noise returns a smooth value from -1 to 1 for a second of the script. It swings about
// once every given number of seconds, which must divide the period, so that the end of the
// script meets its start.
func noise(key uint64, second, every int) float64 {
	knot := func(i int) float64 {
		return float64(hash(key, uint64(i%(period/every)))>>11)/(1<<52) - 1
	}
	i := second / every
	x := float64(second%every) / float64(every)
	a, b := knot(i), knot(i+1)
	return a + (b-a)*x*x*(3-2*x)
}
