package days

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

var (
	benchGPUs = flag.Int("gpus", 500, "GPUs of a benchmark's fleet")
	benchDays = flag.Int("days", 30, "days that are billed in a benchmark")
)

// BenchmarkBill bills kept days, with workloads of 36 hours: after a start, when all of them are on disk,
// and again.
func BenchmarkBill(b *testing.B) {
	begin := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	end := begin.Add(time.Duration(*benchDays) * day)
	dir := b.TempDir()
	o := Options{
		Samples: func() (time.Time, time.Time) { return begin, end.Add(2 * time.Hour) },
		Devices: func(context.Context, time.Time, time.Time) ([]string, error) { return nil, nil },
	}
	store := querytest.NewMemory()
	d, err := Open(dir, store, o)
	if err != nil {
		b.Fatal(err)
	}
	for t := begin; t.Before(end); t = t.Add(day) {
		if err := write(filepath.Join(dir, name(t)), d.fleetOn(begin, t, *benchGPUs).encode()); err != nil {
			b.Fatal(err)
		}
	}
	prices, err := cost.Parse([]byte("currency: EUR\nprices: [{match: {model: H100}, rates: [{from: 2026-01-01, kind: on_demand, per_hour: 2}]}]\n"))
	if err != nil {
		b.Fatal(err)
	}
	bill := func(b *testing.B, d *Days) {
		b.Helper()
		s, err := cost.Bill(b.Context(), d, prices, begin, end, cost.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if hours := s.Total.Time().Hours(); hours != float64(*benchGPUs**benchDays*24) {
			b.Fatalf("the bill has %v GPU-hours", hours)
		}
	}
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			d, err := Open(dir, store, o)
			if err != nil {
				b.Fatal(err)
			}
			bill(b, d)
		}
	})
	b.Run("warm", func(b *testing.B) {
		d, err := Open(dir, store, o)
		if err != nil {
			b.Fatal(err)
		}
		bill(b, d)
		for b.Loop() {
			bill(b, d)
		}
	})
}

// fleetOn returns the day of a fleet whose GPUs are always held.
func (d *Days) fleetOn(begin, today time.Time, gpus int) *kept {
	k := &kept{day: today, hours: 24, begin: begin.UnixMilli(), devices: map[string]*device{}}
	for gpu := range gpus {
		uuid := fmt.Sprintf("GPU-%08d", gpu)
		x := &device{key: uuid, seen: today.Add(day).UnixMilli(), dropped: make([]fleet.Seconds, 24)}
		last := -1
		for h := range 24 {
			n := int((today.Sub(begin) + time.Duration(h)*time.Hour + time.Duration(gpu)*17*time.Minute) / (36 * time.Hour))
			if n != last {
				pod := fmt.Sprintf("train-%d-%d", gpu, n)
				id := d.intern([]byte(query.Labels{
					fleet.LabelUUID: uuid, fleet.LabelIndex: fmt.Sprint(gpu % 8), fleet.LabelModel: "H100", fleet.LabelHost: fmt.Sprintf("node-%d", gpu/8),
					fleet.LabelCluster: "east", fleet.LabelVendor: "nvidia", fleet.LabelKind: "job", fleet.LabelWorkload: pod, fleet.LabelTeam: fmt.Sprint("team", n%8),
					fleet.LabelNamespace: "ml", fleet.LabelPod: pod, fleet.LabelPodUID: "uid-" + pod,
				}.Key()))
				x.rows, last = append(x.rows, row{rowID: id, hours: make([]fleet.Sums, 24)}), n
			}
			x.rows[len(x.rows)-1].hours[h] = fleet.Sums{Held: 3600e6, Active: fleet.Seconds(900e6 * (n % 4)), Energy: fleet.Energy(3600e3 * (300 + n)), HasActive: true, HasEnergy: true}
		}
		k.devices[uuid] = x
	}
	return k
}
