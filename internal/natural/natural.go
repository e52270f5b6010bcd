// Package natural orders names as people do: node-9 comes before node-10.
package natural

import (
	"cmp"
	"strings"
)

// Compare compares strings with embedded numbers ordered by value: card2 comes before
// card10.
func Compare(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x > 0 && y > 0 {
			m, n := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
			if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
				return c
			}
			a, b = a[x:], b[y:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits returns the number of leading digits in s.
func digits(s string) int {
	return len(s) - len(strings.TrimLeft(s, "0123456789"))
}
