// Package billing writes reports on usage and cost as tables, CSV, JSON and pages.
package billing

import (
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
	Simulated string         `json:"simulated"`
	Groups    []cost.Group   `json:"groups"`
	Total     cost.Group     `json:"total"`
	Findings  []cost.Finding `json:"findings,omitempty"`
	Quotas    []cost.Use     `json:"quotas,omitempty"`
	Missing   cost.Missing   `json:"missing"`
	Notes     []string       `json:"notes"`

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
