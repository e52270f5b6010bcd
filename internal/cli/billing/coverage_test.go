package billing

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// Catches a report in any format that does not say which device time is unknown, why, and what
// it would cost.
func TestReportCoverage(t *testing.T) {
	t.Parallel()
	const hour = cost.Seconds(3600e6)
	gpu := func(node, index string, unknown cost.Seconds, why string) cost.Covered {
		g := cost.Covered{Node: node, GPU: index, UUID: node + "-" + index, Model: "H100", Known: 24*hour - unknown, Unknown: unknown, AtMost: cost.Money(unknown / hour * 2e6), Priced: true}
		if why != "" {
			g.Why = []cost.Unknown{{Why: why, Time: unknown}}
		}
		return g
	}
	data := func(kind string) *Report {
		from := time.Date(2026, 10, 14, 0, 0, 0, 0, time.UTC)
		columns, err := Columns(kind, []string{"gpus"})
		if err != nil {
			t.Fatal(err)
		}
		d := &Report{
			Kind: kind, By: "team", Keys: []string{"team"}, From: from, To: from.AddDate(0, 0, 1), Currency: "EUR", Columns: columns,
			Total: cost.Group{Name: "total", Devices: 4},
			Coverage: &cost.Coverage{Tolerance: 90 * time.Second, GPUs: []cost.Covered{
				gpu("n1", "0", 2*hour, cost.Gap), gpu("n1", "1", 2*hour, cost.Gap), gpu("n1", "2", 0, ""), gpu("n2", "0", 24*hour, cost.NotSeen),
			}},
		}
		d.Notes = d.Uncovered()
		return d
	}
	var out bytes.Buffer
	if err := Table(&out, data("usage")); err != nil {
		t.Fatal(err)
	}
	want := `usage by team, 2026-10-14 00:00 to 2026-10-15 00:00 UTC

TEAM   GPUS
total     4

coverage
NODE  GPU  WHY UNKNOWN              KNOWN H  UNKNOWN H  AT MOST
n2    0    not seen in this period     0.00      24.00    48.00
n1    0,1  no samples in between      44.00       4.00     8.00

28.0 GPU-hours of 3 GPUs are unknown and in no row: they cost at most 56.00 EUR, without energy. See coverage.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	out.Reset()
	if err := CSV(&out, data(CoverageKind)); err != nil {
		t.Fatal(err)
	}
	want = `node,gpu,uuid,model,known_seconds,unknown_seconds,not_seen_before,gap,not_seen_since,not_seen,sampling,at_most,currency,from,to
n1,0,n1-0,H100,79200.000000,7200.000000,0.000000,7200.000000,0.000000,0.000000,0.000000,4.000000,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z
n1,1,n1-1,H100,79200.000000,7200.000000,0.000000,7200.000000,0.000000,0.000000,0.000000,4.000000,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z
n1,2,n1-2,H100,86400.000000,0.000000,0.000000,0.000000,0.000000,0.000000,0.000000,0.000000,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z
n2,0,n2-0,H100,0.000000,86400.000000,0.000000,0.000000,0.000000,86400.000000,0.000000,48.000000,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("csv (-want +got):\n%s", diff)
	}
	for name, write := range map[string]func(*bytes.Buffer) error{
		"html": func(b *bytes.Buffer) error { return HTML(b, data("cost")) },
		"json": func(b *bytes.Buffer) error { return JSON(b, data("cost")) },
	} {
		out.Reset()
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		for _, part := range map[string][]string{"html": {"not seen in this period", "<td>24.00</td>", "<td>48.00</td>"}, "json": {`"why": "not_seen"`, `"at_most": 48.000000`}}[name] {
			if !strings.Contains(out.String(), part) {
				t.Errorf("%s lacks %s:\n%s", name, part, out.String())
			}
		}
	}
}
