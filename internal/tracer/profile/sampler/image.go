//go:build linux

package sampler

import (
	"runtime"
	"strings"
	"unicode"

	"github.com/ianlancetaylor/demangle"

	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

const amd64 = runtime.GOARCH == "amd64"

// image is a mapped file whose functions are named.
type image struct {
	names map[uint64]string // by address in the file; empty: unknown
	reads int
}

// Bounds of naming. A table is read once for each new address, and may have a million entries.
const (
	maxReads = 256 // of one file in a process
	maxName  = 256
)

// symbol returns the readable name of the function at an address, or "".
func (p *process) symbol(m *target.Mapping, addr uint64) string {
	img := p.images[m.Path]
	if img == nil {
		img = &image{names: map[uint64]string{}}
		p.images[m.Path] = img
	}
	at := addr - m.Start + m.Offset // of the file
	if name, ok := img.names[at]; ok {
		return name
	}
	if img.reads++; img.reads > maxReads {
		return ""
	}
	img.names[at] = p.named(m, addr)
	return img.names[at]
}

func (p *process) named(m *target.Mapping, addr uint64) string {
	file, err := target.Open(p.proc, p.PID, *m)
	if err != nil {
		return ""
	}
	defer file.Close()
	b, err := target.OpenBinary(file)
	if err != nil {
		return ""
	}
	bias, ok := b.Bias(*m)
	if !ok {
		return ""
	}
	names, _ := b.Names([]uint64{addr - bias})
	return readable(names[addr-bias])
}

// readable demangles a symbol and keeps it on one line.
func readable(symbol string) string {
	if strings.HasPrefix(symbol, "_Z") {
		if s, err := demangle.ToString(symbol, demangle.NoParams, demangle.NoTemplateParams, demangle.NoEnclosingParams, demangle.MaxLength(12)); err == nil {
			symbol = s
		}
	}
	symbol, _, _ = strings.Cut(symbol, "@") // the version of a dynamic symbol
	symbol = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, symbol)
	if len(symbol) > maxName {
		symbol = strings.ToValidUTF8(symbol[:maxName-3], "") + "..."
	}
	return symbol
}
