package billing

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/cost/tokens"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/query"
)

// ServingKind is the report on inference engines: what a token costs.
const ServingKind = "serving"

// Served is the content of a report on inference engines.
type Served struct {
	Kind     string    `json:"kind"`
	By       string    `json:"by"`
	From     time.Time `json:"from"` // UTC
	To       time.Time `json:"to"`
	Zone     string    `json:"time_zone"`
	Currency string    `json:"currency"`
	Priced   bool      `json:"priced"`
	// Simulated is all or some if all or some of the machines do not exist, else empty.
	Simulated string `json:"simulated"`
	// InputWeight is what a computed token of a prompt counts in tokens of output.
	InputWeight float64        `json:"input_weight"`
	Groups      []tokens.Group `json:"groups"`
	Total       tokens.Group   `json:"total"`
	// NoEngine is what workloads with engines held while none of these worked on it. It is in no group and not in the
	// total.
	NoEngine      []tokens.Group `json:"no_engine,omitempty"`
	NoEngineTotal *tokens.Group  `json:"no_engine_total,omitempty"`
	Now           *Now           `json:"now,omitempty"`
	Notes         []string       `json:"notes"`

	Keys []string `json:"-"` // the dimensions
}

// Fill adds what was served, grouped by dimensions.
func (d *Served) Fill(s *tokens.Bill, by []cost.Dimension) {
	d.Kind, d.Currency, d.Simulated, d.InputWeight = ServingKind, s.Currency, s.Simulated(), s.InputWeight.Float()
	d.Groups, d.Total, d.NoEngine = s.By(by...), s.Total(), s.RestBy(by...)
	if len(d.NoEngine) > 0 {
		rest := s.RestTotal()
		d.NoEngineTotal = &rest
	}
	d.Priced = d.Total.Priced() && d.Total.Time() > 0
	if len(d.Groups) == 0 {
		d.Notes = append(d.Notes, "The store has no inference engine in this period.")
	}
	d.Notes = append(d.Notes, s.Notes()...)
}

// ReadServed fills a report from a store: what was served in the period, by dimensions, and how at its end. weight is what a token
// of a prompt counts in tokens of output.
func ReadServed(ctx context.Context, store query.Store, prices cost.Prices, o cost.Options, weight float64, by []cost.Dimension, d *Served) error {
	reader := tokens.NewReader(store, func(ctx context.Context, from, to time.Time) (*cost.Statement, error) {
		one := store
		if n, ok := store.(interface{ Narrow([]string) query.Store }); ok {
			one = n.Narrow(nil) // a store at a URL remembers its answers, which may be one for each hour of a month
		}
		s, err := cost.Bill(ctx, one, prices, from, to, o)
		return &s, err
	}, o, tokens.InputWeight(math.Round(weight*1000)))
	served, err := reader.Read(ctx, d.From, d.To, d.To)
	if err != nil {
		return err
	}
	d.Fill(served, by)
	var match []string
	for _, label := range slices.Sorted(maps.Keys(o.Match)) {
		match = append(match, fleet.Equals(label, o.Match[label]))
	}
	now, err := serving.At(ctx, store, d.To, serving.Window, match...)
	if err != nil {
		return err
	}
	d.Now = NowOf(now, d.To, serving.Window)
	return nil
}

// Write writes the report as table, csv, json or html. With now, CSV is how models are served at the end.
func (d *Served) Write(w io.Writer, format string, now bool) error {
	switch {
	case format == "csv" && now:
		return NowCSV(w, d)
	case format == "csv":
		return ServedCSV(w, d)
	case format == "json":
		return ServedJSON(w, d)
	case format == "html":
		return ServedHTML(w, d)
	}
	return ServedTable(w, d)
}

// servedColumn is one figure of a group. An unknown value is an empty text, shown as a dash.
type servedColumn struct {
	name, title string
	text, exact func(*tokens.Group) string
}

// servedColumns returns the columns of the report.
func servedColumns() []servedColumn {
	amount := func(name, title string, of func(*tokens.Group) cost.Money) servedColumn {
		text := func(digits int) func(*tokens.Group) string {
			return func(g *tokens.Group) string {
				if !g.Priced() {
					return ""
				}
				return of(g).Decimals(digits)
			}
		}
		return servedColumn{name, title, text(2), text(6)}
	}
	ratio := func(name, title string, digits int, of func(*tokens.Group) (float64, bool)) servedColumn {
		text := func(digits int) func(*tokens.Group) string {
			return func(g *tokens.Group) string {
				v, ok := of(g)
				if !ok {
					return ""
				}
				return strconv.FormatFloat(v, 'f', digits, 64)
			}
		}
		return servedColumn{name, title, text(digits), text(9)}
	}
	count := func(name, title string, of func(*tokens.Group) (int64, bool)) servedColumn {
		text := func(g *tokens.Group) string {
			n, ok := of(g)
			if !ok {
				return ""
			}
			return strconv.FormatInt(n, 10)
		}
		return servedColumn{name, title, text, text}
	}
	providers := func(g *tokens.Group) string { return Plain(strings.Join(g.Providers, ",")) }
	return []servedColumn{
		{"engine", "ENGINE", providers, func(g *tokens.Group) string { return cell(strings.Join(g.Providers, ",")) }},
		{
			"gpu_hours", "GPU-HOURS",
			func(g *tokens.Group) string { return strconv.FormatFloat(g.Time().Hours(), 'f', 2, 64) },
			func(g *tokens.Group) string { return strconv.FormatFloat(g.Time().Hours(), 'f', 9, 64) },
		},
		amount("cost", "COST", func(g *tokens.Group) cost.Money { return g.Amounts.Total() }),
		amount("idle_cost", "IDLE", func(g *tokens.Group) cost.Money { return g.IdleCost }),
		count("tokens_in", "TOKENS IN", func(g *tokens.Group) (int64, bool) { return g.In.N, g.In.Known }),
		count("tokens_out", "TOKENS OUT", func(g *tokens.Group) (int64, bool) { return g.Out.N, g.Out.Known }),
		count("requests", "REQUESTS", func(g *tokens.Group) (int64, bool) { return g.Finished.N, g.Finished.Known }),
		ratio("cost_per_million", "COST/M", 4, func(g *tokens.Group) (float64, bool) { return g.PerMillion.Get() }),
		ratio("cost_per_million_output", "COST/M OUT", 4, func(g *tokens.Group) (float64, bool) { return g.PerMillionOutput.Get() }),
		ratio("cost_per_million_weighted", "COST/M WEIGHTED", 4, func(g *tokens.Group) (float64, bool) { return g.PerMillionWeighted.Get() }),
		ratio("tokens_per_joule", "TOKENS/J", 3, func(g *tokens.Group) (float64, bool) { return g.TokensPerJoule.Get() }),
	}
}

// columns returns the columns without those that repeat a dimension.
func (d *Served) columns() []servedColumn {
	return slices.DeleteFunc(servedColumns(), func(c servedColumn) bool { return slices.Contains(d.Keys, c.name) })
}

// report returns what this report has in common with the others.
func (d *Served) report() *Report {
	return &Report{Kind: d.Kind, By: d.By, From: d.From, To: d.To, Zone: d.Zone, Simulated: d.Simulated, Notes: d.Notes, Keys: d.Keys}
}

// rows returns the cells of all groups and of the total, and below it those of what had no engine.
func (d *Served) rows() [][]string {
	var rows [][]string
	for _, g := range slices.Concat(d.Groups, []tokens.Group{d.Total}, d.NoEngine) {
		row := d.report().names(&cost.Group{Name: g.Name, Keys: g.Keys})
		for _, c := range d.columns() {
			row = append(row, c.text(&g))
		}
		rows = append(rows, row)
	}
	return rows
}

// ServedTable prints the table with its total, then notes.
func ServedTable(w io.Writer, d *Served) error {
	var b strings.Builder
	r := d.report()
	fmt.Fprint(&b, r.title())
	if d.Priced {
		fmt.Fprint(&b, ", ", d.Currency)
	}
	fmt.Fprintln(&b)
	if d.Simulated != "" {
		fmt.Fprintln(&b, r.Warning())
	}
	if len(d.Groups) > 0 {
		var head []string
		for _, key := range d.Keys {
			head = append(head, strings.ToUpper(key))
		}
		left := len(head)
		for _, c := range d.columns() {
			head = append(head, c.title)
			if c.name == "engine" {
				left++ // a name, too
			}
		}
		rows := [][]string{head}
		for _, row := range d.rows() {
			for i := range row[len(d.Keys):] {
				row[len(d.Keys)+i] = cmp.Or(row[len(d.Keys)+i], "-")
			}
			rows = append(rows, row)
		}
		fmt.Fprintln(&b)
		printAligned(&b, rows, left)
	}
	if d.Now != nil {
		d.Now.print(&b, d.Zone)
	}
	for i, note := range d.Notes {
		if i == 0 {
			fmt.Fprintln(&b)
		}
		fmt.Fprintln(&b, Plain(note))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ServedCSV writes all digits, and no total, as CSV does. How models are served is another table: NowCSV.
func ServedCSV(w io.Writer, d *Served) error {
	columns := d.columns()
	head := slices.Clone(d.Keys)
	for _, c := range columns {
		head = append(head, c.name)
	}
	rows := [][]string{append(head, "tokens_cached", "tokens_unbilled", "unpriced_hours", "input_weight", "currency", "from", "to", "simulated")}
	for _, g := range slices.Concat(d.Groups, d.NoEngine) {
		var row []string
		for _, key := range g.Keys {
			row = append(row, cell(key))
		}
		for _, c := range columns {
			row = append(row, c.exact(&g))
		}
		cached := ""
		if g.Cached.Known {
			cached = strconv.FormatInt(g.Cached.N, 10)
		}
		rows = append(rows, append(row, cached, strconv.FormatInt(g.Unbilled, 10), strconv.FormatFloat(g.Unpriced.Hours(), 'f', 9, 64), strconv.FormatFloat(d.InputWeight, 'f', -1, 64),
			d.Currency, d.From.Format("2006-01-02T15:04:05Z"), d.To.Format("2006-01-02T15:04:05Z"), cmp.Or(d.Simulated, "none")))
	}
	return csv.NewWriter(w).WriteAll(rows)
}

// ServedJSON writes everything, with all digits.
func ServedJSON(w io.Writer, d *Served) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(d)
}

// ServedHTML writes a page like that of other reports.
func ServedHTML(w io.Writer, d *Served) error {
	page := htmlPage{Report: d.report()}
	page.Title, page.Period = page.Report.title(), page.period()
	for _, c := range d.columns() {
		page.Columns = append(page.Columns, c.title)
	}
	total := float64(d.Total.Amounts.Total())
	for i, row := range d.rows() {
		r := htmlRow{Name: strings.TrimSuffix(strings.Join(row[:len(d.Keys)], " / "), " / "), Last: i == len(d.Groups)}
		if i < len(d.Groups) && total > 0 {
			r.Share = percent(float64(d.Groups[i].Amounts.Total()) / total)
		} else {
			r.Share = percent(0)
		}
		for _, text := range row[len(d.Keys):] {
			r.Cells = append(r.Cells, htmlCell{Text: cmp.Or(text, "–")})
		}
		page.Rows = append(page.Rows, r)
	}
	if d.Now != nil && len(d.Now.Rows) > 0 {
		page.Now = &htmlNow{Title: d.Now.title(d.Zone), Columns: []string{"model"}}
		for _, c := range nowColumns() {
			page.Now.Columns = append(page.Now.Columns, c.title)
		}
		for _, row := range d.Now.rows() {
			for i := range row {
				row[i] = cmp.Or(row[i], "–")
			}
			page.Now.Rows = append(page.Now.Rows, row)
		}
	}
	page.Tiles = [][2]string{{"GPU-hours", fmt.Sprintf("%.1f", d.Total.Time().Hours())}, {"tokens in", strconv.FormatInt(d.Total.In.N, 10)}, {"tokens out", strconv.FormatInt(d.Total.Out.N, 10)}}
	if v, ok := d.Total.PerMillion.Get(); ok {
		page.Tiles = append([][2]string{{"bill, " + d.Currency, d.Total.Amounts.Total().String()}, {d.Currency + " per million tokens", fmt.Sprintf("%.4f", v)}}, page.Tiles...)
	}
	return page.write(w)
}
