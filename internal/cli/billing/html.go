package billing

import (
	"fmt"
	"io"
	"slices"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// htmlPage is the content of a page.
type htmlPage struct {
	*Report

	Title    string
	Period   string
	Columns  []string
	Rows     []htmlRow
	Tiles    [][2]string
	Findings [][3]string
	Covered  []coverRow
	More     int
	Now      *htmlNow
	Tables   []htmlTable // of a report that is no table of groups
}

// htmlTable is a table whose first columns are names.
type htmlTable struct {
	Title   string
	Names   int
	Columns []string
	Rows    [][]string
}

// htmlNow is a table about how models are served.
type htmlNow struct {
	Title   string
	Columns []string
	Rows    [][]string
}

type htmlCell struct {
	Text string
	Bar  string // width of the bar of a ratio; empty: no bar
}

type htmlRow struct {
	Name  string
	Share string // share of the total, as the width of a bar
	Cells []htmlCell
	Last  bool
}

// HTML writes the report as a page.
func HTML(w io.Writer, d *Report) error {
	page := htmlPage{Report: d, Title: d.title(), Period: d.period()}
	page.Covered, page.More = d.coverRows()
	for _, c := range d.Columns {
		page.Columns = append(page.Columns, c.title)
	}
	lines := d.lines()
	for i, g := range lines {
		r := htmlRow{Name: g.Name, Share: percent(d.share(&g)), Last: i == len(d.Groups) || i > len(d.Groups) && i == len(lines)-1}
		for _, c := range d.Columns {
			one := htmlCell{Text: c.cell(&g)}
			if one.Text == "" {
				one.Text = "–"
			}
			if c.part != nil && g.Time() > 0 {
				one.Bar = percent(c.part(&g))
			}
			r.Cells = append(r.Cells, one)
		}
		page.Rows = append(page.Rows, r)
	}
	page.Tiles = d.tiles()
	for _, f := range d.Findings {
		page.Findings = append(page.Findings, [3]string{perDay(&f), f.Workload, f.Summary})
	}
	return page.write(w)
}

// share returns a group's share of the total cost, or of the total time if nothing is priced.
func (d *Report) share(g *cost.Group) float64 {
	if total := d.Total.Amounts.Total(); total > 0 {
		return float64(g.Amounts.Total()) / float64(total)
	}
	return float64(g.Time()) / float64(max(1, d.Total.Time()))
}

func percent(v float64) string {
	return fmt.Sprintf("%.1f%%", 100*min(max(v, 0), 1))
}

// tiles returns the figures at the top of the page.
func (d *Report) tiles() [][2]string {
	t := &d.Total
	out := [][2]string{{"GPU-hours", fmt.Sprintf("%.1f", t.Time().Hours())}, {"GPUs", fmt.Sprint(t.Devices)}}
	if d.Priced {
		out = slices.Insert(out, 0, [2]string{"bill, " + d.Currency, t.Amounts.Total().String()}, [2]string{"held and idle, " + d.Currency, t.IdleCost.String()}, [2]string{"unallocated, " + d.Currency, t.UnallocatedCost.String()})
	}
	if known := t.Used + t.Idle; known > 0 {
		out = append(out, [2]string{"of held time in use", fmt.Sprintf("%.0f %%", 100*float64(t.Used)/float64(known))})
	}
	if t.Energy > 0 {
		out = append(out, [2]string{"kWh", fmt.Sprintf("%.1f", t.Energy.KWh())})
	}
	return out
}
