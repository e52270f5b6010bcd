package device

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const gib = 1 << 30

// Catches a model that is taken for another whose name contains its own, or for the one with another memory, and a device
// that nobody knows but that gets the partitions of one.
func TestModels(t *testing.T) {
	list := Vendors{{Name: "other"}, {Name: "acme", Models: []Model{
		{Words: []string{"X1", "PCIe"}, Memory: 80 << 10, Compute: 7, Bandwidth: 2},
		{Words: []string{"X1"}, Memory: 40 << 10, Compute: 3, Bandwidth: 1},
		{Words: []string{"X1"}, Memory: 80 << 10, Compute: 9, Bandwidth: 4, Units: 10, Profiles: []PartitionProfile{
			{Name: "1g.9gb", Slice: Slice{1, 4}, Units: 2, Memory: 9 << 10},
			{Name: "2g.18gb", Slice: Slice{2, 4}, Units: 5, Memory: 18 << 10},
		}},
		{Words: []string{"X2"}, Memory: 80 << 10, Compute: 9},
	}}}
	type facts struct {
		Compute, Bandwidth float64
		OK                 bool
		Slices             []string
	}
	f := func(model string, memory float64, want facts) {
		t.Helper()
		var got facts
		got.Compute, got.Bandwidth, got.OK = list.Strength(model, memory)
		list.Slices(model, memory, func(profile string, memory, compute, part float64) {
			got.Slices = append(got.Slices, fmt.Sprintf("%s %g GiB %g of the units, %g of the device", profile, memory/gib, compute, part))
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s of %g GiB (-want +got):\n%s", model, memory/gib, diff)
		}
	}
	large := facts{9, 4, true, []string{"1g.9gb 9 GiB 0.2 of the units, 0.25 of the device", "2g.18gb 18 GiB 0.5 of the units, 0.5 of the device"}}
	f("Acme X1-SXM-80GB", 79.6*gib, large)
	f("Acme X1 80GB PCIe", 80*gib, facts{Compute: 7, Bandwidth: 2, OK: true})
	f("Acme X1", 39.5*gib, facts{Compute: 3, Bandwidth: 1, OK: true})
	f("Acme X1", 60*gib, facts{})
	f("Acme X1", 0, facts{})
	f("Acme X10", 80*gib, facts{})
	f("", 80*gib, facts{})
	f("Acme X2", 80*gib, facts{}) // half of its strength is none
}
