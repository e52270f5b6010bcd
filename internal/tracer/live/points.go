//go:build linux

package live

import (
	"debug/elf"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// wantedOf returns the symbols of all operations of a kind of library.
func wantedOf(kind string) map[string]bool {
	wanted := map[string]bool{}
	for i := range tracer.Ops {
		if tracer.Ops[i].Library == kind {
			for _, s := range tracer.Ops[i].Symbols {
				wanted[s] = true
			}
		}
	}
	return wanted
}

// points selects where in a file probes go.
func (d *discovery) points(l *library, img target.Image) []probe.Point {
	code := map[string]target.Symbol{}
	for _, s := range img.Symbols {
		code[s.Name] = s
	}
	var points []probe.Point
	taken := map[uint64]bool{} // two names of the same function are one call
	l.Slow, l.Skipped = 0, 0
	for i := range tracer.Ops {
		op := &tracer.Ops[i]
		if op.Library != l.Kind {
			continue
		}
		for _, name := range op.Symbols {
			s, ok := code[name]
			if !ok || taken[s.Offset] {
				continue
			}
			taken[s.Offset] = true
			place := target.Decode(img.Machine, s.Code, op.Entry)
			if !place.Cheap {
				if often(op) && !d.o.Slow && !alwaysStepped(img) {
					l.Skipped++
					continue
				}
				l.Slow++
			}
			points = append(points, probe.Point{Op: op, Symbol: name, Offset: s.Offset + place.Offset})
		}
	}
	return points
}

// often reports whether a program may call op thousands of times per second, so that
// single-stepping each call would be noticeable. Driver allocations, collectives and module
// loads are rare in comparison; a framework's allocator reports every tensor.
func often(op *tracer.Op) bool {
	switch op.Class {
	case tracer.Launch, tracer.Copy, tracer.Set, tracer.Sync:
		return true
	}
	return op.Quiet && op.Entry
}

// alwaysStepped reports whether every probe is single-stepped. On arm64 no function starts
// with an instruction that the kernel simulates, and a step is one hardware exception, so
// skipping such functions would leave nothing.
func alwaysStepped(img target.Image) bool { return img.Machine == elf.EM_AARCH64 }
