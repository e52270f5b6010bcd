//go:build linux

package agent

import (
	"path/filepath"
	"time"

	"github.com/gpumeter/gpumeter/internal/local"
)

// Inference configures what the agent reads of inference engines.
type Inference struct {
	Off     bool     // do not look for engines
	Targets []string // URLs of metrics pages besides those that are found
	Listen  string   // address at which signals for routing are served; empty: nowhere
}

// pagesEvery is how often the page of an engine is read, at the most: it has hundreds of lines.
const pagesEvery = 10 * time.Second

// settings returns the configuration of the inference receiver, nil if there is nothing to read.
func (i *Inference) settings(c local.Config) map[string]any {
	if i.Off && len(i.Targets) == 0 {
		return nil
	}
	targets := make([]any, len(i.Targets))
	for n, url := range i.Targets {
		targets[n] = map[string]any{"url": url}
	}
	out := map[string]any{
		"discover": !i.Off, "targets": targets, "interval": max(c.Interval, pagesEvery).String(), "proc": filepath.Join("/", c.Root, "proc"),
	}
	if i.Listen != "" {
		out["routing"] = map[string]any{"endpoint": i.Listen}
	}
	return out
}
