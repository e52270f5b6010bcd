//go:build linux

package live

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/ianlancetaylor/demangle"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

const (
	maxName      = 128  // bytes of a kernel's name
	maxNames     = 8192 // kept; the symbols of a process are few, and the same in all
	maxDemangled = 14   // log2 of the bytes that a symbol may become
)

// names turns the symbols of kernels into names, and remembers them.
type names struct {
	known map[string]string
}

// of returns the name of a symbol.
func (n *names) of(symbol string) string {
	if symbol == "" {
		return ""
	}
	if name, ok := n.known[symbol]; ok {
		return name
	}
	if n.known == nil || len(n.known) >= maxNames {
		n.known = map[string]string{}
	}
	name := kernelName(symbol)
	n.known[symbol] = name
	return name
}

// kernelKey tells the kernels of a process apart.
type kernelKey struct {
	name   string
	device int
}

// merged names kernels and puts those together that have one name on one device: the same
// kernel from several modules, and instances of a template that differ only in what was
// left out of the name. A kernel without a symbol is unknown.
func (n *names) merged(kernels []tracer.Kernel) []tracer.Kernel {
	place := make(map[kernelKey]int, len(kernels))
	var out []tracer.Kernel
	for _, k := range kernels {
		if k.Symbol != "" {
			k.Name = n.of(k.Symbol)
			k.Symbol = printable(k.Symbol)
		} else if k.Name == "" {
			k.Name = tracer.KernelUnknown
		}
		key := kernelKey{k.Name, k.Device}
		i, ok := place[key]
		if !ok {
			place[key] = len(out)
			out = append(out, k)
			continue
		}
		o := &out[i]
		if k.Count > o.Count { // the symbol and the sizes are those of the most frequent
			o.Symbol, o.Grid, o.Block, o.Shared = k.Symbol, k.Grid, k.Block, k.Shared
		}
		o.Count += k.Count
		o.Time += k.Time
	}
	return out
}

// chooser picks the kernels of one process that are told apart. What a kernel did while it
// was not among them stays in other, so that no sum ever falls: a kernel that comes in
// counts from then on, and one that goes leaves its count to other.
type chooser struct {
	limit int
	shown map[kernelKey]tally // what each had in other when it came in
	seen  map[kernelKey]tally // of all kernels, at the last choice
}

type tally struct {
	count uint64
	time  time.Duration
}

// choose returns the kernels that count most and those that take longest, in turns, by
// time; and behind them, if there are more, the sum of those as other.
func (c *chooser) choose(kernels []tracer.Kernel) (list []tracer.Kernel, folded int) {
	slices.SortStableFunc(kernels, longestFirst)
	chosen := c.top(kernels)
	shown := make(map[kernelKey]tally, len(chosen))
	seen := make(map[kernelKey]tally, len(kernels))
	other := tracer.Kernel{Name: tracer.KernelOther, Device: -1}
	for i, k := range kernels {
		key := kernelKey{k.Name, k.Device}
		seen[key] = tally{k.Count, k.Time}
		if !chosen[i] {
			folded++
			other.Count += k.Count
			other.Time += k.Time
			continue
		}
		had, was := c.shown[key]
		if !was {
			had = c.seen[key]
		}
		shown[key] = had
		other.Count += had.count
		other.Time += had.time
		k.Count -= min(had.count, k.Count)
		k.Time -= min(had.time, k.Time)
		list = append(list, k)
	}
	c.shown, c.seen = shown, seen
	if folded > 0 || other.Count > 0 {
		list = append(list, other)
	}
	return list, folded
}

// top returns which of the kernels, sorted by time, are told apart.
func (c *chooser) top(kernels []tracer.Kernel) []bool {
	chosen := make([]bool, len(kernels))
	var byTime []int
	for i, k := range kernels {
		if k.Name != tracer.KernelOther { // what the kernel's map had no room for
			byTime = append(byTime, i)
		}
	}
	if c.limit < 0 || len(byTime) <= c.limit {
		for _, i := range byTime {
			chosen[i] = true
		}
		return chosen
	}
	byCount := slices.Clone(byTime)
	slices.SortStableFunc(byCount, func(a, b int) int { return cmp.Compare(kernels[b].Count, kernels[a].Count) })
	for i, n := 0, 0; n < c.limit; i++ {
		for _, j := range [2]int{byTime[i], byCount[i]} {
			if !chosen[j] && n < c.limit {
				chosen[j] = true
				n++
			}
		}
	}
	return chosen
}

func longestFirst(a, b tracer.Kernel) int {
	return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Device, b.Device))
}

// kernelName returns a readable name of at most maxName bytes: without parameters, and
// with as many of the template arguments as there is room for.
func kernelName(symbol string) string {
	name := symbol
	if strings.HasPrefix(symbol, "_Z") {
		s, err := demangle.ToString(symbol, demangle.NoParams, demangle.NoEnclosingParams, demangle.MaxLength(maxDemangled))
		if err != nil {
			s = nestedName(symbol) // cut off at the end, mostly
		}
		if s != "" {
			name = strings.TrimPrefix(s, "void ")
		}
	}
	name = printable(name)
	if len(name) <= maxName {
		return name
	}
	for depth := 4; depth >= 0; depth-- {
		if s := shorten(name, depth); len(s) <= maxName {
			return s
		}
	}
	s := shorten(name, 0)
	return strings.ToValidUTF8(s[:maxName-3], "") + "..."
}

// shorten leaves out template arguments deeper than depth, and the namespaces of those
// that stay.
func shorten(name string, depth int) string {
	var b strings.Builder
	level, from := 0, 0 // from: where in b the name begins that is being written
	for i := range len(name) {
		ch := name[i]
		switch {
		case ch == '<' && !operatorAt(name, i):
			if level == depth {
				b.WriteString("<...>")
			} else if level < depth {
				b.WriteByte(ch)
				from = b.Len()
			}
			level++
			continue
		case ch == '>' && level > 0 && !operatorAt(name, i) && (i == 0 || name[i-1] != '-'):
			level--
			if level < depth {
				b.WriteByte(ch)
				from = b.Len()
			}
			continue
		}
		if level > depth {
			continue
		}
		b.WriteByte(ch)
		switch {
		case level == 0:
		case ch == ',' || ch == ' ' || ch == '(' || ch == ')':
			from = b.Len()
		case ch == ':' && b.Len()-from > 2 && name[i-1] == ':':
			s := b.String()[:from]
			b.Reset()
			b.WriteString(s)
		}
	}
	return b.String()
}

// operatorAt: the character is part of the name of an operator, as in operator<.
func operatorAt(name string, i int) bool {
	before := strings.TrimRight(name[:i], "<>=-")
	return i-len(before) < 3 && strings.HasSuffix(before, "operator")
}

// nestedName reads the names at the beginning of a mangled symbol that cannot be read
// whole: _ZN2at6native3fooI... is at::native::foo<...>.
func nestedName(symbol string) string {
	s := strings.TrimPrefix(symbol, "_Z")
	s, nested := strings.CutPrefix(s, "N")
	var parts []string
	for len(parts) < 16 {
		digits := 0
		for digits < len(s) && digits < 4 && s[digits] >= '0' && s[digits] <= '9' {
			digits++
		}
		n, err := strconv.Atoi(s[:digits])
		if err != nil || n == 0 || n > len(s)-digits {
			break
		}
		part := s[digits : digits+n]
		if strings.HasPrefix(part, "_GLOBAL__N_") {
			part = "(anonymous namespace)"
		}
		parts = append(parts, part)
		s = s[digits+n:]
		if !nested {
			break
		}
	}
	name := strings.Join(parts, "::")
	if name != "" && strings.HasPrefix(s, "I") {
		name += "<...>"
	}
	return name
}

// printable replaces what a terminal or a label should not get. Names come from programs
// that may call their kernels anything.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
