package node

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// near reports whether two sums are equal up to floating-point rounding.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

func pod(name string) workload.Workload {
	return workload.Workload{ID: "pod/" + name + "/main", Kind: "deployment", Name: name}
}

// world is a machine with one physical device whose owners and load change at random.
type world struct {
	r          *rand.Rand
	partitions []device.Slice
	energy     float64 // what the device used
	shown      float64 // what its counter shows
	counter    bool    // the device has a counter
}

// cut returns the device as it is now, with processes of some workloads.
func (w *world) cut(pods []workload.Workload) (cut, owners) {
	o := owners{processes: map[uint32]workload.Workload{}}
	units := []*Reading{{Sample: device.Sample{ID: device.ID{UUID: "GPU-0"}}, Up: true}}
	dev := units[0]
	for i, s := range w.partitions {
		units = append(units, &Reading{Sample: device.Sample{ID: device.ID{UUID: fmt.Sprintf("MIG-%d", i), Parent: "GPU-0"}, Slice: s}, Up: true})
	}
	if w.r.IntN(10) > 0 {
		dev.Powers = []device.Power{{Scope: "gpu", Instant: device.Of(50 + 600*w.r.Float64())}}
	}
	if len(w.partitions) == 0 && w.r.IntN(10) > 0 {
		dev.Utilization.Compute = device.Of(w.r.Float64())
	}
	if w.counter {
		dev.Energy = device.Of(w.shown)
	}
	pid := uint32(1)
	for _, u := range units[min(1, len(w.partitions)):] {
		u.Memory.Used = device.Of(1 << 30)
		if u != dev {
			switch active := device.Of(float64(w.r.IntN(3)) / 2); w.r.IntN(4) {
			case 0:
			case 1:
				u.Utilization.Compute = active
			default:
				u.Profile.SMActive = active
			}
		}
		measured, occupied := w.r.IntN(2) == 0, w.r.IntN(2) == 0
		for range w.r.IntN(4) {
			p := device.Process{PID: pid, MemoryUsed: device.Of(1 << 20)}
			if measured {
				p.Utilization = device.Of(float64(w.r.IntN(3)) / 4)
			}
			if occupied {
				p.Occupancy = device.Of(float64(w.r.IntN(3)) / 4)
			}
			u.Processes = append(u.Processes, p)
			if w.r.IntN(4) > 0 {
				owner := pods[w.r.IntN(len(pods))]
				o.processes[pid] = owner
				o.holdings = append(o.holdings, workload.Holding{Workload: owner, Device: u.ID.UUID, Evidence: workload.ByProcess})
			}
			pid++
		}
		for range w.r.IntN(4) {
			part := []float64{1, 0.25, 0.5}[w.r.IntN(3)]
			o.holdings = append(o.holdings, workload.Holding{Workload: pods[w.r.IntN(len(pods))], Device: u.ID.UUID, Part: part, Evidence: workload.ByDevice})
		}
	}
	if len(w.partitions) > 0 && w.r.IntN(8) == 0 {
		o.holdings = append(o.holdings, workload.Holding{Workload: pods[0], Device: "GPU-0", Part: 1, Evidence: workload.ByDevice})
	}
	return cut{units[0], units[1:]}, o
}

// silent returns c as it is while the device and its partitions do not answer.
func (c cut) silent() cut {
	blank := func(r *Reading) *Reading {
		return &Reading{Sample: device.Sample{ID: r.ID, Slice: r.Slice}, Problem: "no answer"}
	}
	out := cut{device: blank(c.device)}
	for _, p := range c.partitions {
		out.partitions = append(out.partitions, blank(p))
	}
	return out
}

// Whatever is allocated, whatever runs, however owners change, whether or not the device
// answers, and however the clock jumps: workloads and the rest add up to the whole device.
// Otherwise a workload would pay for another's use, or nobody would.
func TestSharesAddUp(t *testing.T) {
	pods := []workload.Workload{pod("a"), pod("b"), pod("c"), pod("d")}
	for seed := range uint64(300) {
		w := &world{r: rand.New(rand.NewPCG(seed, 1)), counter: seed%4 != 0}
		if seed%2 == 0 {
			for range 1 + w.r.IntN(4) {
				w.partitions = append(w.partitions, device.Slice{Held: w.r.IntN(3), Of: 7})
			}
		}
		now := time.Now()
		elapsed, firstEnergy, read := 0.0, 0.0, 0.0
		var l ledger
		var before owners
		last := map[string]Holder{}
		power := 0.0
		for tick := range 50 {
			c, after := w.cut(pods)
			if tick > 0 {
				seconds := float64(1 + w.r.IntN(10))
				elapsed += seconds
				now = now.Add(time.Duration(seconds * float64(time.Second)))
				if w.r.IntN(10) == 0 {
					now = stepped(now, time.Duration(w.r.IntN(7200)-3600)*time.Second)
				}
				if w.r.IntN(6) == 0 {
					c = c.silent()
				}
				w.energy += 100 * seconds * w.r.Float64()
				if w.r.IntN(3) == 0 {
					w.shown = w.energy
				}
				if p, ok := c.power().Get(); ok {
					power += p * seconds
				}
			} else {
				w.energy = 1e6
				w.shown, firstEnergy = w.energy, w.energy
			}
			if w.counter && c.device.Up {
				c.device.Energy = device.Of(w.shown)
				read = w.shown
			}
			l.advance(now, c, before, after, tick%3 == 0)
			before = after
			holders := l.holders(c)

			var sums Holder
			energy, active := 0.0, 0.0
			var utilization, watts device.Value
			for _, h := range holders {
				for what, v := range map[string]float64{"allocation": h.Allocation, "share": h.Share, "allocated": h.Allocated} {
					if v < 0 || math.IsNaN(v) {
						t.Fatalf("seed %d tick %d: %s of %s is %v", seed, tick, what, h.ID, v)
					}
				}
				key := h.Partition + h.ID
				if was, ok := last[key]; ok && was.Since.Equal(h.Since) && (get(h.Energy) < get(was.Energy) || h.Allocated < was.Allocated || get(h.Active) < get(was.Active)) {
					t.Fatalf("seed %d tick %d: a sum of %s fell: %s", seed, tick, h.ID, cmp.Diff(was, h))
				}
				last[key] = h
				if get(h.Active) > h.Allocated*(1+1e-9) {
					t.Fatalf("seed %d tick %d: %s was active for %v of %v s", seed, tick, h.ID, h.Active, h.Allocated)
				}
				sums.Allocation += h.Allocation
				sums.Share += h.Share
				sums.Allocated += h.Allocated
				energy += get(h.Energy)
				active += get(h.Active)
				utilization, watts = add(utilization, h.Utilization), add(watts, h.Power)
			}
			if !near(sums.Allocation, 1) || !near(sums.Share, 1) {
				t.Fatalf("seed %d tick %d: allocations add up to %v, shares to %v\n%+v", seed, tick, sums.Allocation, sums.Share, l.shares)
			}
			if !near(sums.Allocated, elapsed) {
				t.Fatalf("seed %d tick %d: %v s are allocated, %v passed", seed, tick, sums.Allocated, elapsed)
			}
			if want := read - firstEnergy; w.counter && !near(energy, want) {
				t.Fatalf("seed %d tick %d: %v J are booked, the counter moved by %v", seed, tick, energy, want)
			}
			if !w.counter && !near(energy, power) {
				t.Fatalf("seed %d tick %d: %v J are booked, the power was %v J", seed, tick, energy, power)
			}
			if p, ok := c.power().Get(); ok && !near(get(watts), p) {
				t.Fatalf("seed %d tick %d: workloads draw %v of %v W", seed, tick, watts, p)
			}
			if u, ok := c.utilization().Get(); ok && !near(get(utilization), u) {
				t.Fatalf("seed %d tick %d: workloads use %v of %v", seed, tick, utilization, u)
			}
		}
	}
}

func get(v device.Value) float64 {
	f, _ := v.Get()
	return f
}

// shareOf returns the shares of shares by workload.
func shareOf(list []share) map[string]float64 {
	all := map[string]float64{}
	for _, s := range list {
		all[s.ID] = math.Round(s.share*1000) / 1000
	}
	return all
}

// A hidden process on a device that is allocated to one pod belongs to that pod: without
// the host's PID namespace nobody would have any use.
func TestHiddenProcess(t *testing.T) {
	r := &Reading{Sample: device.Sample{
		ID: device.ID{UUID: "A"}, Utilization: device.Engines{Compute: device.Of(1)}, Memory: device.Memory{Used: device.Of(5)},
		Processes: []device.Process{{PID: 7, Utilization: device.Of(0.9), MemoryUsed: device.Of(5)}},
	}, Up: true}
	c := cut{device: r}
	a := workload.Holding{Workload: pod("a"), Device: "A", Part: 1, Evidence: workload.ByDevice}
	if diff := cmp.Diff(map[string]float64{pod("a").ID: 1}, shareOf(c.shares(owners{holdings: []workload.Holding{a}}))); diff != "" {
		t.Errorf("one pod (-want +got):\n%s", diff)
	}
	b := a
	b.Workload, a.Part, b.Part = pod("b"), 0.5, 0.5
	want := map[string]float64{pod("a").ID: 0, pod("b").ID: 0, workload.Unattributed: 1}
	if diff := cmp.Diff(want, shareOf(c.shares(owners{holdings: []workload.Holding{a, b}}))); diff != "" {
		t.Errorf("two pods (-want +got):\n%s", diff)
	}
}

// Next to a partition with activity counters, a partition without a reading yet counts as
// idle, and a busy partition without a visible user is used by an unknown workload. Its
// neighbor is charged for neither.
func TestPartitionsBeside(t *testing.T) {
	part := func(uuid string, held int, active device.Value) *Reading {
		return &Reading{Sample: device.Sample{ID: device.ID{UUID: uuid, Parent: "A"}, Slice: device.Slice{Held: held, Of: 7}, Profile: device.Profile{SMActive: active}}, Up: true}
	}
	gpu := &Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}}, Up: true}
	hold := func(name, uuid string) workload.Holding {
		return workload.Holding{Workload: pod(name), Device: uuid, Part: 1, Evidence: workload.ByPartition}
	}
	f := func(b device.Value, holdings []workload.Holding, want map[string]float64) {
		t.Helper()
		c := cut{gpu, []*Reading{part("MA", 3, device.Of(0.04)), part("MB", 4, b)}}
		if diff := cmp.Diff(want, shareOf(c.shares(owners{holdings: holdings}))); diff != "" {
			t.Errorf("shares (-want +got):\n%s", diff)
		}
	}
	f(device.Value{}, []workload.Holding{hold("a", "MA"), hold("b", "MB")}, map[string]float64{pod("a").ID: 1, pod("b").ID: 0})
	f(device.Of(0.97), []workload.Holding{hold("a", "MA")}, map[string]float64{pod("a").ID: 0.03, workload.Unattributed: 0.97, workload.Unallocated: 0})
}

// A driver that reports compute units per process, but not time, divides the device as
// well. The two are never added.
func TestOccupancy(t *testing.T) {
	a, b := pod("a"), pod("b")
	o := owners{
		holdings:  []workload.Holding{{Workload: a, Device: "A", Evidence: workload.ByProcess}, {Workload: b, Device: "A", Evidence: workload.ByProcess}},
		processes: map[uint32]workload.Workload{1: a, 2: b, 3: b},
	}
	f := func(want map[string]float64, basis Basis, list ...device.Process) {
		t.Helper()
		for i := range list {
			list[i].PID = uint32(i + 1)
		}
		c := cut{device: &Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}, Processes: list}, Up: true}}
		shares := c.shares(o)
		if diff := cmp.Diff(want, shareOf(shares)); diff != "" {
			t.Errorf("shares (-want +got):\n%s", diff)
		}
		for _, s := range shares {
			if s.basis != basis {
				t.Errorf("%s has basis %s, want %s", s.ID, s.basis, basis)
			}
		}
	}
	of := device.Of
	f(map[string]float64{a.ID: 0.25, b.ID: 0.75}, ByProcess, device.Process{Occupancy: of(0.2)}, device.Process{Occupancy: of(0.4)}, device.Process{Occupancy: of(0.2)})
	f(map[string]float64{a.ID: 0.9, b.ID: 0.1}, ByProcess, device.Process{Occupancy: of(0), Utilization: of(0.9)}, device.Process{Occupancy: of(1), Utilization: of(0.1)})
	// A process without a value, because it has just started, was not idle.
	f(map[string]float64{a.ID: 0.5, b.ID: 0.5}, ByGrant, device.Process{Utilization: of(0.1)}, device.Process{Occupancy: of(1)})
	f(map[string]float64{a.ID: 0.5, b.ID: 0.5}, ByGrant, device.Process{Occupancy: of(0.1)}, device.Process{})
	f(map[string]float64{a.ID: 0.25, b.ID: 0.75}, ByProcess, device.Process{Utilization: of(0.1)}, device.Process{Utilization: of(0.3)}, device.Process{})
	f(map[string]float64{a.ID: 0.5, b.ID: 0.5}, ByGrant, device.Process{}, device.Process{})
}

// Catches a slice whose share says that it is one of several equal ones, and the rest of the device that is given to its holder. What
// processes do is known better than what they may do.
func TestLimited(t *testing.T) {
	a, b := pod("a"), pod("b")
	o := owners{
		holdings: []workload.Holding{
			{Workload: a, Device: "A", Part: 0.3, Evidence: workload.ByDevice, Limited: true}, {Workload: b, Device: "A", Part: 0.1, Evidence: workload.ByDevice},
		},
		processes: map[uint32]workload.Workload{1: a, 2: b},
	}
	f := func(want map[string]Basis, use device.Value) {
		t.Helper()
		list := []device.Process{{PID: 1, Utilization: use}, {PID: 2, Utilization: use}}
		c := cut{device: &Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}, Processes: list}, Up: true}}
		got, parts := map[string]Basis{}, map[string]float64{}
		for _, s := range c.shares(o) {
			got[s.ID], parts[s.ID] = s.basis, s.alloc
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("bases (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]float64{a.ID: 0.3, b.ID: 0.1, workload.Unallocated: 0.6}, parts); diff != "" {
			t.Errorf("parts (-want +got):\n%s", diff)
		}
	}
	f(map[string]Basis{a.ID: ByLimit, b.ID: ByGrant, workload.Unallocated: ByGrant}, device.Value{})
	f(map[string]Basis{a.ID: ByProcess, b.ID: ByProcess, workload.Unallocated: ByGrant}, device.Of(0.2))
}

// The activity of a partition is what the hardware counters report, and the driver's
// utilization only without them. The compute units of a small partition are fewer than
// those of a large one.
func TestPartitionActivity(t *testing.T) {
	of := device.Of
	part := func(uuid string, held int, s device.Sample) *Reading {
		s.ID, s.Slice = device.ID{UUID: uuid, Parent: "A"}, device.Slice{Held: held, Of: 4}
		return &Reading{Sample: s, Up: true}
	}
	busy := func(v float64) device.Sample { return device.Sample{Utilization: device.Engines{Compute: of(v)}} }
	f := func(x, y device.Sample, want map[string]float64, utilization device.Value) {
		t.Helper()
		c := cut{&Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}}, Up: true}, []*Reading{part("X", 3, x), part("Y", 1, y)}}
		o := owners{holdings: []workload.Holding{
			{Workload: pod("x"), Device: "X", Part: 1, Evidence: workload.ByPartition},
			{Workload: pod("y"), Device: "Y", Part: 1, Evidence: workload.ByPartition},
		}}
		if diff := cmp.Diff(want, shareOf(c.shares(o))); diff != "" {
			t.Errorf("shares (-want +got):\n%s", diff)
		}
		if got := c.utilization(); got != utilization {
			t.Errorf("utilization %v, want %v", got, utilization)
		}
	}
	f(busy(0.2), busy(0.4), map[string]float64{pod("x").ID: 0.6, pod("y").ID: 0.4}, of(0.2*0.75+0.4*0.25))
	counted := busy(1)
	counted.Profile.EngineActive = of(0.2)
	f(counted, busy(0.4), map[string]float64{pod("x").ID: 0.6, pod("y").ID: 0.4}, of(0.2*0.75+0.4*0.25))
	counted.Profile.EngineActive, counted.Profile.SMActive = of(1), of(0.2)
	f(counted, busy(0.4), map[string]float64{pod("x").ID: 0.6, pod("y").ID: 0.4}, of(0.2*0.75+0.4*0.25))
	half := device.Sample{Processes: []device.Process{{PID: 1, Occupancy: of(0.5)}}}
	f(half, half, map[string]float64{pod("x").ID: 0.75, pod("y").ID: 0.25}, device.Value{})
}

// If the driver reports no utilization for a partitioned device, it is the mean of the
// partitions, weighted by size. A partition without a reading makes it unknown, not lower.
func TestBusy(t *testing.T) {
	of := device.Of
	part := func(held int, active device.Value) *Reading {
		return &Reading{Sample: device.Sample{ID: device.ID{Parent: "A"}, Slice: device.Slice{Held: held, Of: 8}, Profile: device.Profile{SMActive: active}}, Up: true}
	}
	for _, c := range []struct {
		name  string
		up    bool
		own   device.Value
		parts []*Reading
		want  device.Value
	}{
		{"whole", true, of(0.25), nil, of(0.25)},
		{"whole, without a reading", true, device.Value{}, nil, device.Value{}},
		{"MIG, half of it in use", true, device.Value{}, []*Reading{part(2, of(1)), part(2, of(0.5))}, of(0.375)},
		{"XCP, the driver reports it", true, of(0.25), []*Reading{part(4, of(1)), part(4, of(1))}, of(0.25)},
		{"one instance without a reading", true, device.Value{}, []*Reading{part(4, of(1)), part(4, device.Value{})}, device.Value{}},
		{"the device does not answer", false, device.Value{}, []*Reading{part(8, of(1))}, device.Value{}},
	} {
		d := &Reading{Sample: device.Sample{Utilization: device.Engines{Compute: c.own}}, Up: c.up}
		if got := (cut{d, c.parts}).busy(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A driver that lists a process on the device and on one of its partitions does not put the
// workload on the other partitions, which would be charged for it. Without the second entry
// the process may be on any.
func TestProcessOnDeviceAndPartition(t *testing.T) {
	process := func(name, uuid string) workload.Holding {
		return workload.Holding{Workload: pod(name), Device: uuid, Evidence: workload.ByProcess}
	}
	f := func(holdings []workload.Holding, want map[string]float64) {
		t.Helper()
		var parts []*Reading
		for _, uuid := range []string{"X", "Y"} {
			parts = append(parts, &Reading{Sample: device.Sample{
				ID: device.ID{UUID: uuid, Parent: "A"}, Slice: device.Slice{Held: 1, Of: 2}, Utilization: device.Engines{Compute: device.Of(0.5)},
			}, Up: true})
		}
		got := map[string]float64{}
		for _, s := range (cut{&Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}}, Up: true}, parts}).shares(owners{holdings: holdings}) {
			got[s.Name+" on "+s.unit] = s.alloc
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("allocations (-want +got):\n%s", diff)
		}
	}
	both := []workload.Holding{process("x", "A"), process("y", "A")}
	f(append(both, process("x", "X"), process("y", "Y")), map[string]float64{"x on X": 0.5, "y on Y": 0.5})
	f(both, map[string]float64{"x on X": 0.25, "x on Y": 0.25, "y on X": 0.25, "y on Y": 0.25})
	granted := workload.Holding{Workload: pod("x"), Device: "A", Part: 1, Evidence: workload.ByDevice}
	f([]workload.Holding{granted, process("x", "X")}, map[string]float64{"x on X": 0.5, "x on Y": 0.5})
}

// slice is a source with one grant that has a limit.
type slice struct{ workload.Grant }

func (s slice) Grants() []workload.Grant               { return []workload.Grant{s.Grant} }
func (slice) Process(uint32) (workload.Workload, bool) { return workload.Workload{}, false }
func (slice) Statuses() []workload.Status              { return nil }

// Catches a slice that becomes a replica while its device does not answer, because a size that was not read is taken for none.
func TestLimitWhileDown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.cfg.Owners = &workload.Resolver{Sources: []workload.Source{slice{workload.Grant{
			Workload: pod("a"), Device: workload.Ref{Resource: "nvidia.com/gpu", IDs: []string{"A"}}, Held: 1, Replicas: 10, Limit: workload.Limit{Memory: 20 << 30},
		}}}}
		r.m.devices[0].set(func(g *gpu) { g.s.Memory.Total = device.Of(80 << 30) })
		part := func() float64 {
			for _, h := range r.tick(t).Readings[0].Holders {
				if h.Kind != workload.Unallocated {
					return h.Allocation
				}
			}
			return 0
		}
		if got := part(); got != 0.25 {
			t.Errorf("a quarter of a device is %g", got)
		}
		r.m.devices[0].set(func(g *gpu) { g.err = device.ErrLost })
		for range 3 {
			if got := part(); got != 0.25 {
				t.Errorf("a quarter of a silent device is %g", got)
			}
		}
	})
}
