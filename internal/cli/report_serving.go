//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cli/billing"
	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/cost/tokens"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/query"
)

// checkServing rejects flags that a report on inference engines has no place for.
func (o *report) checkServing(kind string) error {
	switch {
	case !(o.weight >= 0 && o.weight <= tokens.MaxInputWeight.Float()):
		return fmt.Errorf("--input-weight %g is not between 0 and %g", o.weight, tokens.MaxInputWeight.Float())
	case kind != billing.ServingKind:
		return nil
	case o.explain != "":
		return errors.New("--explain is about a row of cost, usage, efficiency or energy: the GPUs of a model are rows of its workload there")
	case o.findings || len(o.quotas) > 0 || len(o.columns) > 0:
		return errors.New("a report on serving has no --findings, --quotas and --columns")
	}
	for _, m := range o.match {
		switch label, _, _ := strings.Cut(m, "="); label {
		case fleet.LabelUUID, fleet.LabelModel, fleet.LabelVendor, fleet.LabelIndex, fleet.LabelPartition, fleet.LabelPartitionProfile:
			return fmt.Errorf("--match %s: tokens are those of an engine, whatever its GPUs", label)
		case fleet.LabelServedModel, fleet.LabelProvider, fleet.LabelEngine:
			return fmt.Errorf("--match %s: GPUs do not have it. Use --by and choose the row", label)
		}
	}
	return nil
}

// serving writes a report on inference engines. d has the period and the notes so far.
func (o *report) serving(ctx context.Context, w, notes io.Writer, d *billing.Report, store query.Store, prices cost.Prices, from, to time.Time, options cost.Options, origin string, by []cost.Dimension) error {
	out := &billing.Served{By: d.By, From: d.From, To: d.To, Zone: d.Zone, Notes: slices.Clone(d.Notes), Keys: d.Keys}
	weight := tokens.InputWeight(math.Round(o.weight * 1000))
	since, err := serving.TokensSince(ctx, store, from, to, options)
	if err != nil {
		return unreachable(err, o.store.url)
	}
	if since.IsZero() {
		out.Fill(&tokens.Bill{InputWeight: weight, Currency: prices.Currency}, by)
		return o.writeServed(w, notes, out)
	}
	if since.After(from) {
		// Before that GPUs cost money, and nobody counted tokens.
		out.From = since.UTC()
		zone, err := cost.Zone(d.Zone)
		if err != nil {
			return err
		}
		out.Notes = append(out.Notes, "The store has no inference engine before about "+since.In(zone).Format("2006-01-02 15:04 MST")+": the report begins there.")
	}
	bill, err := cost.Bill(ctx, store, prices, since, to, options)
	if err != nil {
		return unreachable(err, o.store.url)
	}
	use, err := serving.ReadTokens(ctx, store, since, to, options)
	if err != nil {
		return unreachable(err, o.store.url)
	}
	out.Fill(tokens.Divide(&bill, use, weight), by)
	if prices.Empty() && origin == "" {
		out.Notes = append(out.Notes, "Costs are absent because there are no prices: use --prices.")
	}
	if use.Missed > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d counters of engines had values at their first sample: what they had counted before is in no report.", use.Missed))
	}
	if use.Refused > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("%d invalid counter values were discarded.", use.Refused))
	}
	return o.writeServed(w, notes, out)
}

func (o *report) writeServed(w, notes io.Writer, d *billing.Served) error {
	write := map[string]func(io.Writer, *billing.Served) error{"table": billing.ServedTable, "csv": billing.ServedCSV, "json": billing.ServedJSON, "html": billing.ServedHTML}[o.output]
	if err := write(w, d); err != nil {
		return err
	}
	if o.output == "csv" {
		for _, note := range d.Notes {
			fmt.Fprintln(notes, billing.Plain(note))
		}
	}
	return nil
}
