//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/cli/billing"
	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/query"
)

// checkExplain rejects flags that an explanation, or a report on sizing, has no place for.
func (o *report) checkExplain(kind string) error {
	switch {
	case (kind == billing.SizingKind || kind == billing.TrainingKind) && (o.explain != "" || o.findings || len(o.quotas) > 0 || len(o.columns) > 0):
		return errors.New("a report on sizing does not take --explain, --findings, --quotas or --columns")
	case o.explain == "":
		return nil
	case o.output == "html":
		return errors.New("--explain has no --output html, only table, csv and json")
	case kind == billing.CoverageKind:
		return errors.New("--explain is about a row of cost, usage, efficiency or energy: coverage lists devices, not rows")
	case o.findings || len(o.quotas) > 0:
		return errors.New("--explain is about one row: use --findings and --quotas without it")
	}
	return nil
}

// explainRow writes how a row of a report was made.
func (o *report) explainRow(ctx context.Context, w, notes io.Writer, d *billing.Report, store query.Store, prices cost.Prices, bill *cost.Statement, options cost.Options) error {
	by, err := dimensions(o.by)
	if err != nil {
		return err
	}
	if strings.Contains(o.explain, "(not seen)") {
		return fmt.Errorf("--explain: %.200q is device time that nobody saw, so nothing explains it: gpumeter report coverage lists why, by device", o.explain)
	}
	group, err := bill.Find(o.explain, by...)
	if err != nil {
		return fmt.Errorf("--explain: %w", err)
	}
	x := &billing.Explained{By: d.By, Zone: d.Zone, Store: shownURL(o.store.url), Notes: slices.Clone(d.Notes), Report: d, Group: group}
	d.Fill(bill, by)
	x.Simulated = d.Simulated
	if !prices.Empty() {
		x.PriceFile = cmp.Or(o.prices, "the hub")
	}
	e, err := cost.Explain(ctx, store, prices, bill, cost.ExplainOptions{Options: options, By: by, Row: group.Keys, Hourly: o.output != "table"})
	if err != nil {
		return unreachable(err, o.store.url)
	}
	x.Fill(e)
	switch o.output {
	case "csv":
		for _, note := range x.Notes {
			fmt.Fprintln(notes, billing.Plain(note))
		}
		return billing.ExplainCSV(w, x)
	case "json":
		return billing.ExplainJSON(w, x)
	}
	return billing.ExplainTable(w, x)
}

// shownURL returns a URL without the name and the password in it.
func shownURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "the store"
	}
	u.User = nil
	return u.String()
}
