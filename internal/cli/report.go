//go:build linux

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/cli/billing"
	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/cost/tokens"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/remote"
)

// report holds the flags of gpumeter report.
type report struct {
	period  billing.Period
	zone    string
	by      []string
	output  string
	columns []string
	match   []string

	store    storeFlags
	timeout  time.Duration
	prices   string
	quotas   []string
	findings bool
	explain  string
	// weight is what a token of a prompt counts in a report on inference engines.
	weight float64
	now    bool
}

func newReport() *cobra.Command {
	var o report
	cmd := &cobra.Command{
		Use:   "report [cost|usage|efficiency|energy|coverage|serving|sizing|queue|training]",
		Short: "Report GPU usage and cost by team, user or workload",
		Long: `Report GPU usage and cost by team, user or workload for a period, from the hub or from any
Prometheus, Mimir, Thanos or VictoriaMetrics that stores the agents' series. Sums are
exact: the hours of a day add up to the day. Every report says how much device time is
unknown, and why; coverage is the list of all devices. serving is what tokens of inference
engines cost, by model, and how fast they were at the end of the period. sizing is what
workloads asked for against what they used, and what would have been enough. queue is what
waited for GPUs, how long, and what was free. training is the steps and goodput of jobs.

Days and months are those of --time-zone, UTC by default. Costs need prices: a file, or those of the hub. Without prices costs are
absent, not zero, and the default report is usage.`,
		Example: `  gpumeter report --last 7d --prices prices.yaml
  gpumeter report usage --month 2026-10 --by namespace --url http://prometheus:9090
  gpumeter report --day 2026-10-14 --by team,model --findings -o html >report.html
  gpumeter report energy --by model -o csv --url https://mimir/prometheus --tenant fleet --token-file token
  gpumeter report serving --last 7d --by team,model --prices prices.yaml
  gpumeter report queue --last 7d
  gpumeter report sizing --last 7d
  gpumeter report --month 2026-10 --by team,model --explain "red,NVIDIA H100"`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: billing.Kinds(),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind := ""
			if len(args) > 0 {
				kind = args[0]
			}
			if kind == billing.ServingKind && !cmd.Flags().Changed("by") {
				o.by = []string{"model"}
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), kind, time.Now())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.period.From, "from", "", "start `TIME`: 2026-10-14, 2026-10-14T12:00:00Z, or 36h for 36 hours ago")
	f.StringVar(&o.period.To, "to", "", "end `TIME` (default: now)")
	f.StringVar(&o.period.Last, "last", "", "period up to now: 90m, 24h, 7d (default: 24h)")
	f.StringVar(&o.period.Month, "month", "", "calendar `MONTH`: 2026-10, this or last")
	f.StringVar(&o.period.Day, "day", "", "calendar `DAY`: 2026-10-14, today or yesterday")
	registerZone(cmd, &o.zone, "of days, months and times without a zone")
	f.StringSliceVar(&o.by, "by", []string{"team"}, "group by one or more of "+strings.Join(dimensionNames(), ", ")+". In a report on serving (default: model) a model is the served one, and there are engine, tenant and gpu")
	f.StringSliceVar(&o.columns, "columns", nil, "columns instead of the default ones: "+strings.Join(billing.ColumnNames(), ", "))
	f.StringArrayVar(&o.match, "match", nil, "only series with `LABEL=VALUE`; may be repeated")
	f.StringVarP(&o.output, "output", "o", "table", "table, csv, json or html")
	o.store.register(cmd, "url", "http://localhost:9500", "`URL` of the hub, or of a Prometheus, Mimir, Thanos or VictoriaMetrics")
	f.StringVar(&o.prices, "prices", "", "price `FILE` (default: the prices of the hub, if it has some)")
	f.StringArrayVar(&o.quotas, "quotas", nil, quotasHelp+". Compared with the usage in the month in which the period ends")
	f.BoolVar(&o.findings, "findings", false, "also list possible savings")
	f.StringVar(&o.explain, "explain", "", "instead of the report, how its `ROW` was made: devices, hours, samples, prices. Several values of --by are separated by commas")
	f.Float64Var(&o.weight, "input-weight", tokens.DefaultInputWeight.Float(), "serving: what a token of a prompt counts in tokens of output, 0 to 1, where models share a GPU")
	f.BoolVar(&o.now, "now", false, "serving -o csv, queue -o csv: what is served, or waits, at the end of the period instead of the period")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "timeout of one query to the store")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(dimensionNames(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "csv", "json", "html"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func dimensionNames() []string { return namesOf(cost.Dimensions()) }

func namesOf(list []cost.Dimension) []string {
	var out []string
	for _, d := range list {
		out = append(out, d.Name)
	}
	return out
}

// run writes a report to w. kind is empty for the default: cost if there are prices. Notes that
// the format has no place for go to notes.
func (o *report) run(ctx context.Context, w, notes io.Writer, kind string, now time.Time) error {
	write, ok := map[string]func(io.Writer, *billing.Report) error{"table": billing.Table, "csv": billing.CSV, "json": billing.JSON, "html": billing.HTML}[o.output]
	if !ok {
		return fmt.Errorf("unknown --output %q, must be one of table, csv, json, html", o.output)
	}
	if err := cmp.Or(o.checkExplain(kind), o.checkServing(kind)); err != nil {
		return err
	}
	all := cost.Dimensions()
	if kind == billing.ServingKind {
		all = tokens.Dimensions()
	}
	by, err := among(all, o.by)
	if err != nil {
		return err
	}
	if _, err := billing.Columns(kind, o.columns); err != nil {
		return err
	}
	zone, err := zoneOf(o.zone)
	if err != nil {
		return err
	}
	from, to, note, err := o.period.Edges(now.In(zone))
	if err != nil {
		return err
	}
	d := &billing.Report{By: strings.Join(o.by, ","), From: from.UTC(), To: to.UTC(), Zone: zone.String(), Notes: []string{}, Keys: o.by}
	if note != "" {
		d.Notes = append(d.Notes, note)
	}
	options := cost.Options{Match: map[string]string{}}
	for _, m := range o.match {
		label, value, ok := strings.Cut(m, "=")
		if !ok || !labelName(label) {
			return fmt.Errorf("--match %.40q is not like %s=research", m, fleet.LabelTeam)
		}
		options.Match[label] = value
	}
	prices, quotas, err := o.files(ctx)
	if err != nil {
		return err
	}
	client, err := o.store.open(o.timeout)
	if err != nil {
		return err
	}
	store := remote.New(client)
	theirs, origin, restricted, err := hubPrices(ctx, client)
	if err != nil {
		return unreachable(err, o.store.url)
	}
	if o.prices != "" {
		origin = ""
	} else if prices = theirs; origin != "" {
		d.Notes = append(d.Notes, origin)
	}
	if d.Kind = kind; kind == "" {
		d.Kind = "cost"
		if prices.Empty() {
			d.Kind = "usage"
		}
	}
	if d.Columns, err = billing.Columns(d.Kind, o.columns); err != nil {
		return err
	}
	switch kind {
	case billing.ServingKind:
		return o.serving(ctx, w, notes, d, store, prices, options, origin, by)
	case billing.QueueKind:
		return o.queue(ctx, w, notes, d, store, prices)
	}
	bill, err := cost.Bill(ctx, store, prices, from, to, options)
	if err != nil {
		return unreachable(err, o.store.url)
	}
	switch kind {
	case billing.TrainingKind:
		return unreachable(billing.WriteTraining(ctx, w, notes, o.output, store, &bill, options, d), o.store.url)
	case billing.SizingKind:
		return unreachable(billing.WriteSized(ctx, w, notes, o.output, store, prices, local.Vendors(), &bill, options, d), o.store.url)
	}
	if o.explain != "" {
		return o.explainRow(ctx, w, notes, d, store, prices, &bill, options)
	}
	d.Fill(&bill, by)
	if wholeDevices(options.Match) && !restricted {
		coverage, err := cost.Cover(ctx, store, prices, &bill, options.Match)
		if err != nil {
			return unreachable(err, o.store.url)
		}
		d.Cover(coverage, by)
	} else {
		d.Notes = append(d.Notes, "This report has a part of the workloads: how much of the devices' time is unknown is part of a report on all of them.")
	}
	d.Notes = append(d.Notes, missing(&bill, prices, origin, zone)...)
	if o.findings {
		if d.Findings, err = cost.FindingsIn(ctx, store, prices, bill, cost.Rules{Facts: local.Vendors()}, options); err != nil {
			return err
		}
	}
	if len(quotas) > 0 {
		if d.Quotas, err = checkQuotas(ctx, store, prices, quotas, to, options); err != nil {
			return err
		}
	}
	d.Notes = append(d.Notes, d.Uncovered()...)
	return o.wrote(write(w, d), notes, d.Notes)
}

// dimensions returns the dimensions with these names.
func dimensions(names []string) ([]cost.Dimension, error) { return among(cost.Dimensions(), names) }

// among returns those of a list of dimensions that have these names.
func among(all []cost.Dimension, names []string) ([]cost.Dimension, error) {
	var out []cost.Dimension
	for i, name := range names {
		at := slices.IndexFunc(all, func(d cost.Dimension) bool { return d.Name == name })
		if at < 0 {
			return nil, fmt.Errorf("unknown --by %q, must be one of %s", name, strings.Join(namesOf(all), ", "))
		}
		d := all[at]
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("--by has %s twice", name)
		}
		out = append(out, d)
	}
	if len(out) == 0 {
		return nil, errors.New("--by is empty")
	}
	return out, nil
}

// hubPrices returns the prices of the hub, with a note about their origin. Another store has
// none. restricted is true if the token sees one team only.
func hubPrices(ctx context.Context, store *query.Client) (prices cost.Prices, note string, restricted bool, err error) {
	body, ok, err := store.Page(ctx, "prices")
	if err != nil || !ok {
		return prices, "", false, err
	}
	var answer struct{ Currency, File, Team string }
	_ = json.Unmarshal(body, &answer) // another store answers something else, and has no prices
	restricted = answer.Team != ""
	if answer.Currency == "" {
		return prices, "", restricted, nil
	}
	if answer.File == "" {
		return prices, "The hub has prices that this token may not read: the hub's page has your costs.", restricted, nil
	}
	if prices, err = cost.Parse([]byte(answer.File)); err != nil {
		return prices, "", restricted, fmt.Errorf("cannot use the prices of the hub: %w", err)
	}
	return prices, "Prices are those of the hub.", restricted, nil
}

// wholeDevices reports whether series with these labels are those of whole devices, whoever
// holds them.
func wholeDevices(match map[string]string) bool {
	for label := range match {
		switch label {
		case fleet.LabelUUID, fleet.LabelModel, fleet.LabelVendor, fleet.LabelHost, fleet.LabelHostType, fleet.LabelNode, fleet.LabelCluster,
			fleet.LabelCloudProvider, fleet.LabelRegion, fleet.LabelRack:
		default:
			return false
		}
	}
	return true
}

// files reads the prices and quotas.
func (o *report) files(ctx context.Context) (prices cost.Prices, quotas []cost.Quota, err error) {
	if o.prices != "" {
		text, err := os.ReadFile(o.prices)
		if err != nil {
			return prices, nil, fmt.Errorf("cannot read the prices: %w", err)
		}
		if prices, err = cost.Parse(text); err != nil {
			return prices, nil, fmt.Errorf("%s: %w", o.prices, err)
		}
	}
	for _, from := range o.quotas {
		list, err := readQuotas(ctx, from)
		if err != nil {
			return prices, nil, fmt.Errorf("--quotas %s: %w", from, err)
		}
		quotas = append(quotas, list...)
	}
	return prices, quotas, nil
}

// unreachable adds a hint to a refused connection to localhost.
func unreachable(err error, url string) error {
	if err != nil && strings.Contains(err.Error(), "connection refused") && strings.HasPrefix(url, "http://localhost") {
		return fmt.Errorf("%w: is a hub running? Use --url for another store", err)
	}
	return err
}

// checkQuotas compares the quotas with the usage in the month in which the period ends.
func checkQuotas(ctx context.Context, store query.Store, prices cost.Prices, quotas []cost.Quota, to time.Time, o cost.Options) ([]cost.Use, error) {
	if err := cost.SameCurrency(quotas, prices); err != nil {
		return nil, fmt.Errorf("--quotas: %w", err)
	}
	begin := cost.MonthOf(to.Add(-time.Millisecond))
	month, err := cost.Bill(ctx, store, prices, begin, to, o)
	if err != nil {
		return nil, err
	}
	held, err := fleet.Held(ctx, store, to, o.Match)
	if err != nil {
		return nil, err
	}
	return cost.Check(quotas, month, held), nil
}

// missing returns notes about data that the bill lacks.
func missing(b *cost.Statement, prices cost.Prices, origin string, zone *time.Location) []string {
	var notes []string
	if len(b.Rows) == 0 {
		return []string{"The store has no workload series in this period: " + fleet.SeriesAllocatedTime + "."}
	}
	if !b.Since.IsZero() {
		notes = append(notes, "The store has no data before about "+b.Since.In(zone).Format("2006-01-02 15:04 MST")+".")
	}
	if prices.Empty() && origin == "" {
		notes = append(notes, "Costs are absent because there are no prices: use --prices.")
	} else {
		var models []string
		for m := range b.Missing.NoPrice {
			models = append(models, m)
		}
		slices.SortFunc(models, func(x, y string) int {
			return cmp.Or(cmp.Compare(b.Missing.NoPrice[y], b.Missing.NoPrice[x]), cmp.Compare(x, y))
		})
		for _, m := range models {
			notes = append(notes, fmt.Sprintf("No price for %s: %.1f GPU-hours are not included in any cost.", cmp.Or(m, "devices without a model"), b.Missing.NoPrice[m].Hours()))
		}
		if e := b.Total.UnpricedEnergy; e > 0 {
			notes = append(notes, fmt.Sprintf("No price for the energy of owned devices: %.1f kWh are not included in any cost.", e.KWh()))
		}
	}
	if u := b.Missing.Unseen; u.Accounts > 0 {
		notes = append(notes, fmt.Sprintf("%d counters already stood at %.1f GPU-hours in total at their first sample: no bill of this store includes those hours.", u.Accounts, u.Held.Hours()))
	}
	if note := b.Missing.TwiceNote(); note != "" {
		notes = append(notes, note)
	}
	if n := b.Missing.Refused; n > 0 {
		notes = append(notes, fmt.Sprintf("%d invalid counter values were discarded.", n))
	}
	return notes
}

// labelName reports whether s is a valid label name.
func labelName(s string) bool {
	for i, r := range s {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
