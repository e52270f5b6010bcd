package billing

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// A namespace, a node or a quota with markup in its name must not become markup of the page.
func TestPageEscapes(t *testing.T) {
	const hostile = `"><script>alert(1)</script><b a='`
	row := [][]string{{hostile, hostile}}
	pages := map[string]*htmlPage{
		"groups": {
			Report: &Report{
				Kind: hostile, By: hostile, Simulated: "all", Notes: []string{hostile},
				Quotas: []cost.Use{{Quota: hostile, What: hostile}, {Quota: hostile, Over: true}},
			},
			Title: hostile, Period: hostile, Columns: []string{hostile}, Tiles: [][2]string{{hostile, hostile}}, Findings: [][3]string{{hostile, hostile, hostile}},
			Rows:    []htmlRow{{Name: hostile, Share: hostile, Cells: []htmlCell{{hostile, ""}, {hostile, hostile}}}, {Name: hostile, Last: true}},
			Covered: []coverRow{{hostile, hostile, hostile, hostile, hostile, hostile}}, More: 1,
			Now: &htmlNow{Title: hostile, Columns: []string{hostile}, Rows: row},
		},
		"tables": {Report: &Report{Kind: hostile}, Tables: []htmlTable{{Title: hostile, Names: 1, Columns: []string{hostile}, Rows: row}}},
	}
	for name, page := range pages {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := page.write(&b); err != nil {
				t.Fatal(err)
			}
			text := b.String()
			for _, bad := range []string{hostile, "<script", "a='", "%!"} {
				if strings.Contains(text, bad) {
					t.Errorf("the page has %q:\n%s", bad, text)
				}
			}
			if !strings.Contains(text, "&lt;script&gt;") {
				t.Error("the page lacks the escaped name")
			}
			for _, element := range []string{"table", "tr", "td", "th", "ul", "li", "div", "p", "main", "footer"} {
				if opened, closed := strings.Count(text, "<"+element+">")+strings.Count(text, "<"+element+" "), strings.Count(text, "</"+element+">"); opened != closed {
					t.Errorf("%d <%s>, %d </%[2]s>", opened, element, closed)
				}
			}
		})
	}
}
