package cost_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Two hours of one device at the prices of a file. The price rises after the first hour.
func ExampleBill() {
	prices, err := cost.Parse([]byte(`
currency: USD
prices:
- match: {model: "*H100*"}
  rates:
  - {from: 2026-01-01, kind: on_demand, per_hour: 2.50}
  - {from: 2026-11-15T13:00:00Z, kind: on_demand, per_hour: 3.00}
`))
	if err != nil {
		panic(err)
	}
	noon := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	store := querytest.NewMemory()
	for minute := 1; minute <= 120; minute++ {
		for series, rate := range map[string]float64{fleet.SeriesAllocatedTime: 60, fleet.SeriesActiveTime: 45} {
			store.Add(query.Labels{
				fleet.LabelName: series, fleet.LabelUUID: "GPU-1", fleet.LabelModel: "NVIDIA H100 80GB HBM3",
				fleet.LabelKind: "job", fleet.LabelWorkload: "train", fleet.LabelTeam: "research", fleet.LabelPodUID: "p1",
			}, noon.Add(time.Duration(minute)*time.Minute), rate*float64(minute))
		}
	}

	bill, err := cost.Bill(context.Background(), store, prices, noon, noon.Add(2*time.Hour), cost.Options{})
	if err != nil {
		panic(err)
	}
	team, _ := cost.DimensionOf("team")
	for _, g := range bill.By(team) {
		fmt.Printf("%s: %.1f GPU-hours, %.1f idle, %s %s\n", g.Name, g.Allocated().Hours(), g.Idle.Hours(), g.Total(), bill.Currency)
	}
	// Output: research: 2.0 GPU-hours, 0.5 idle, 5.50 USD
}
