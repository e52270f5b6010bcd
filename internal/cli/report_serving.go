//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
	case o.now && (kind != billing.ServingKind || o.output != "csv"):
		return errors.New("--now is for gpumeter report serving -o csv: other formats have both tables")
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
func (o *report) serving(ctx context.Context, w, notes io.Writer, d *billing.Report, store query.Store, prices cost.Prices, from, to time.Time, options cost.Options, origin string, by []cost.Dimension) error {
	out := &billing.Served{By: d.By, From: d.From, To: d.To, Zone: d.Zone, Notes: slices.Clone(d.Notes), Keys: d.Keys}
	reader := tokens.NewReader(store, func(ctx context.Context, from, to time.Time) (*cost.Statement, error) {
		one := store
		if n, ok := store.(interface{ Narrow([]string) query.Store }); ok {
			one = n.Narrow(nil) // a store at a URL remembers its answers, which may be one for each hour of a month
		}
		s, err := cost.Bill(ctx, one, prices, from, to, options)
		return &s, err
	}, options, tokens.InputWeight(math.Round(o.weight*1000)))
	served, err := reader.Read(ctx, from, to, to)
	if err != nil {
		return unreachable(err, o.store.url)
	}
	out.Fill(served, by)
	if prices.Empty() && origin == "" && len(out.Groups) > 0 {
		out.Notes = append(out.Notes, "Costs are absent because there are no prices: use --prices.")
	}
	var match []string
	for _, label := range slices.Sorted(maps.Keys(options.Match)) {
		match = append(match, fleet.Equals(label, options.Match[label]))
	}
	now, err := serving.At(ctx, store, to, serving.Window, match...)
	if err != nil {
		return unreachable(err, o.store.url)
	}
	out.Now = billing.NowOf(now, to, serving.Window)
	return o.writeServed(w, notes, out)
}

func (o *report) writeServed(w, notes io.Writer, d *billing.Served) error {
	write := map[string]func(io.Writer, *billing.Served) error{"table": billing.ServedTable, "csv": billing.ServedCSV, "json": billing.ServedJSON, "html": billing.ServedHTML}[o.output]
	if o.now && o.output == "csv" {
		write = billing.NowCSV
	}
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
