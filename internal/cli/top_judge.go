//go:build linux

package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/cli/tui"
	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub/rules"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/query"
)

// How often the fleet is judged, and over which period held but idle devices are looked for.
const (
	judgeEvery = time.Minute
	judgeOver  = 24 * time.Hour
)

// judge evaluates the fleet rules and finds wasted devices. Both are slow, so it runs
// concurrently with the display.
type judge struct {
	store query.Store
	price pricing

	mu       sync.Mutex
	findings []tui.Finding
}

// run judges the fleet until ctx is canceled.
func (j *judge) run(ctx context.Context) {
	clock := time.NewTicker(judgeEvery)
	defer clock.Stop()
	for {
		j.once(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
	}
}

// once evaluates the fleet rules and finds held but idle devices. An error becomes a
// finding.
func (j *judge) once(ctx context.Context, now time.Time) {
	var list []tui.Finding
	found, err := rules.Evaluate(ctx, j.store, now)
	for _, f := range found {
		severity, of := tui.Warning, "node"
		if f.Severity == "ERROR" {
			severity = tui.Critical
		}
		if index := f.Labels[fleet.LabelIndex]; index != "" {
			of = "GPU " + index
		}
		list = append(list, tui.Finding{Severity: severity, Host: f.Labels[fleet.LabelHost], Cluster: f.Labels[fleet.LabelCluster], UUID: f.Labels[fleet.LabelUUID], Of: of, Reason: f.Reason, Action: f.Action})
	}
	if err == nil {
		var waste []cost.Finding
		waste, err = cost.FindingsOf(ctx, j.store, j.price.prices, now.Add(-judgeOver), now, cost.Rules{Facts: local.Vendors()}, cost.Options{})
		for i := range waste {
			list = append(list, wasteFinding(&waste[i]))
		}
	}
	if err != nil {
		list = append(list, tui.Finding{Severity: tui.Info, Of: "fleet", Reason: "cannot evaluate the fleet rules: " + oneLine(err)})
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if ctx.Err() == nil {
		j.findings = list
	}
}

func wasteFinding(f *cost.Finding) tui.Finding {
	action := "Ask the owner whether the workload is still needed."
	if f.Priced {
		action = fmt.Sprintf("Costs %s %s per day.", f.PerDay, f.Currency)
	}
	return tui.Finding{Severity: tui.Warning, Host: f.Labels[fleet.LabelHost], Cluster: f.Labels[fleet.LabelCluster], Of: f.Workload, Reason: f.Summary, Action: action}
}

// add appends the findings to a snapshot.
func (j *judge) add(s *tui.Snapshot) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s.Findings = append(s.Findings, j.findings...)
	sortFindings(s.Findings)
}
