package billing

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches the line of a node and that of its hours that nobody saw under one name, and hours without
// a price that cost nothing.
func TestNotSeenByNode(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	noon := time.Date(2026, 10, 14, 12, 0, 0, 0, time.UTC)
	for node, minutes := range map[string]int{"n1": 60, "n2": 15, "n3": 30} { // n2 and n3 die
		for s := 0; s <= minutes*60; s += 10 {
			at := noon.Add(time.Duration(s) * time.Second)
			for name, v := range map[string]float64{fleet.SeriesUp: 1, fleet.SeriesUnallocatedTime: float64(s)} {
				m.Add(query.Labels{"__name__": name, "gpu_uuid": "g-" + node, "gpu_model": "H100", "host_name": node, "gpu_workload_kind": "unallocated"}, at, v)
			}
		}
	}
	p, err := cost.Parse([]byte("{currency: EUR, prices: [{match: {host: n2}, rates: [{from: 2020-01-01, kind: spot, per_hour: 4}]}]}"))
	if err != nil {
		t.Fatal(err)
	}
	bill, err := cost.Bill(t.Context(), m, p, noon, noon.Add(time.Hour), cost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	coverage, err := cost.Cover(t.Context(), m, p, &bill, nil)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := Columns("cost", []string{"gpu_hours", "unallocated_cost", "not_seen_hours", "cost"})
	if err != nil {
		t.Fatal(err)
	}
	node, _ := cost.DimensionOf("node")
	d := &Report{Kind: "cost", By: "node", Keys: []string{"node"}, From: bill.From, To: bill.To, Zone: "Asia/Kolkata", Columns: columns}
	d.Fill(&bill, []cost.Dimension{node})
	d.Cover(coverage, []cost.Dimension{node})
	d.Coverage = nil
	var out bytes.Buffer
	if err := Table(&out, d); err != nil {
		t.Fatal(err)
	}
	want := `cost by node, 2026-10-14 17:30 to 2026-10-14 18:30 IST, EUR

NODE                   GPU-HOURS  FREE  NOT SEEN H  TOTAL
n2                          0.25  1.00        0.00   1.00
n1                          1.00     -        0.00      -
n3                          0.50     -        0.00      -
total                       1.75  1.00        0.00   1.00
n2 (not seen)               0.75     -        0.75   3.00
n3 (not seen)               0.50     -        0.50      -
with hours nobody saw       3.00  1.00        1.25   4.00
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
