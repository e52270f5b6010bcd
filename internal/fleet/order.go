package fleet

import "cmp"

// Natural compares names so that node-9 comes before node-10.
func Natural(a, b string) int {
	if a == b {
		return 0
	}
	for a != "" && b != "" {
		if digit(a[0]) && digit(b[0]) {
			m, n := digits(a), digits(b)
			if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
				return c
			}
			a, b = a[len(m):], b[len(n):]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func digits(s string) string {
	n := 0
	for n < len(s) && digit(s[n]) {
		n++
	}
	return s[:n]
}
