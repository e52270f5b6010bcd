//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/cli/billing"
	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/cost/tokens"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// checkServing rejects flags that a report on inference engines, or on the queue, has no place for.
func (o *report) checkServing(kind string) error {
	switch {
	case !(o.weight >= 0 && o.weight <= tokens.MaxInputWeight.Float()):
		return fmt.Errorf("--input-weight %g is not between 0 and %g", o.weight, tokens.MaxInputWeight.Float())
	case o.now && (kind != billing.ServingKind && kind != billing.QueueKind || o.output != "csv"):
		return errors.New("--now is for gpumeter report serving -o csv and gpumeter report queue -o csv: other formats have both tables")
	case kind == billing.QueueKind && (o.explain != "" || o.findings || len(o.quotas) > 0 || len(o.columns) > 0 || len(o.match) > 0):
		return errors.New("a report on the queue does not take --explain, --findings, --quotas, --columns or --match")
	case kind != billing.ServingKind:
		return nil
	case o.explain != "":
		return errors.New("--explain is about a row of cost, usage, efficiency or energy: the GPUs of a model are rows of its workload there")
	case o.findings || len(o.quotas) > 0 || len(o.columns) > 0:
		return errors.New("a report on serving does not take --findings, --quotas or --columns")
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
func (o *report) serving(ctx context.Context, w, notes io.Writer, d *billing.Report, store query.Store, prices cost.Prices, options cost.Options, origin string, by []cost.Dimension) error {
	out := &billing.Served{By: d.By, From: d.From, To: d.To, Zone: d.Zone, Notes: slices.Clone(d.Notes), Keys: d.Keys}
	if err := billing.ReadServed(ctx, store, prices, options, o.weight, by, out); err != nil {
		return unreachable(err, o.store.url)
	}
	if prices.Empty() && origin == "" && len(out.Groups) > 0 {
		out.Notes = append(out.Notes, "Costs are absent because there are no prices: use --prices.")
	}
	return o.wrote(out.Write(w, o.output, o.now), notes, out.Notes)
}

// queue writes a report on what waits.
func (o *report) queue(ctx context.Context, w, notes io.Writer, d *billing.Report, store query.Store, prices cost.Prices) error {
	out := &billing.Queued{From: d.From, To: d.To, Zone: d.Zone, Currency: prices.Currency, Notes: slices.Clone(d.Notes)}
	if err := billing.ReadQueue(ctx, store, prices.Hourly, out); err != nil {
		return unreachable(err, o.store.url)
	}
	return o.wrote(out.Write(w, o.output, o.now), notes, out.Notes)
}

// wrote prints the notes of a report whose format has no place for them.
func (o *report) wrote(err error, to io.Writer, notes []string) error {
	if err != nil || o.output != "csv" {
		return err
	}
	for _, note := range notes {
		fmt.Fprintln(to, billing.Plain(note))
	}
	return nil
}
