package cost

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches rows out of order: keys of which one is the beginning of another, keys that differ beyond the
// bytes that are compared first, and keys with nothing in common.
func TestRowsAreSorted(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		seen := map[string]bool{}
		var rows []ranked
		begin := []string{"", "gpu_model\xffH100\xffgpu_uuid\xffGPU-"}[r.IntN(2)]
		var want []string
		for range r.IntN(50) {
			key := begin
			for range r.IntN(20) {
				key += string("\x00ab\xff"[r.IntN(4)])
			}
			if !seen[key] {
				seen[key], want = true, append(want, key)
				rows = append(rows, ranked{key: key})
			}
		}
		slices.Sort(want)
		var got []string
		sortFrom(rows, 0)
		for _, x := range rows {
			got = append(got, x.key)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
	}
}
