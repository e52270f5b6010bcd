//go:build linux

package amd

// counter carries a narrow counter of the hardware on over its end.
type counter struct {
	seen  bool
	last  uint64
	total uint64
}

// add takes a reading, and returns the sum. A counter that fell without having been near
// its end was reset, and so is the sum.
func (c *counter) add(raw uint64, width kind) uint64 {
	switch {
	case !c.seen || raw < c.last && !wrapped(c.last, raw, width):
		c.total = raw
	default:
		c.total += difference(c.last, raw, width)
	}
	c.seen, c.last = true, raw
	return c.total
}

// wrapped reports whether a counter of the width went from before to now over its end.
// One of 64 bits never does.
func wrapped(before, now uint64, width kind) bool {
	if width.size() >= u64.size() || now >= before {
		return false
	}
	quarter := uint64(1) << (8*width.size() - 2)
	return before >= 3*quarter && now < quarter
}

// difference returns how far a counter went, 0 if it was reset.
func difference(before, now uint64, width kind) uint64 {
	switch {
	case now >= before:
		return now - before
	case wrapped(before, now, width):
		return now + 1<<(8*width.size()) - before
	}
	return 0
}
