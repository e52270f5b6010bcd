package natural

import "testing"

// Catches an order by characters, and numbers with leading zeros that differ.
func TestCompare(t *testing.T) {
	f := func(a, b string, want int) {
		t.Helper()
		if got := Compare(a, b); got != want {
			t.Errorf("Compare(%q, %q) = %d, want %d", a, b, got, want)
		}
	}
	f("node-9", "node-10", -1)
	f("node-10", "node-9", 1)
	f("a", "a", 0)
	f("a", "a1", -1)
	f("r2n1", "r2n1", 0)
	f("r10", "r2", 1)
	f("n007", "n7", 0)
}
