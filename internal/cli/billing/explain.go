package billing

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// Explained is how one row of a report was made.
type Explained struct {
	By        string `json:"by"`
	Zone      string `json:"time_zone"` // of the days and months
	Store     string `json:"store"`
	PriceFile string `json:"price_file,omitempty"`
	// ComputedFrom has the sources of the lines: kept usage, samples or both.
	ComputedFrom []string `json:"computed_from"`
	Simulated    string   `json:"simulated"` // as in a report
	*cost.Explanation
	Notes []string `json:"notes"`

	Report *Report    `json:"-"` // that has the row
	Group  cost.Group `json:"-"` // the row
}

// Fill adds an explanation.
func (d *Explained) Fill(e *cost.Explanation) {
	d.Explanation, d.ComputedFrom = e, []string{}
	for i := range e.Holders {
		for j := range e.Holders[i].Lines {
			if from := e.Holders[i].Lines[j].Source; !slices.Contains(d.ComputedFrom, from) {
				d.ComputedFrom = append(d.ComputedFrom, from)
			}
		}
	}
	slices.Sort(d.ComputedFrom)
	if e.Sum.Unpriced > 0 {
		d.Notes = append(d.Notes, fmt.Sprintf("%s s have no price, and are in no cost.", digits(e.Sum.Unpriced)))
	}
	if e.Sum.UnpricedEnergy > 0 {
		d.Notes = append(d.Notes, fmt.Sprintf("%s J of owned devices have no price, and are in no cost.", digits(e.Sum.UnpricedEnergy)))
	}
	if e.Sum != d.Group.Amounts {
		d.Notes = append(d.Notes, "Samples arrived while this was computed: a report that was made a moment before it differs.")
	}
}

// lineColumn is a figure of a line.
type lineColumn struct {
	name, title string
	text        func(*cost.Line) string
	only        string // a kind of report whose tables have it; empty: all
}

// digits returns all digits of an amount.
func digits(v json.Marshaler) string {
	b, err := v.MarshalJSON()
	if err != nil {
		return ""
	}
	return string(b)
}

// lineColumns are the amounts of a line, with all digits: a sum can be checked.
func lineColumns() []lineColumn {
	money := func(of func(*cost.Line) cost.Money) func(*cost.Line) string {
		return func(l *cost.Line) string {
			if l.Price == 0 && !l.Priced() {
				return ""
			}
			return digits(of(l))
		}
	}
	return []lineColumn{
		{"held_seconds", "HELD S", func(l *cost.Line) string { return digits(l.Allocated()) }, ""},
		{"used_seconds", "USED S", func(l *cost.Line) string { return digits(l.Used) }, ""},
		{"idle_seconds", "IDLE S", func(l *cost.Line) string { return digits(l.Idle) }, ""},
		{"unmeasured_seconds", "UNKNOWN S", func(l *cost.Line) string { return digits(l.Unmeasured) }, ""},
		{"unallocated_seconds", "FREE S", func(l *cost.Line) string { return digits(l.Unallocated) }, ""},
		{"energy_joules", "ENERGY J", func(l *cost.Line) string { return digits(l.Energy) }, ""},
		{"co2_grams", "CO2 G", func(l *cost.Line) string { return digits(l.Carbon) }, "energy"},
		{"used_cost", "USED", money(func(l *cost.Line) cost.Money { return l.UsedCost }), ""},
		{"idle_cost", "IDLE", money(func(l *cost.Line) cost.Money { return l.IdleCost }), ""},
		{"unmeasured_cost", "UNKNOWN", money(func(l *cost.Line) cost.Money { return l.UnmeasuredCost }), ""},
		{"unallocated_cost", "FREE", money(func(l *cost.Line) cost.Money { return l.UnallocatedCost }), ""},
		{"energy_cost", "ENERGY", money(func(l *cost.Line) cost.Money { return l.EnergyCost }), ""},
		{"cost", "TOTAL", money(func(l *cost.Line) cost.Money { return l.Cost }), ""},
	}
}

// ExplainCSV writes a row for each line, and no sum.
func ExplainCSV(w io.Writer, d *Explained) error {
	head := []string{"node", "device", "partition", "model", "name", "team", "identity", "from", "to", "source"}
	columns := lineColumns()
	for _, c := range columns {
		head = append(head, c.name)
	}
	rows := [][]string{append(head, "currency", "per_hour", "price", "per_kwh", "power", "first_sample", "first_held_seconds", "last_sample", "last_held_seconds", "samples_gone")}
	where := func(list []cost.Entry, number int) string {
		if number == 0 {
			return ""
		}
		return list[number-1].Where
	}
	for i := range d.Holders {
		h := &d.Holders[i]
		for j := range h.Lines {
			l := &h.Lines[j]
			row := []string{
				cell(h.Node), cell(h.Device), cell(h.Partition), cell(h.Model), cell(h.Name), cell(h.Team), cell(h.Identity),
				l.From.Format(time.RFC3339Nano), l.To.Format(time.RFC3339Nano), l.Source,
			}
			for _, c := range columns {
				row = append(row, c.text(l))
			}
			row = append(row, d.Currency, digits(l.PerHour), where(d.Prices, l.Price), digits(l.PerKWh), where(d.Power, l.Power))
			for _, r := range []*cost.Reading{cmp.Or(l.Start.Before, l.Start.After), l.End.Before} {
				if r == nil {
					row = append(row, "", "")
					continue
				}
				row = append(row, r.At.Format(time.RFC3339Nano), strconv.FormatFloat(r.Held, 'f', -1, 64))
			}
			rows = append(rows, append(row, strconv.FormatBool(l.Gone())))
		}
	}
	return csv.NewWriter(w).WriteAll(rows)
}

// ExplainJSON writes everything, with all digits.
func ExplainJSON(w io.Writer, d *Explained) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(d)
}
