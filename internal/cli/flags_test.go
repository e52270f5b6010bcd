//go:build linux

package cli

import "testing"

func TestParseSize(t *testing.T) {
	f := func(text string, want int64) {
		t.Helper()
		got, err := parseSize(text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q is %d (%v), want %d", text, got, err, want)
		}
	}
	f("1", 1)
	f("4KiB", 4096)
	f("256MiB", 256<<20)
	f("2 GiB", 2<<30)
	f("1024GiB", 1<<40)
	for _, bad := range []string{"", "0", "-1", "1MB", "MiB", "1.5GiB", "1025GiB", "9223372036854775807", "9000000000GiB"} {
		f(bad, 0)
	}
}
