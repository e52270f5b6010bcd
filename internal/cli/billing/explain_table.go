package billing

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// sum returns the sum of all lines.
func (d *Explained) sum() *cost.Line {
	return &cost.Line{Amounts: d.Sum, Cost: d.Sum.Total()}
}

// ExplainTable prints the lines of each holder, their sum, the row of the report, and the prices.
func ExplainTable(w io.Writer, d *Explained) error {
	zone, err := cost.Zone(d.Zone)
	if err != nil {
		zone = time.UTC
	}
	var b strings.Builder
	fmt.Fprintf(&b, "how %s was made: %s", Plain(strings.Join(d.Row, ", ")), d.Report.title())
	if d.Report.Priced {
		fmt.Fprintf(&b, ", %s", d.Currency)
	}
	fmt.Fprintf(&b, "\n%s\n", d.origin())
	if d.Simulated != "" {
		fmt.Fprintln(&b, d.Report.Warning())
	}
	d.printLines(&b, zone)
	d.printRow(&b)
	d.printPrices(&b, zone)
	d.printNotCounted(&b)
	for i, note := range d.Notes {
		if i == 0 {
			fmt.Fprintln(&b)
		}
		fmt.Fprintln(&b, Plain(note))
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// origin says where the numbers come from.
func (d *Explained) origin() string {
	from := map[string]string{cost.FromKept: "usage that the store has kept by the hour", cost.FromSamples: "samples"}
	var words []string
	for _, source := range d.ComputedFrom {
		words = append(words, from[source])
	}
	text := "computed from " + cmp.Or(strings.Join(words, ", then "), "nothing") + " of " + Plain(d.Store)
	if d.PriceFile != "" {
		text += ", prices of " + Plain(d.PriceFile)
	}
	return text
}

// moment returns a time, without the seconds if it has none.
func moment(t time.Time, zone *time.Location) string {
	t = t.In(zone)
	switch {
	case t.Nanosecond() != 0:
		return t.Format("2006-01-02 15:04:05.000")
	case t.Second() != 0:
		return t.Format("2006-01-02 15:04:05")
	}
	return t.Format("2006-01-02 15:04")
}

// printLines prints a table with a heading for each holder.
func (d *Explained) printLines(b *strings.Builder, zone *time.Location) {
	var columns []lineColumn
	for _, c := range lineColumns() {
		zero := strings.Trim(c.text(d.sum()), "-0.") == ""
		if c.name == "cost" || !zero && (c.only == "" || c.only == d.Report.Kind) {
			columns = append(columns, c)
		}
	}
	row := func(first []string, l *cost.Line, last ...string) []string {
		for _, c := range columns {
			first = append(first, cmp.Or(c.text(l), "-"))
		}
		return append(first, last...)
	}
	head := []string{"FROM", "TO", "PRICE"}
	for _, c := range columns {
		head = append(head, c.title)
	}
	rows := [][]string{append(head, "FIRST SAMPLE", "LAST SAMPLE")}
	names, headings := d.headings(), map[int]string{} // by row
	for i := range d.Holders {
		h := &d.Holders[i]
		headings[len(rows)] = Plain(names[i])
		for j := range h.Lines {
			l := &h.Lines[j]
			first, last := samples(l, zone)
			rows = append(rows, row([]string{moment(l.From, zone), moment(l.To, zone), prices(l)}, l, first, last))
		}
	}
	rows = append(rows, row([]string{"sum", "", ""}, d.sum(), "", ""))
	for n, line := range aligned(rows, 3) {
		if n == 0 || headings[n] != "" {
			fmt.Fprintln(b)
		}
		if headings[n] != "" {
			fmt.Fprintln(b, headings[n])
		}
		if n == len(rows)-1 {
			fmt.Fprintln(b)
		}
		fmt.Fprintln(b, line)
	}
}

// headings returns for each holder which device it is, and who held it. Holders that differ only in
// other labels have those too.
func (d *Explained) headings() []string {
	out := make([]string, len(d.Holders))
	same := map[string][]int{}
	for i := range d.Holders {
		out[i] = heading(&d.Holders[i])
		same[out[i]] = append(same[out[i]], i)
	}
	for _, list := range same {
		if len(list) == 1 {
			continue
		}
		first, other := d.Holders[list[0]].Labels, map[string]bool{}
		for _, i := range list[1:] {
			labels := d.Holders[i].Labels
			for _, l := range []map[string]string{first, labels} {
				for name := range l {
					other[name] = other[name] || first[name] != labels[name]
				}
			}
		}
		for _, i := range list {
			for _, name := range slices.Sorted(maps.Keys(other)) {
				if other[name] {
					out[i] += ", " + name + "=" + strconv.Quote(d.Holders[i].Labels[name])
				}
			}
		}
	}
	return out
}

func heading(h *cost.Holder) string {
	text := h.Device
	if h.Partition != "" {
		text += " partition " + h.Partition
	}
	text += " (" + cmp.Or(h.Model, "no model") + ") on " + cmp.Or(h.Node, "an unknown node") + ": " + h.Name
	if h.Team != "" {
		text += ", team " + h.Team
	}
	if h.Identity != "" {
		text += ", " + h.Identity
	}
	return text
}

// prices returns the numbers of the entries that applied to a line.
func prices(l *cost.Line) string {
	var out []string
	if l.Price > 0 {
		out = append(out, priceName(l.Price, false))
	}
	if l.PerKWh > 0 {
		out = append(out, priceName(l.Power, true))
	}
	return cmp.Or(strings.Join(out, "+"), "-")
}

// priceName returns the name of an entry: p1 of prices, e1 of energy.
func priceName(number int, power bool) string {
	switch {
	case number == 0:
		return "no price"
	case power:
		return "e" + strconv.Itoa(number)
	}
	return "p" + strconv.Itoa(number)
}

// samples returns the first and the last sample of a line, with the value of the held time counter.
func samples(l *cost.Line, zone *time.Location) (first, last string) {
	text := func(r *cost.Reading) string {
		if r == nil {
			return "none"
		}
		held := strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(r.Held, 'f', 6, 64), "0"), ".") // a bill counts microseconds
		return held + " s at " + r.At.In(zone).Format("15:04:05.000")
	}
	if l.Gone() {
		return "samples are gone", "kept usage"
	}
	return text(cmp.Or(l.Start.Before, l.Start.After)), text(l.End.Before)
}

// printRow prints the row as it is in the report.
func (d *Explained) printRow(b *strings.Builder) {
	var head []string
	for _, key := range d.Report.Keys {
		head = append(head, strings.ToUpper(key))
	}
	row := d.Report.names(&d.Group)
	for i := range d.Report.Columns {
		c := &d.Report.Columns[i]
		head = append(head, c.title)
		row = append(row, cmp.Or(c.cell(&d.Group), "-"))
	}
	fmt.Fprintln(b, "\nin the report")
	printAligned(b, [][]string{head, row}, len(d.Report.Keys))
}

// printPrices prints the entries of the price file that applied, and when they changed.
func (d *Explained) printPrices(b *strings.Builder, zone *time.Location) {
	if len(d.Prices)+len(d.Power) > 0 {
		fmt.Fprintln(b, "\nprices")
	}
	for i := range d.Prices {
		e := &d.Prices[i]
		fmt.Fprintf(b, "%s  %s %s a device hour, %s: %s\n", priceName(e.Number, false), digits(e.PerHour), d.Currency, valid(e, zone), entry(e))
	}
	for i := range d.Power {
		e := &d.Power[i]
		price := "for CO2 only"
		if d.charged(e.Number) {
			price = digits(e.PerKWh) + " " + d.Currency + " a kWh"
		}
		fmt.Fprintf(b, "%s  %s, %s: %s\n", priceName(e.Number, true), price, valid(e, zone), entry(e))
	}
	for i, c := range d.Changes {
		if i == 0 {
			fmt.Fprintln(b, "\nprice changes")
		}
		what := ""
		if c.Power {
			what = "energy "
		}
		fmt.Fprintf(b, "%s  %s%s -> %s\n", moment(c.At, zone), what, priceName(c.OldNumber, c.Power), priceName(c.NewNumber, c.Power))
	}
}

// charged reports whether any line pays for energy by an entry. The price of a rented device includes
// energy.
func (d *Explained) charged(power int) bool {
	return slices.ContainsFunc(d.Holders, func(h cost.Holder) bool {
		return slices.ContainsFunc(h.Lines, func(l cost.Line) bool { return l.Power == power && l.PerKWh > 0 })
	})
}

func valid(e *cost.Entry, zone *time.Location) string {
	text := "from " + moment(e.From, zone)
	if !e.To.IsZero() {
		text += " to " + moment(e.To, zone)
	}
	return text
}

// entry returns the place of an entry in the price file and its text.
func entry(e *cost.Entry) string {
	var match []string
	for _, name := range slices.Sorted(maps.Keys(e.Match)) {
		match = append(match, name+": "+strconv.Quote(e.Match[name]))
	}
	text := fmt.Sprintf("line %d, %s, match {%s}, %s", e.Line, e.Where, strings.Join(match, ", "), e.Text)
	if e.Exchange != "" {
		text += ", exchange rate " + e.Exchange
	}
	return Plain(text)
}

// printNotCounted prints what the row omits.
func (d *Explained) printNotCounted(b *strings.Builder) {
	n := &d.NotCounted
	var out []string
	for _, device := range slices.Sorted(maps.Keys(n.Twice)) {
		out = append(out, fmt.Sprintf("%s: %s s were reported twice, by its agent and another sender", device, digits(n.Twice[device])))
	}
	for _, device := range slices.Sorted(maps.Keys(n.Unseen)) {
		u := n.Unseen[device]
		out = append(out, fmt.Sprintf("%s: %d counters stood at %s s in total when the store first saw them", device, u.Accounts, digits(u.Held)))
	}
	if n.Refused > 0 {
		of := "of these devices"
		if n.RefusedAnywhere {
			of = "of the whole fleet (kept usage does not tell of which devices)"
		}
		out = append(out, fmt.Sprintf("%d invalid counter values %s were discarded", n.Refused, of))
	}
	if len(out) == 0 {
		out = []string{"nothing that the store knows of"}
	}
	fmt.Fprintln(b, "\nnot counted")
	for _, line := range out {
		fmt.Fprintln(b, Plain(line))
	}
}
