package billing

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// Column is one figure of a group. An unknown value is an empty text, shown as a dash.
type Column struct {
	name  string // for --columns and CSV
	title string
	text  func(*cost.Group) string // rounded
	exact func(*cost.Group) string // all digits
	part  func(*cost.Group) float64
	// notSeen is set if the column has a value for time that nobody saw.
	notSeen bool
}

// money returns a column of costs. The cost of a group without prices is unknown.
func money(name, title string, of func(*cost.Group) cost.Money) Column {
	text := func(digits int) func(*cost.Group) string {
		return func(g *cost.Group) string {
			if !g.Priced() {
				return ""
			}
			return of(g).Decimals(digits)
		}
	}
	return Column{name: name, title: title, text: text(2), exact: text(6)}
}

// hours returns a column of device hours.
func hours(name, title string, of func(*cost.Group) cost.Seconds) Column {
	return Column{
		name: name + "_hours", title: title,
		text:  func(g *cost.Group) string { return strconv.FormatFloat(of(g).Hours(), 'f', 2, 64) },
		exact: func(g *cost.Group) string { return strconv.FormatFloat(of(g).Hours(), 'f', 9, 64) },
	}
}

// figure returns a column of any other number, which may be unknown.
func figure(name, title string, digits int, of func(*cost.Group) (float64, bool)) Column {
	text := func(digits int) func(*cost.Group) string {
		return func(g *cost.Group) string {
			v, ok := of(g)
			if !ok {
				return ""
			}
			return strconv.FormatFloat(v, 'f', digits, 64)
		}
	}
	return Column{name: name, title: title, text: text(digits), exact: text(max(6, digits))}
}

func allColumns() []Column {
	used := figure("used_ratio", "USED %", 1, func(g *cost.Group) (float64, bool) {
		known := g.Used + g.Idle
		return 100 * float64(g.Used) / float64(max(1, known)), known > 0
	})
	used.exact = func(g *cost.Group) string {
		if g.Used+g.Idle <= 0 {
			return ""
		}
		return strconv.FormatFloat(float64(g.Used)/float64(g.Used+g.Idle), 'f', 6, 64)
	}
	used.part = func(g *cost.Group) float64 { return float64(g.Used) / float64(max(1, g.Used+g.Idle)) }
	seen := func(c Column) Column { c.notSeen = true; return c }
	// A table has the sum with the hours that nobody saw; CSV, which has no sums, has them in columns
	// of their own, so that sums of the others are those of the bill.
	all := seen(hours("gpu", "GPU-HOURS", func(g *cost.Group) cost.Seconds { return g.Time() + g.NotSeen }))
	all.exact = hours("gpu", "", func(g *cost.Group) cost.Seconds { return g.Time() }).exact
	total := seen(money("cost", "TOTAL", func(g *cost.Group) cost.Money { return g.Amounts.Total() + g.NotSeenCost }))
	total.exact = money("cost", "", func(g *cost.Group) cost.Money { return g.Amounts.Total() }).exact
	return append([]Column{
		seen(figure("gpus", "GPUS", 0, func(g *cost.Group) (float64, bool) { return float64(g.Devices), true })),
		figure("workloads", "WORKLOADS", 0, func(g *cost.Group) (float64, bool) { return float64(g.Workloads), true }),
		all,
		hours("allocated", "HELD H", func(g *cost.Group) cost.Seconds { return g.Allocated() }),
		hours("used", "USED H", func(g *cost.Group) cost.Seconds { return g.Used }),
		hours("idle", "IDLE H", func(g *cost.Group) cost.Seconds { return g.Idle }),
		hours("unmeasured", "UNKNOWN H", func(g *cost.Group) cost.Seconds { return g.Unmeasured }),
		hours("unallocated", "FREE H", func(g *cost.Group) cost.Seconds { return g.Unallocated }),
		used,
		money("used_cost", "USED", func(g *cost.Group) cost.Money { return g.UsedCost }),
		money("idle_cost", "IDLE", func(g *cost.Group) cost.Money { return g.IdleCost }),
		money("unmeasured_cost", "UNKNOWN", func(g *cost.Group) cost.Money { return g.UnmeasuredCost }),
		money("unallocated_cost", "FREE", func(g *cost.Group) cost.Money { return g.UnallocatedCost }),
		money("energy_cost", "ENERGY", func(g *cost.Group) cost.Money { return g.EnergyCost }),
		total,
		figure("kwh", "kWh", 2, func(g *cost.Group) (float64, bool) { return g.Energy.KWh(), g.Energy != 0 }),
		figure("co2_kg", "CO2 kg", 2, func(g *cost.Group) (float64, bool) {
			return g.Carbon.Kilograms(), g.Energy > 0 && g.Uncounted < g.Energy
		}),
		figure("watts", "WATTS", 0, func(g *cost.Group) (float64, bool) {
			s := g.Time().Duration().Seconds()
			return float64(g.Energy) / 1e3 / max(1e-9, s), g.Energy > 0 && s > 0
		}),
	}, missing()...)
}

// missing returns the columns of what no cost includes.
func missing() []Column {
	out := []Column{
		hours("unpriced", "NO PRICE H", func(g *cost.Group) cost.Seconds { return g.Unpriced }),
		figure("unpriced_kwh", "NO PRICE kWh", 2, func(g *cost.Group) (float64, bool) { return g.UnpricedEnergy.KWh(), true }),
		hours("not_seen", "NOT SEEN H", func(g *cost.Group) cost.Seconds { return g.NotSeen }),
		money("not_seen_cost", "NOT SEEN", func(g *cost.Group) cost.Money { return g.NotSeenCost }),
	}
	for i := range out {
		out[i].notSeen = true
	}
	return out
}

// kinds lists the default columns of each kind of report.
var kinds = map[string][]string{
	"cost":       {"gpus", "gpu_hours", "used_cost", "idle_cost", "unmeasured_cost", "unallocated_cost", "energy_cost", "cost"},
	"usage":      {"gpus", "workloads", "gpu_hours", "used_hours", "idle_hours", "unmeasured_hours", "unallocated_hours"},
	"efficiency": {"gpus", "allocated_hours", "used_ratio", "idle_hours", "idle_cost", "cost"},
	"energy":     {"gpus", "gpu_hours", "kwh", "watts", "co2_kg", "energy_cost"},
	CoverageKind: {"gpus", "gpu_hours"},
}

// Kinds returns the kinds of reports.
func Kinds() []string {
	return []string{"cost", "usage", "efficiency", "energy", CoverageKind, ServingKind, SizingKind, QueueKind, TrainingKind}
}

// ColumnNames returns the names of all columns.
func ColumnNames() []string {
	var out []string
	for _, c := range allColumns() {
		out = append(out, c.name)
	}
	return out
}

// Columns returns the columns with these names, or the default columns of a kind of report.
func Columns(kind string, names []string) ([]Column, error) {
	if len(names) == 0 {
		names = kinds[kind]
	}
	all := allColumns()
	out := make([]Column, 0, len(names))
	for _, name := range names {
		i := slices.IndexFunc(all, func(c Column) bool { return c.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown column %.40q, must be one of %s", name, strings.Join(ColumnNames(), ", "))
		}
		out = append(out, all[i])
	}
	return out, nil
}

// Plain returns a user-chosen name without characters that could move the cursor.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Warning returns a line about simulated devices, empty if all are real.
func (d *Report) Warning() string {
	return map[string]string{"all": "SIMULATED: none of these numbers are real.", "some": "PARTLY SIMULATED: some of these numbers are not real."}[d.Simulated]
}

func (d *Report) title() string {
	kind := d.Kind + " by " + d.By
	if d.Kind == CoverageKind {
		kind = d.Kind
	}
	return kind + ", " + d.period()
}

// period returns the period in the time zone of the report. Where clocks change within the period,
// both ends have their abbreviation.
func (d *Report) period() string {
	zone, err := cost.Zone(d.Zone)
	if err != nil {
		zone = time.UTC
	}
	const minutes = "2006-01-02 15:04"
	from, to := d.From.In(zone), d.To.In(zone)
	if a, b := from.Format("MST"), to.Format("MST"); a != b {
		return from.Format(minutes+" MST") + " to " + to.Format(minutes+" MST")
	}
	return from.Format(minutes) + " to " + to.Format(minutes+" MST")
}

// Table prints the table with its total, then quotas, findings and notes.
func Table(w io.Writer, d *Report) error {
	var head []string
	for _, key := range d.Keys {
		head = append(head, strings.ToUpper(key))
	}
	for _, c := range d.Columns {
		head = append(head, c.title)
	}
	rows := [][]string{head}
	for _, g := range d.lines() {
		row := d.names(&g)
		for _, c := range d.Columns {
			if text := c.cell(&g); text != "" {
				row = append(row, text)
			} else {
				row = append(row, "-")
			}
		}
		rows = append(rows, row)
	}
	currency := ""
	if d.Priced {
		currency = ", " + d.Currency
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n", d.title(), currency)
	if d.Simulated != "" {
		fmt.Fprintln(&b, d.Warning())
	}
	if d.Kind != CoverageKind {
		fmt.Fprintln(&b)
		printAligned(&b, rows, len(d.Keys))
	}
	if len(d.Quotas) > 0 {
		rows := [][]string{{"QUOTA", "UNIT", "USED", "LIMIT", ""}}
		for _, q := range d.Quotas {
			over := ""
			if q.Over {
				over = "over"
			}
			rows = append(rows, []string{Plain(q.Quota), q.What, strconv.FormatFloat(q.Used, 'f', 2, 64), strconv.FormatFloat(q.Limit, 'f', 2, 64), over})
		}
		fmt.Fprintln(&b)
		printAligned(&b, rows, 1)
	}
	d.printCoverage(&b)
	for i, f := range d.Findings {
		if i == 0 {
			fmt.Fprintln(&b)
		}
		fmt.Fprintf(&b, "%s %s: %s\n", perDay(&f), Plain(f.Workload), Plain(f.Summary))
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

// perDay returns the cost of a finding per day.
func perDay(f *cost.Finding) string {
	if !f.Priced {
		return "-"
	}
	return f.PerDay.String() + " " + f.Currency + "/day"
}

// names returns the values of the dimensions of a group; the total has one name.
func (d *Report) names(g *cost.Group) []string {
	out := make([]string, len(d.Keys))
	out[0] = Plain(g.Name)
	for i, key := range g.Keys {
		out[i] = Plain(key)
	}
	return out
}

// printAligned prints a table whose first columns are left-aligned and whose others are
// right-aligned.
func printAligned(w io.Writer, rows [][]string, left int) {
	for _, line := range aligned(rows, left) {
		fmt.Fprintln(w, line)
	}
}

// aligned returns the lines of a table.
func aligned(rows [][]string, left int) []string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	out := make([]string, len(rows))
	for n, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				b.WriteString("  ")
			}
			if i < left {
				b.WriteString(cell + pad)
			} else {
				b.WriteString(pad + cell)
			}
		}
		out[n] = strings.TrimRight(b.String(), " ")
	}
	return out
}

// CSV writes all digits, and no total: a pivot table would count it twice. What is not
// priced has columns of its own, because an empty cost does not say how much is missing. What nobody
// saw has rows of its own, with values in columns of its own.
func CSV(w io.Writer, d *Report) error {
	if d.Kind == CoverageKind {
		return csvCoverage(w, d)
	}
	c := csv.NewWriter(w)
	head := slices.Clone(d.Keys)
	columns := slices.Clone(d.Columns)
	for _, col := range missing() {
		if !slices.ContainsFunc(columns, func(c Column) bool { return c.name == col.name }) {
			columns = append(columns, col)
		}
	}
	for _, col := range columns {
		head = append(head, col.name)
	}
	rows := [][]string{append(head, "currency", "from", "to", "simulated")}
	for _, g := range slices.Concat(d.Groups, d.NotSeen) {
		var row []string
		for _, key := range g.Keys {
			row = append(row, cell(key))
		}
		for _, col := range columns {
			row = append(row, col.exact(&g))
		}
		rows = append(rows, append(row, d.Currency, d.From.Format("2006-01-02T15:04:05Z"), d.To.Format("2006-01-02T15:04:05Z"), cmp.Or(d.Simulated, "none")))
	}
	return c.WriteAll(rows)
}

// cell escapes a user-chosen name that a spreadsheet would evaluate as a formula.
func cell(name string) string {
	if name != "" && strings.ContainsRune("=+-@\t\r", rune(name[0])) {
		return "'" + name
	}
	return name
}

// JSON writes everything, with all digits.
func JSON(w io.Writer, d *Report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(d)
}
