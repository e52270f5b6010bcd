package rules

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/query"
)

const (
	// maxLoaded bounds the events read when a hub starts, newest first.
	maxLoaded = 100_000
	// maxOpen bounds the restored findings: current ones, long-missing ones, and headroom
	// for findings that are about to close.
	maxOpen = 3 * maxFindings
)

// Load restores the findings that were open when the hub stopped, so that their end is
// reported. of selects the rules that belong to this watch. Findings that the watch already
// tracks are unchanged.
func (w *Watch) Load(ctx context.Context, log events.Log, at time.Time, of func(rule string) bool) error {
	list, err := log.Events(ctx, events.Query{
		From: at.Add(-missedFor), Names: []string{eventName}, Attributes: map[string]string{"service.name": serviceName}, Limit: maxLoaded,
	})
	if err != nil {
		return fmt.Errorf("cannot read earlier findings: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[string]*state{}
	}
	over := map[string]bool{}
	for i := range list { // newest first
		c, ok := parse(&list[i])
		if !ok || !of(c.Rule) {
			continue
		}
		key := c.Key()
		if !over[key] && !c.Ended && w.all[key] == nil && len(w.all) < maxOpen {
			w.all[key] = &state{Finding: c.Finding, since: c.Since, seen: patience, active: true}
		}
		over[key] = true // older events of this finding are superseded
	}
	return nil
}

// parse inverts Change.Event, except for the value, which events do not carry.
func parse(e *events.Event) (Change, bool) {
	a := e.Attributes
	c := Change{
		Finding: Finding{
			Rule: a["gpu.finding.rule"], Reason: a["gpu.finding.reason"], Action: a["gpu.finding.action"],
			Severity: map[string]string{"warning": "WARN", "critical": "ERROR"}[a["gpu.finding.severity"]], Labels: query.Labels{},
		},
		Time: e.Time, Ended: a["gpu.finding.state"] == "closed",
	}
	for label, name := range attributes {
		if v := a[name]; v != "" {
			c.Labels[label] = v
		}
	}
	if c.Rule == OverShare {
		c.Labels["share"] = a["gpu.finding.key"]
	}
	if c.Rule == OverQuota {
		source, rest, _ := strings.Cut(a["gpu.finding.key"], "/")
		i := strings.LastIndexByte(rest, '/') // quota names may contain slashes
		if i < 0 {
			return c, false
		}
		c.Labels["source"], c.Labels["quota"], c.Labels["unit"] = source, rest[:i], rest[i+1:]
	}
	var err error
	c.Since, err = time.Parse(time.RFC3339, a["gpu.finding.since"])
	return c, err == nil && c.Rule != ""
}
