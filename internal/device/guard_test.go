package device

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Catches a counter that steps back once and is taken for a reset, a reset that is never
// noticed, and readings that were dropped without being counted.
func TestGuardEnergy(t *testing.T) {
	type want struct {
		believed Value
		verdict  Verdict
	}
	reset, jumped := Verdict{Reset: true}, Verdict{Jumped: true}
	is := func(v float64) want { return want{believed: Of(v)} }
	start := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	type step struct {
		after  time.Duration
		slow   bool
		joules float64
		want
	}
	const s, m = time.Second, time.Minute
	f := func(name string, rejected uint64, steps ...step) {
		t.Helper()
		var g Guard
		now := start
		for i, x := range steps {
			now = now.Add(x.after)
			got, verdict := g.Believe(Sample{Energy: Of(x.joules)}, x.slow, now)
			if diff := cmp.Diff(x.want, want{got.Energy, verdict}, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("%s, step %d (-want +got):\n%s", name, i, diff)
			}
		}
		if g.Rejected != rejected {
			t.Errorf("%s: %d readings were rejected, want %d", name, g.Rejected, rejected)
		}
	}
	f("a step back of 1 mJ", 1,
		step{0, true, 500e6, is(500e6)}, step{30 * s, true, 500e6 - 0.001, want{}}, step{10 * s, false, 500e6 - 0.001, want{}}, step{20 * s, true, 500e6 + 9000, is(500e6 + 9000)})
	f("a single 0", 1,
		step{0, true, 500e6, is(500e6)}, step{30 * s, true, 0, want{}}, step{30 * s, true, 500e6 + 18000, is(500e6 + 18000)})
	f("zeros", 1,
		step{0, true, 500e6, is(500e6)}, step{30 * s, true, 0, want{}}, step{30 * s, true, 0, want{}}, step{30 * s, true, 500e6 + 27000, is(500e6 + 27000)})
	f("a reloaded driver", 1,
		step{0, true, 500e6, is(500e6)}, step{30 * s, true, 4000, want{}}, step{10 * s, false, 4000, want{}}, step{20 * s, true, 22000, want{Of(22000), reset}}, step{30 * s, true, 40000, is(40000)})
	f("a reloaded driver after hours", 1,
		step{0, true, 500e6, is(500e6)}, step{5 * time.Hour, true, 9e6, want{}}, step{30 * s, true, 9.02e6, want{Of(9.02e6), reset}})
	f("two resets", 2,
		step{0, true, 500e6, is(500e6)}, step{30 * s, true, 4000, want{}}, step{30 * s, true, 22000, want{Of(22000), reset}},
		step{30 * s, true, 100, want{}}, step{30 * s, true, 200, want{Of(200), reset}})
	f("a spike", 1,
		step{0, true, 500e6, is(500e6)}, step{30 * s, true, 1.8e16, want{}}, step{30 * s, true, 500e6 + 18000, is(500e6 + 18000)})
	f("a fall that is no reset", 3,
		step{0, true, 500e6, is(500e6)}, step{30 * s, true, 400e6, want{}}, step{30 * s, true, 400e6 + 1000, want{}}, step{30 * m, true, 400e6 + 60000, want{}},
		step{30 * m, true, 400e6 + 90000, want{Of(400e6 + 90000), jumped}}, step{30 * s, true, 400e6 + 91000, is(400e6 + 91000)})
	f("a counter that stands still between slow reads", 0,
		step{0, true, 1e6, is(1e6)}, step{s, false, 1e6, is(1e6)}, step{299 * s, true, 1e6 + 300e3, is(1e6 + 300e3)})
	f("a first 0", 2, step{0, true, 0, is(0)}, step{30 * s, true, 500e6, want{}}, step{30 * s, true, 500e6 + 10, want{}}, step{time.Hour, true, 500e6 + 20, want{Of(500e6 + 20), jumped}})
	f("a clock set back", 0, step{0, true, 1e6, is(1e6)}, step{-time.Hour, true, 1.1e6, is(1.1e6)})
}

// Catches a restart of the agent after which a single 0 is believed.
func TestGuardRestored(t *testing.T) {
	now := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	var before, after Guard
	before.Believe(Sample{Energy: Of(500e6), Heartbeat: Of(9), PCIe: PCIe{Replays: Of(3)}}, true, now)
	before.Believe(Sample{Energy: Of(0)}, true, now.Add(time.Second))
	after.Restore(before.Marks(), now)
	got, verdict := after.Believe(Sample{Energy: Of(0), Heartbeat: Of(1), PCIe: PCIe{Replays: Of(0)}}, true, now.Add(time.Minute))
	if diff := cmp.Diff(Sample{}, got); diff != "" || verdict != (Verdict{}) {
		t.Errorf("believed %+v (-want +got):\n%s", verdict, diff)
	}
}

// every returns a Sample with each counter, all at n.
func every(n float64) Sample {
	v := Of(n)
	count := func(kind string) []ErrorCount { return []ErrorCount{{kind, v}} }
	return Sample{
		Energy: v, Heartbeat: v, Resets: count("hard"),
		PCIe:          PCIe{Replays: v, Errors: count("fatal")},
		ThrottleTimes: []ThrottleTime{{Cause: "power", Seconds: v}},
		Interconnects: []Interconnect{{Type: "nvlink", TX: v, RX: v, Errors: count("replay"), Links: []Link{
			{Index: 0, TX: v, RX: v, Errors: count("crc")}, {Index: 1, TX: v, RX: v, Errors: count("crc")},
		}}},
		ECC:            []ECC{{Type: "corrected", Lifetime: "volatile", Count: v}, {Type: "corrected", Lifetime: "aggregate", Count: v}, {Type: "corrected", Lifetime: "volatile", Location: "dram", Count: v}},
		RowRemap:       RowRemap{Corrected: v, Uncorrected: v},
		PageRetirement: PageRetirement{Corrected: v, Uncorrected: v},
	}
}

// Catches a counter that the guard leaves out, one that is mixed up with another, and a
// Sample whose slices the guard modifies although others hold them.
func TestGuardEveryCounter(t *testing.T) {
	now := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	var g Guard
	got, _ := g.Believe(every(500), true, now)
	if diff := cmp.Diff(every(500), got); diff != "" {
		t.Errorf("a first reading (-want +got):\n%s", diff)
	}
	fallen := every(3)
	got, verdict := g.Believe(fallen, true, now.Add(time.Second))
	n := 0
	got.counters(func(k counterKey, v *Value) {
		if n++; v.OK() {
			t.Errorf("%+v fell and was believed", k)
		}
	})
	if g.Rejected != uint64(n) || verdict != (Verdict{}) {
		t.Errorf("%d of %d readings were rejected: %+v", g.Rejected, n, verdict)
	}
	if diff := cmp.Diff(every(3), fallen); diff != "" {
		t.Errorf("the reader's sample was modified (-want +got):\n%s", diff)
	}
	got, _ = g.Believe(every(4), false, now.Add(2*time.Second))
	if got.PCIe.Replays.OK() {
		t.Error("a fast read confirmed a reset")
	}
	got, verdict = g.Believe(every(5), true, now.Add(3*time.Second))
	if diff := cmp.Diff(every(5), got); diff != "" || verdict != (Verdict{Reset: true}) {
		t.Errorf("after a reset: %+v (-want +got):\n%s", verdict, diff)
	}
}

// Catches cleared error counts that are taken for a reset of the device, which would close
// its findings.
func TestGuardClearedErrors(t *testing.T) {
	now := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	var g Guard
	errors := func(n float64) Sample {
		return Sample{ECC: []ECC{{Type: "corrected", Lifetime: "volatile", Count: Of(n)}}}
	}
	for i, n := range []float64{5, 0, 0} {
		got, verdict := g.Believe(errors(n), true, now.Add(time.Duration(i)*time.Minute))
		if verdict != (Verdict{}) || got.ECC[0].Count.OK() != (i != 1) {
			t.Errorf("step %d: %+v %+v", i, got.ECC, verdict)
		}
	}
}

// Whatever a driver misreads once, what the guard lets through adds up to what the device
// used: readings of 0, steps back and spikes, and real resets.
func TestGuardAddsUp(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		now := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
		var g Guard
		counter := 1e6 * r.Float64()
		g.Believe(Sample{Energy: Of(counter)}, true, now)
		counted, used, last, resets := 0.0, 0.0, counter, 0
		see := func(v float64, slow bool) {
			s, verdict := g.Believe(Sample{Energy: Of(v)}, slow, now)
			switch e, ok := s.Energy.Get(); {
			case verdict.Jumped:
				t.Fatalf("seed %d: jumped to %v", seed, v)
			case ok && verdict.Reset:
				counted, last, resets = counted+e, e, resets+1
			case ok:
				counted, last = counted+e-last, e
			}
		}
		want := 0
		for range 50 {
			now = now.Add(30 * time.Second)
			joules := 1 + 20e3*r.Float64()
			counter, used = counter+joules, used+joules
			shown := counter
			switch n := r.IntN(8); {
			case n == 0:
				shown = 0
			case n == 1:
				shown = last - 0.001
			case n == 2:
				shown = 1e15
			case n == 3 && counter > 100e3: // a reset right after a believed reading
				see(counter, true)
				counter, want = 0, want+1
				for range 3 {
					now = now.Add(30 * time.Second)
					joules := 1 + 20e3*r.Float64()
					counter, used = counter+joules, used+joules
					see(counter, true)
				}
				shown = counter
			}
			see(shown, true)
			now = now.Add(10 * time.Second)
			see(shown, false) // a fast read repeats the value
			now = now.Add(20 * time.Second)
			see(counter, true)
		}
		now = now.Add(30 * time.Second)
		see(counter, true)
		if math.Abs(counted-used) > 1e-6 || resets != want {
			t.Fatalf("seed %d: %v J and %d resets, want %v J and %d", seed, counted, resets, used, want)
		}
	}
}
