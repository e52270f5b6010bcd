// Package billing writes reports on usage and cost as tables, CSV, JSON and pages.
package billing

import (
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// Report is the content of a report.
type Report struct {
	Kind     string    `json:"kind"`
	By       string    `json:"by"`
	From     time.Time `json:"from"` // UTC
	To       time.Time `json:"to"`
	Zone     string    `json:"time_zone"` // of the days and months
	Currency string    `json:"currency"`
	Priced   bool      `json:"priced"`
	// Simulated is all or some if all or some of the devices do not exist, else empty.
	Simulated string       `json:"simulated"`
	Groups    []cost.Group `json:"groups"`
	Total     cost.Group   `json:"total"` // of what is known
	// NotSeen is device time that nobody saw, and NotSeenTotal its sum. Neither is in Groups or
	// Total; WithNotSeen is the sum of both totals.
	NotSeen      []cost.Group `json:"not_seen,omitempty"`
	NotSeenTotal *cost.Group  `json:"not_seen_total,omitempty"`
	WithNotSeen  *cost.Group  `json:"total_with_not_seen,omitempty"`

	Findings []cost.Finding `json:"findings,omitempty"`
	Quotas   []cost.Use     `json:"quotas,omitempty"`
	Missing  cost.Missing   `json:"missing"`
	Notes    []string       `json:"notes"`

	Commitments []cost.Committed `json:"commitments,omitempty"`
	// Coverage is nil for a report on some workloads.
	Coverage *cost.Coverage `json:"coverage,omitempty"`

	Columns []Column `json:"-"`
	Keys    []string `json:"-"` // the dimensions
}

// Fill adds the amounts of a bill, grouped by dimensions.
func (d *Report) Fill(bill *cost.Statement, by []cost.Dimension) {
	d.Currency, d.Missing, d.Commitments = bill.Currency, bill.Missing, bill.Commitments
	d.Priced = bill.Total.Priced() && bill.Total.Time() > 0
	d.Groups = bill.By(by...)
	d.Total = cost.Group{Name: "total", Amounts: bill.Total}
	d.Total.Devices, d.Total.Workloads = bill.Counts()
	d.Simulated = bill.Simulated()
	for _, c := range bill.Commitments {
		if note := c.Note(bill.Currency); note != "" {
			d.Notes = append(d.Notes, note)
		}
	}
}

// Cover adds what nobody saw, grouped by the same dimensions as the bill.
func (d *Report) Cover(c *cost.Coverage, by []cost.Dimension) {
	d.Coverage = c
	groups, sum := c.NotSeen(by...)
	if len(groups) == 0 {
		return
	}
	both := cost.Group{Name: "with hours nobody saw", Amounts: d.Total.Add(sum.Amounts), Devices: len(c.GPUs), Workloads: d.Total.Workloads}
	d.NotSeen, d.NotSeenTotal, d.WithNotSeen = groups, &sum, &both
}

// lines returns the groups of a table: the bill with its total, then what nobody saw and the sum of
// both.
func (d *Report) lines() []cost.Group {
	out := append(slices.Clone(d.Groups), d.Total)
	if d.WithNotSeen == nil {
		return out
	}
	for _, g := range d.NotSeen {
		g.Keys = slices.Clone(g.Keys)
		if last := len(g.Keys) - 1; !slices.Contains(g.Keys, d.NotSeenTotal.Name) { // a node, which also has a line above
			g.Keys[last] += " " + d.NotSeenTotal.Name
			g.Name = strings.Join(g.Keys, " / ")
		}
		out = append(out, g)
	}
	return append(out, *d.WithNotSeen)
}

// cell returns the text of a cell, empty if the value is unknown.
func (c *Column) cell(g *cost.Group) string {
	if g.NotSeen > 0 && g.Time() == 0 && !c.notSeen {
		return "" // nobody knows whether the time was used
	}
	return c.text(g)
}
