//go:build linux

package cudareceiver

import (
	"github.com/gpumeter/gpumeter/internal/tracer/live"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// RemoveKept removes the probes that a tracer has kept in a folder for the next one, and reports whether there
// were any. It fails if a tracer is using them.
func RemoveKept(folder string) (found bool, err error) { return probe.Remove(folder) }

// openTracer opens the tracer of this machine.
func openTracer(cfg *Config) (source, error) {
	return live.Open(live.Options{Proc: cfg.Proc, Probe: probe.Options{Mode: cfg.Mode, Budget: cfg.Budget, Keep: cfg.Keep}})
}
