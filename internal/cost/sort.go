package cost

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// ranked is the key of a row and the eight bytes of it by which it is sorted.
type ranked struct {
	rank  uint64
	key   string
	place int
}

// sortFrom sorts rows by their keys, which are all different and alike up to a byte. Keys have hundreds of
// bytes and begin alike: those of a fleet up to the UUID, those of a device up to the workload. Instead
// of comparing them, each is looked at once where a group of keys first differs, as in a radix sort.
func sortFrom(list []ranked, same int) {
	if len(list) < 2 {
		return
	}
	first := list[0].key
	end := len(first)
	for _, r := range list[1:] {
		n := same
		for n < min(end, len(r.key)) && r.key[n] == first[n] {
			n++
		}
		end = n
	}
	for i := range list {
		var next [8]byte
		copy(next[:], list[i].key[end:])
		list[i].rank = binary.BigEndian.Uint64(next[:])
	}
	slices.SortFunc(list, func(a, b ranked) int {
		if c := cmp.Compare(a.rank, b.rank); c != 0 {
			return c
		}
		// A key that ends here comes before one that goes on with zeros.
		return cmp.Compare(min(8, len(a.key)-end), min(8, len(b.key)-end))
	})
	for i := 0; i < len(list); {
		n := i + 1
		for n < len(list) && list[n].rank == list[i].rank && min(8, len(list[n].key)-end) == min(8, len(list[i].key)-end) {
			n++
		}
		sortFrom(list[i:n], end+8)
		i = n
	}
}
