package tui

import (
	"fmt"
	"math"
	"strings"
	"unicode"

	"charm.land/lipgloss/v2"

	"github.com/gpumeter/gpumeter/internal/device"
)

// none stands for an absent value, which is not zero.
const none = "-"

// clean replaces control characters in a name: any user may name a pod.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, s)
}

// cut truncates s to at most n terminal cells.
func cut(s string, n int) string {
	if lipgloss.Width(s) <= n {
		return s
	}
	if n <= 0 {
		return ""
	}
	var b strings.Builder
	for _, r := range s {
		if lipgloss.Width(b.String()+string(r)) > n-1 {
			break
		}
		b.WriteRune(r)
	}
	return b.String() + "~"
}

// left and right pad or truncate s to exactly n cells.
func left(s string, n int) string {
	s = cut(s, n)
	return s + strings.Repeat(" ", max(0, n-lipgloss.Width(s)))
}

func right(s string, n int) string {
	s = cut(s, n)
	return strings.Repeat(" ", max(0, n-lipgloss.Width(s))) + s
}

// wrap breaks s between words into lines of at most n cells.
func wrap(s string, n int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch {
		case line == "":
			line = word
		case lipgloss.Width(line)+1+lipgloss.Width(word) <= n:
			line += " " + word
		default:
			lines = append(lines, cut(line, n))
			line = word
		}
	}
	if line == "" {
		return lines
	}
	return append(lines, cut(line, n))
}

func percent(v device.Value) string {
	if x, ok := v.Get(); ok {
		return fmt.Sprintf("%.0f%%", 100*x)
	}
	return none
}

// bytesOf returns used/total in GiB.
func bytesOf(used, total device.Value) string {
	u, t := none, ""
	if x, ok := used.Get(); ok {
		u = gibibytes(x)
	}
	if x, ok := total.Get(); ok {
		t = "/" + gibibytes(x)
	}
	return u + t
}

func gibibytes(x float64) string { return fmt.Sprintf("%.0f", x/(1<<30)) }

func watts(draw, limit device.Value) string {
	x, ok := draw.Get()
	if !ok {
		return none
	}
	text := fmt.Sprintf("%.0f", x)
	if l, ok := limit.Get(); ok {
		text += fmt.Sprintf("/%.0f", l)
	}
	return text
}

func celsius(v device.Value) string {
	if x, ok := v.Get(); ok {
		return fmt.Sprintf("%.0fC", x)
	}
	return none
}

func money(v device.Value) string {
	if x, ok := v.Get(); ok {
		return fmt.Sprintf("%.2f", x)
	}
	return none
}

// power formats watts as W or kW.
func power(w float64) string {
	if w >= 10_000 {
		return fmt.Sprintf("%.1f kW", w/1000)
	}
	return fmt.Sprintf("%.0f W", w)
}

// bar draws a ratio in n cells.
func (s style) bar(v device.Value, n int) string {
	x, ok := v.Get()
	if !ok || n < 1 {
		return strings.Repeat(" ", max(0, n))
	}
	full, half, empty := "█", "▌", "·"
	if s.ascii {
		full, half, empty = "#", "+", "."
	}
	halves := int(math.Round(min(1, max(0, x)) * float64(2*n)))
	text := strings.Repeat(full, halves/2)
	if halves%2 == 1 {
		text += half
	}
	return text + strings.Repeat(empty, n-lipgloss.Width(text))
}
