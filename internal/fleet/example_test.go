package fleet_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// A device that a workload holds, as the fleet shows it at one moment.
func ExampleReader_At() {
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	store := querytest.NewMemory()
	add := func(series string, value float64, labels query.Labels) {
		labels[fleet.LabelName], labels[fleet.LabelUUID], labels[fleet.LabelHost] = series, "GPU-1", "node-1"
		store.Add(labels, now, value)
	}
	add(fleet.SeriesUp, 1, query.Labels{fleet.LabelModel: "H100"})
	add(fleet.SeriesUtilization, 0.9, query.Labels{})
	add(fleet.SeriesAllocation, 0.5, query.Labels{fleet.LabelKind: "job", fleet.LabelWorkload: "train", fleet.LabelNamespace: "ml"})

	f, err := fleet.NewReader(store, fleet.Options{}).At(context.Background(), now)
	if err != nil {
		panic(err)
	}
	for i := range f.Devices {
		d := &f.Devices[i]
		utilization, _ := d.Utilization.Get()
		fmt.Printf("%s on %s: %.0f%% busy, held: %v, idle: %v\n", d.Model, d.Node, 100*utilization, d.Held(), d.IsIdle())
		for _, n := range d.Owners {
			fmt.Printf("%s holds %.1f of it\n", f.Owners[n].Label(), d.Allocated)
		}
	}
	// Output:
	// H100 on node-1: 90% busy, held: true, idle: false
	// ml/train holds 0.5 of it
}

// The counters of a job, read as usage between two moments.
func ExampleMeter_Between() {
	noon := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	store := querytest.NewMemory()
	for minute := 1; minute <= 60; minute++ {
		for series, rate := range map[string]float64{fleet.SeriesAllocatedTime: 60, fleet.SeriesActiveTime: 45} {
			store.Add(query.Labels{
				fleet.LabelName: series, fleet.LabelUUID: "GPU-1", fleet.LabelKind: "slurm_job", fleet.LabelWorkload: "train", fleet.LabelSlurmJob: "7",
			}, noon.Add(time.Duration(minute)*time.Minute), rate*float64(minute))
		}
	}
	meter := fleet.NewMeter(store, fleet.MeterOptions{})
	err := meter.Between(context.Background(), noon, noon.Add(time.Hour), func(r *fleet.DayRow, from fleet.Sums) {
		fmt.Printf("%s: held %v, active %v\n", r.Labels[fleet.LabelWorkload], (r.Held - from.Held).Duration(), (r.Active - from.Active).Duration())
	})
	if err != nil {
		panic(err)
	}
	// Output: train: held 1h0m0s, active 45m0s
}
