package node

import "github.com/gpumeter/gpumeter/internal/device"

// plus returns h with the totals of the same workload under an earlier description added: a
// workload whose labels changed has one account per label set, but is one tenant.
func (h Holder) plus(earlier Holder) Holder {
	h.Energy, h.Active = add(h.Energy, earlier.Energy), add(h.Active, earlier.Active)
	h.Allocated += earlier.Allocated
	a, _ := h.Peak.Get()
	if b, ok := earlier.Peak.Get(); ok {
		h.Peak = device.Of(max(a, b))
	}
	if earlier.Since.Before(h.Since) {
		h.Since = earlier.Since
	}
	return h
}
