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
		g := cost.Covered{Node: node, GPU: index, UUID: node + "-" + index, Model: "H100", Known: 24*hour - unknown, Unknown: unknown, Cost: cost.Money(unknown / hour * 2e6)}
		if why != "" {
			g.Why = []cost.Unknown{{Why: why, Time: unknown}}
		}
		return g
	}
	data := func(kind string) *Report {
		from := time.Date(2026, 10, 14, 0, 0, 0, 0, time.UTC)
		columns, err := Columns(kind, []string{"gpus", "gpu_hours", "used_cost", "cost"})
		if err != nil {
			t.Fatal(err)
		}
		d := &Report{
			Kind: kind, By: "team", Keys: []string{"team"}, From: from, To: from.AddDate(0, 0, 1), Currency: "EUR", Columns: columns,
			Groups: []cost.Group{{Name: "a", Keys: []string{"a"}, Devices: 3, Amounts: cost.Amounts{Used: 68 * hour, UsedCost: 136e6}}},
			Total:  cost.Group{Name: "total", Devices: 3, Amounts: cost.Amounts{Used: 68 * hour, UsedCost: 136e6}},
		}
		team, _ := cost.DimensionOf("team")
		d.Cover(&cost.Coverage{Tolerance: 90 * time.Second, GPUs: []cost.Covered{
			gpu("n1", "0", 2*hour, cost.Gap), gpu("n1", "1", 2*hour, cost.Gap), gpu("n1", "2", 0, ""), gpu("n2", "0", 24*hour, cost.NotSeen),
		}}, []cost.Dimension{team})
		d.Notes = d.Uncovered()
		return d
	}
	var out bytes.Buffer
	if err := Table(&out, data("usage")); err != nil {
		t.Fatal(err)
	}
	want := `usage by team, 2026-10-14 00:00 to 2026-10-15 00:00 UTC

TEAM                   GPUS  GPU-HOURS    USED   TOTAL
a                         3      68.00  136.00  136.00
total                     3      68.00  136.00  136.00
(not seen)                3      28.00       -   56.00
with hours nobody saw     4      96.00  136.00  192.00

coverage
NODE  GPU  WHY UNKNOWN              KNOWN H  UNKNOWN H   COST
n2    0    not seen in this period     0.00      24.00  48.00
n1    0,1  no samples in between      44.00       4.00   8.00

Nobody saw 28.0 GPU-hours of 3 GPUs: they are (not seen) and not in the total. They would cost 56.00 EUR, without energy, at the prices of their devices. See coverage.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	out.Reset()
	if err := CSV(&out, data(CoverageKind)); err != nil {
		t.Fatal(err)
	}
	want = `node,gpu,uuid,model,known_seconds,unknown_seconds,not_seen_before,gap,not_seen_since,not_seen,sampling,cost,currency,from,to
n1,0,n1-0,H100,79200.000000,7200.000000,0.000000,7200.000000,0.000000,0.000000,0.000000,4.000000,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z
n1,1,n1-1,H100,79200.000000,7200.000000,0.000000,7200.000000,0.000000,0.000000,0.000000,4.000000,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z
n1,2,n1-2,H100,86400.000000,0.000000,0.000000,0.000000,0.000000,0.000000,0.000000,0.000000,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z
n2,0,n2-0,H100,0.000000,86400.000000,0.000000,0.000000,0.000000,86400.000000,0.000000,48.000000,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("csv (-want +got):\n%s", diff)
	}
	out.Reset()
	if err := CSV(&out, data("cost")); err != nil {
		t.Fatal(err)
	}
	want = `team,gpus,gpu_hours,used_cost,cost,unpriced_hours,unpriced_kwh,not_seen_hours,not_seen_cost,currency,from,to,simulated
a,3.000000,68.000000000,136.000000,136.000000,0.000000000,0.000000,0.000000000,0.000000,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z,none
(not seen),3.000000,0.000000000,0.000000,0.000000,0.000000000,0.000000,28.000000000,56.000000,EUR,2026-10-14T00:00:00Z,2026-10-15T00:00:00Z,none
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
		for _, part := range map[string][]string{"html": {"not seen in this period", "<td>24.00</td>", "<td>48.00</td>", "(not seen)</td>", ">with hours nobody saw</td><td>4</td><td>96.00</td><td>136.00</td><td>192.00</td>"}, "json": {`"why": "not_seen"`, `"cost": 48.000000`, `"not_seen_cost": 56.000000`, `"total_with_not_seen": {`}}[name] {
			if !strings.Contains(out.String(), part) {
				t.Errorf("%s lacks %s:\n%s", name, part, out.String())
			}
		}
	}
}
