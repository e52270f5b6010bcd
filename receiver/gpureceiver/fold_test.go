package gpureceiver

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// crowd is a machine with more workloads than a tick may have series for.
type crowd struct {
	r       *rand.Rand
	devices []node.Reading
	names   int
	joules  float64 // used so far by all workloads
	seconds float64
}

func newCrowd(seed uint64, devices, workloads int) *crowd {
	c := &crowd{r: rand.New(rand.NewPCG(seed, 1))}
	for i := range devices {
		d := tickOf(device.Sample{ID: device.ID{Vendor: "nvidia", UUID: fmt.Sprint("GPU-", i), Index: i}, Utilization: device.Engines{Compute: device.Of(1)}}).Readings[0]
		d.Holders = []node.Holder{{Workload: nobody, Basis: node.ByGrant, Since: start}}
		c.devices = append(c.devices, d)
		for range workloads {
			c.arrive(i, start)
		}
	}
	return c
}

func (c *crowd) arrive(i int, at time.Time) {
	c.names++
	w := workload.Workload{ID: fmt.Sprint("w", c.names), Kind: "job", Name: fmt.Sprint("w", c.names)}
	if c.names%1000 == 7 && i == 0 && !slices.ContainsFunc(c.devices[0].Holders, func(h node.Holder) bool { return h.Kind == workload.Other }) {
		w = workload.Workload{ID: workload.Other, Kind: workload.Other} // beyond the limit of the node's ledger
	}
	c.devices[i].Holders = append(c.devices[i].Holders, node.Holder{
		Workload: w, Basis: node.ByProcess, Since: at,
		Allocation: 0.01, Utilization: device.Of(0.01), MemoryUsed: device.Of(1), Power: device.Of(1), Energy: device.Of(0), Active: device.Of(0),
	})
}

// tick lets a second pass in which each workload uses a joule. Some workloads leave, some are
// forgotten, and some arrive.
func (c *crowd) tick(at time.Time, change bool) node.Tick {
	t := tickOf()
	t.Time = at
	for i := range c.devices {
		d := &c.devices[i]
		d.Holders = slices.DeleteFunc(slices.Clone(d.Holders), func(h node.Holder) bool { return h.Ended && c.r.IntN(3) == 0 })
		for j := range d.Holders {
			h := &d.Holders[j]
			if h.Ended || h.Kind == workload.Unallocated {
				continue
			}
			energy, _ := h.Energy.Get()
			h.Energy, h.Active, h.Allocated = device.Of(energy+1), device.Of(h.Allocated+1), h.Allocated+1
			c.joules++
			c.seconds++
			h.Ended = change && c.r.IntN(10) == 0
		}
		for range c.r.IntN(12) {
			if change {
				c.arrive(i, at)
			}
		}
		t.Readings = append(t.Readings, *d)
	}
	return t
}

// Catches sums that a limit of the series cuts: the joules and seconds that all workloads
// used are those that the series have accrued, whoever comes and goes, and over a restart.
func TestFoldIsExact(t *testing.T) {
	for seed := range uint64(5) {
		c := newCrowd(seed, 2, 40)
		cfg := createDefaultConfig().(*Config)
		cfg.MaxSeries = 400
		e := newEmitter(cfg)
		last, accrued := map[string]float64{}, map[string]float64{}
		others := 0
		unseen := 0.0 // used before the first tick of the second process, and not exported
		for i := range 60 {
			if i == 30 {
				e = newEmitter(cfg)
				unseen = c.joules
			}
			md := e.Emit(c.tick(start.Add(time.Duration(i)*time.Second), i > 0))
			if n := md.DataPointCount(); n > cfg.MaxSeries+300 { // the final points of what ended are besides
				t.Errorf("seed %d, tick %d: %d points over a limit of %d", seed, i, n, cfg.MaxSeries)
			}
			if i == 30 {
				unseen = c.joules - unseen
			}
			for m := range series.Metrics(md) {
				if m.Name() != "gpu.workload.energy" && m.Name() != "gpu.workload.allocated.time" {
					continue
				}
				for dp := range series.Points(m) {
					if dp.Flags().NoRecordedValue() {
						continue
					}
					key := fmt.Sprint(m.Name(), dp.Attributes().AsRaw())
					v := dp.(pmetric.NumberDataPoint).DoubleValue()
					kind, _ := dp.Attributes().Get(workload.KeyKind)
					if kind.Str() == workload.Other {
						others++
					}
					if was := last[key]; v >= was {
						accrued[m.Name()] += v - was
					} else if i == 30 { // a new start time
						accrued[m.Name()] += v
					} else {
						t.Fatalf("seed %d, tick %d: %s fell from %v to %v", seed, i, key, was, v)
					}
					last[key] = v
				}
			}
		}
		if others == 0 {
			t.Error("nothing was folded")
		}
		if got := accrued["gpu.workload.energy"]; math.Abs(got-(c.joules-unseen)) > 1e-6 {
			t.Errorf("seed %d: %v J are counted, want %v", seed, got, c.joules-unseen)
		}
		if got := accrued["gpu.workload.allocated.time"]; math.Abs(got-(c.seconds-unseen)) > 1e-6 {
			t.Errorf("seed %d: %v s are counted, want %v", seed, got, c.seconds-unseen)
		}
	}
}

// Catches 67 of 2,560 joules cut with the default limit.
func TestFoldOfManyWorkloads(t *testing.T) {
	c := newCrowd(1, 16, 160)
	e := newEmitter(createDefaultConfig().(*Config))
	md := e.Emit(c.tick(start, false))
	sums := map[string]float64{}
	for m := range series.Metrics(md) {
		for dp := range series.Points(m) {
			if n, ok := dp.(pmetric.NumberDataPoint); ok {
				sums[m.Name()] += n.DoubleValue()
			}
		}
	}
	for name, want := range map[string]float64{
		"gpu.workload.energy": 2560, "gpu.workload.allocated.time": 2560, "gpu.workload.active.time": 2560, "gpu.workload.idle.time": 0,
		"gpu.allocation": 25.6, "gpu.workload.utilization": 25.6, "gpu.workload.memory.used": 2560, "gpu.workload.power.draw": 2560, "gpu.up": 16,
	} {
		if math.Abs(sums[name]-want) > 1e-6 {
			t.Errorf("%s adds up to %v, want %v", name, sums[name], want)
		}
	}
	if n := md.DataPointCount(); n > 20_000 {
		t.Errorf("%d points", n)
	}
}
