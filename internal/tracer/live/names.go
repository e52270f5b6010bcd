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
	maxName      = 128  // bytes of a kernel name
	maxNames     = 8192 // cached; processes have few symbols, mostly the same
	maxDemangled = 14   // log2 of the maximum demangled length
)

// names demangles and caches kernel symbols.
type names struct {
	known map[string]string
}

// of returns the readable name of a symbol.
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

// kernelKey identifies a kernel of a process.
type kernelKey struct {
	name   string
	device int
}

// merged names kernels and merges those with the same name on the same device: the same
// kernel from several modules, and template instances that differ only in the omitted part
// of the name. A kernel without a symbol is unknown.
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
		if k.Count > o.Count { // keep symbol and sizes of the most frequent one
			o.Symbol, o.Grid, o.Block, o.Shared = k.Symbol, k.Grid, k.Block, k.Shared
		}
		o.Count += k.Count
		o.Time += k.Time
	}
	return out
}

// chooser selects the kernels of one process that are listed. What a kernel did while it was
// not listed stays in other, so that no sum ever decreases: a kernel that becomes listed
// counts from then on, and one that is dropped leaves its count to other.
type chooser struct {
	limit int
	shown map[kernelKey]tally // what each had contributed to other when it was listed
	seen  map[kernelKey]tally // all kernels at the last selection
}

type tally struct {
	count uint64
	time  time.Duration
}

// choose returns the kernels with the most launches and the most time, alternating, sorted by
// time, followed by the sum of the others as other.
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

// top selects the kernels to list; the input is sorted by time.
func (c *chooser) top(kernels []tracer.Kernel) []bool {
	chosen := make([]bool, len(kernels))
	var byTime []int
	for i, k := range kernels {
		if k.Name != tracer.KernelOther { // already summed up in the kernel
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

// kernelName returns a readable name of at most maxName bytes: without parameters, and with
// as many template arguments as fit.
func kernelName(symbol string) string {
	name := symbol
	if strings.HasPrefix(symbol, "_Z") {
		s, err := demangle.ToString(symbol, demangle.NoParams, demangle.NoEnclosingParams, demangle.MaxLength(maxDemangled))
		if err != nil {
			s = nestedName(symbol) // usually truncated
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

// shorten drops template arguments nested deeper than depth, and the namespaces of the
// remaining ones.
func shorten(name string, depth int) string {
	var b strings.Builder
	level, from := 0, 0 // from: start of the current name in b
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

// operatorAt reports whether the character is part of an operator name, as in operator<.
func operatorAt(name string, i int) bool {
	before := strings.TrimRight(name[:i], "<>=-")
	return i-len(before) < 3 && strings.HasSuffix(before, "operator")
}

// nestedName extracts the leading names of a mangled symbol that cannot be demangled:
// _ZN2at6native3fooI... is at::native::foo<...>.
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

// printable replaces characters unsuitable for terminals and labels. Programs may give their
// kernels any name.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
