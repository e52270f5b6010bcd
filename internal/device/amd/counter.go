//go:build linux

package amd

// counter extends a narrow hardware counter across wraparounds.
type counter struct {
	seen  bool
	last  uint64
	total uint64
}

// add records a reading and returns the running total. A counter that decreased without
// having been near its end was reset, and so is the total.
func (c *counter) add(raw uint64, width kind) uint64 {
	const slightly = 1 << 16
	switch {
	case c.total > c.last && raw < c.last && c.last-raw < slightly: // misread: a reset would lose the wraparounds
		return c.total
	case !c.seen || raw < c.last && !wrapped(c.last, raw, width):
		c.total = raw
	default:
		c.total += difference(c.last, raw, width)
	}
	c.seen, c.last = true, raw
	return c.total
}

// wrapped reports whether a counter of the given width wrapped between before and now. A
// 64-bit counter never wraps.
func wrapped(before, now uint64, width kind) bool {
	if width.size() >= u64.size() || now >= before {
		return false
	}
	quarter := uint64(1) << (8*width.size() - 2)
	return before >= 3*quarter && now < quarter
}

// difference returns how far a counter advanced, or 0 if it was reset.
func difference(before, now uint64, width kind) uint64 {
	switch {
	case now >= before:
		return now - before
	case wrapped(before, now, width):
		return now + 1<<(8*width.size()) - before
	}
	return 0
}
