package billing

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// CoverageKind is the report that lists all devices.
const CoverageKind = "coverage"

// whyWords are the reasons for unknown device time.
var whyWords = map[string]string{
	cost.NotSeenBefore: "not seen before",
	cost.NotSeenSince:  "not seen since",
	cost.NotSeen:       "not seen in this period",
	cost.Gap:           "no samples in between",
	cost.Sampling:      "sampling",
}

// maxCoverage bounds the rows of a table; JSON and CSV have all.
const maxCoverage = 20

// coverRow is one or more devices of a node that lack the same time for the same reason.
type coverRow struct {
	Node, GPUs, Known, Unknown, Why, Cost string
}

// coverRows returns the devices that lack device time, the worst first; all of them for a
// report of coverage. more is how many devices were left out.
func (d *Report) coverRows() (rows []coverRow, more int) {
	if d.Coverage == nil {
		return nil, 0
	}
	list := d.Coverage.Incomplete()
	if d.Kind == CoverageKind {
		list = d.Coverage.GPUs
	}
	for len(list) > 0 {
		same := 1
		for same < len(list) && alike(&list[0], &list[same]) {
			same++
		}
		if len(rows) >= maxCoverage && d.Kind != CoverageKind {
			return rows, len(list)
		}
		rows = append(rows, coverRowOf(list[:same]))
		list = list[same:]
	}
	return rows, 0
}

// alike reports whether two devices can share a row.
func alike(a, b *cost.Covered) bool {
	minute := cost.Seconds(time.Minute.Microseconds())
	return a.Node == b.Node && a.Model == b.Model && a.Priced() == b.Priced() && a.Unknown/minute == b.Unknown/minute && whyText(a) == whyText(b)
}

func coverRowOf(list []cost.Covered) coverRow {
	var known, unknown cost.Seconds
	var money cost.Money
	var gpus []string
	for _, g := range list {
		known, unknown, money = known+g.Known, unknown+g.Unknown, money+g.Cost
		gpus = append(gpus, g.GPU)
	}
	r := coverRow{
		Node: Plain(list[0].Node), GPUs: Plain(strings.Join(gpus, ",")), Known: hoursText(known), Unknown: hoursText(unknown), Why: whyText(&list[0]), Cost: "-",
	}
	if list[0].Priced() {
		r.Cost = money.String()
	}
	return r
}

func hoursText(s cost.Seconds) string { return strconv.FormatFloat(s.Hours(), 'f', 2, 64) }

func whyText(g *cost.Covered) string {
	var out []string
	for _, u := range g.Why {
		out = append(out, whyWords[u.Why])
	}
	return strings.Join(out, ", ")
}

// Uncovered returns a note about the device time that nobody saw.
func (d *Report) Uncovered() []string {
	if d.NotSeenTotal == nil {
		return nil
	}
	sum := &d.NotSeenTotal.Amounts
	note := fmt.Sprintf("Nobody saw %.1f GPU-hours of %d GPUs: they are (not seen) and not in the total", sum.NotSeen.Hours(), d.NotSeenTotal.Devices)
	if sum.Priced() && d.Currency != "" {
		note += fmt.Sprintf(". They would cost %s %s, without energy, at the prices of their devices", sum.NotSeenCost, d.Currency)
	}
	return []string{note + ". See coverage."}
}

// printCoverage prints what is unknown.
func (d *Report) printCoverage(b *strings.Builder) {
	rows, more := d.coverRows()
	if len(rows) == 0 {
		return
	}
	out := [][]string{{"NODE", "GPU", "WHY UNKNOWN", "KNOWN H", "UNKNOWN H", "COST"}}
	for _, r := range rows {
		out = append(out, []string{r.Node, r.GPUs, r.Why, r.Known, r.Unknown, r.Cost})
	}
	fmt.Fprintln(b)
	if d.Kind != CoverageKind {
		fmt.Fprintln(b, "coverage")
	}
	printAligned(b, out, 3)
	if more > 0 {
		fmt.Fprintf(b, "and %d more GPUs: gpumeter report coverage\n", more)
	}
}

// csvCoverage writes a row for each device.
func csvCoverage(w io.Writer, d *Report) error {
	whys := []string{cost.NotSeenBefore, cost.Gap, cost.NotSeenSince, cost.NotSeen, cost.Sampling}
	rows := [][]string{append(append([]string{"node", "gpu", "uuid", "model", "known_seconds", "unknown_seconds"}, whys...), "cost", "currency", "from", "to")}
	seconds := func(s cost.Seconds) string { return strconv.FormatFloat(s.Float(), 'f', 6, 64) }
	if d.Coverage == nil {
		return csv.NewWriter(w).WriteAll(rows)
	}
	for _, g := range d.Coverage.GPUs {
		row := []string{cell(g.Node), cell(g.GPU), cell(g.UUID), cell(g.Model), seconds(g.Known), seconds(g.Unknown)}
		for _, why := range whys {
			t := cost.Seconds(0)
			if i := slices.IndexFunc(g.Why, func(u cost.Unknown) bool { return u.Why == why }); i >= 0 {
				t = g.Why[i].Time
			}
			row = append(row, seconds(t))
		}
		money := ""
		if g.Priced() {
			money = g.Cost.Decimals(6)
		}
		rows = append(rows, append(row, money, d.Currency, d.From.Format("2006-01-02T15:04:05Z"), d.To.Format("2006-01-02T15:04:05Z")))
	}
	return csv.NewWriter(w).WriteAll(rows)
}
