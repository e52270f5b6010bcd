//go:build linux

package cudareceiver

import (
	"github.com/gpumeter/gpumeter/internal/tracer/live"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// openTracer opens the tracer of this machine.
func openTracer(cfg *Config) (source, error) {
	return live.Open(live.Options{Proc: cfg.Proc, Probe: probe.Options{Mode: cfg.Mode}})
}
