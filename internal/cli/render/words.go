//go:build linux

// Package render formats the results of commands as text for people and in formats for other
// programs. It depends on no flag and no terminal: widths and writers are parameters, so that
// tests see what users see.
package render

import (
	"fmt"
	"strings"
	"unicode"
)

// Plural returns a number with its noun: "1 line", "2 lines".
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// dimensions formats a grid or block size without trailing dimensions of 1.
func dimensions(d [3]uint32) string {
	text := fmt.Sprintf("%dx%dx%d", d[0], d[1], d[2])
	return strings.TrimSuffix(strings.TrimSuffix(text, "x1"), "x1")
}

// shortenTo truncates s to n characters.
func shortenTo(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-3]) + "..."
}

// spanOf formats seconds with a suitable unit.
func spanOf(s float64) string {
	switch {
	case s < 1e-3:
		return fmt.Sprintf("%.1f us", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.1f ms", s*1e3)
	}
	return fmt.Sprintf("%.1f s", s)
}

// byteSize formats bytes with a suitable unit.
func byteSize(b float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if b < 1024 && b > -1024 {
			if unit == "B" {
				return fmt.Sprintf("%.0f %s", b, unit)
			}
			return fmt.Sprintf("%.1f %s", b, unit)
		}
		b /= 1024
	}
	return fmt.Sprintf("%.1f TiB", b)
}

// plain returns a user-chosen name without characters that could move the cursor.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
