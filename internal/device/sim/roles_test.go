package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// watch reads GPU index once a second for a period, except while the GPU is lost.
func watch(t *testing.T, model string, index int, see func(up time.Duration, s *device.Sample)) {
	t.Helper()
	n, clock := newNode(t, Config{Model: model, Seed: 5, GPUs: 8})
	g := n.gpus[index]
	for clock.up = 0; clock.up < period*time.Second; clock.up += time.Second {
		if !g.lost(clock.up) {
			s := read(t, g)
			see(clock.up, &s)
		}
	}
}

// Catches a training job without its characteristics: ranks in phase at the power cap, with
// checkpoints.
func TestTraining(t *testing.T) {
	var ranks [3][]float64
	for rank := range ranks {
		var dips int
		watch(t, "h200", rank, func(up time.Duration, s *device.Sample) {
			busy := value(s.Utilization.Compute)
			ranks[rank] = append(ranks[rank], busy)
			if busy < 0.1 {
				dips++
				return
			}
			capped := value(s.Throttled(device.BucketPower)) == 1
			power := value(s.Powers[0].Draw().Ratio(s.Powers[0].Enforced()))
			if busy < 0.92 || busy > 0.99 || !capped || power < 0.95 || value(s.Profile.Pipes[0].Active) < 0.5 {
				t.Fatalf("rank %d at %v: busy %v, capped %v, power %v", rank, up, busy, capped, power)
			}
		})
		if dips != 60 {
			t.Errorf("rank %d: %d seconds of checkpoints in half an hour, want 60", rank, dips)
		}
	}
	for i := range ranks[0] {
		for _, other := range ranks[1:] {
			if d := other[i] - ranks[0][i]; d < -0.02 || d > 0.02 {
				t.Fatalf("ranks are out of phase at second %d: %v and %v", i, ranks[0][i], other[i])
			}
		}
	}
}

// Catches an inference server with a flat load, or a cache that never fills or is never
// dropped.
func TestInference(t *testing.T) {
	low, high := 1.0, 0.0
	var grew, dropped int
	var before float64
	watch(t, "h200", 3, func(_ time.Duration, s *device.Sample) {
		low, high = min(low, value(s.Utilization.Compute)), max(high, value(s.Utilization.Compute))
		switch used := value(s.Memory.Used); {
		case used > before:
			grew++
		case used < before:
			dropped++
		}
		before = value(s.Memory.Used)
	})
	if low > 0.2 || high < 0.6 || grew < 100 || dropped != 3 {
		t.Errorf("busy from %v to %v, memory grew %d times and dropped %d", low, high, grew, dropped)
	}
}

// uniform returns the models of one vendor.
func uniform() []string {
	return slices.DeleteFunc(Models(), func(m string) bool { return m == Mixed })
}

// Catches an idle GPU that does not look wasted: held memory, no work, little power.
func TestIdle(t *testing.T) {
	for _, model := range uniform() {
		watch(t, model, 4, func(up time.Duration, s *device.Sample) {
			var power float64
			for _, p := range s.Powers {
				power = max(power, value(p.Draw().Ratio(p.Enforced()).Or(p.Utilization)))
			}
			if value(s.Utilization.Compute) != 0 || value(s.UtilizationPeak.Compute) != 0 || len(s.Processes) != 1 || power > 0.27 {
				t.Fatalf("%s at %v: busy %v, power %v, processes %v", model, up, s.Utilization.Compute, power, s.Processes)
			}
		})
	}
}

// Catches a slowdown that no counter, clock or temperature confirms.
func TestOverheating(t *testing.T) {
	for _, model := range uniform() {
		if models[model].hot == 0 {
			continue // the model does not report throttling
		}
		var hot, cool, hottest float64
		var last device.Sample
		slowest := 1.0
		watch(t, model, 5, func(up time.Duration, s *device.Sample) {
			last = *s
			edge, clock := value(s.Temperatures[0].Value), value(s.Clocks[0].Frequency)/mhz/models[model].clocks[0].full
			slowed := value(s.Throttled(device.BucketThermal).Or(device.Flag(clock < 1))) == 1
			if slowed != (clock < 1) {
				t.Fatalf("%s at %v: slowed %v at %v of the clock", model, up, slowed, clock)
			}
			if slowed {
				hot++
				slowest, hottest = min(slowest, clock), max(hottest, edge)
			} else {
				cool++
			}
		})
		if hot < 300 || cool < 300 || slowest > 0.9 || hottest < 80 {
			t.Errorf("%s: %v s hot, %v s cool, clock down to %v, up to %v degrees", model, hot, cool, slowest, hottest)
		}
		for _, tt := range last.ThrottleTimes {
			mine := slices.Contains([]string{"thermal", "sw_thermal_slowdown", "socket_thermal"}, tt.Cause)
			if mine && (value(tt.Seconds) < hot-1 || value(tt.Seconds) > hot+1) {
				t.Errorf("%s: %v s counted, %v s seen", model, tt.Seconds, hot)
			}
		}
	}
}

// Catches temperatures that do not follow power.
func TestTemperatureFollowsPower(t *testing.T) {
	n, clock := newNode(t, Config{})
	clock.up = 4 * time.Minute
	busy, idle := read(t, n.gpus[0]), read(t, n.gpus[4])
	clock.up = 5 * time.Minute // the end of a checkpoint of ten seconds
	after := read(t, n.gpus[0])
	for sensor := range busy.Temperatures {
		hot, warm, cold := value(busy.Temperatures[sensor].Value), value(after.Temperatures[sensor].Value), value(idle.Temperatures[sensor].Value)
		if !(hot > warm && warm > cold) {
			t.Errorf("%s: %v busy, %v after a checkpoint, %v idle", busy.Temperatures[sensor].Sensor, hot, warm, cold)
		}
	}
}

// Catches a failing GPU whose errors do not grow, or that requests a reset too early.
func TestFailing(t *testing.T) {
	type state struct{ corrected, uncorrected, replays, pending, action, spare float64 }
	f := func(up time.Duration, want state) {
		t.Helper()
		n, clock := newNode(t, Config{})
		clock.up = up
		s := read(t, n.gpus[6])
		got := state{
			value(s.ECC[0].Count), value(s.ECC[2].Count), value(s.PCIe.Replays),
			value(s.RowRemap.Pending), value(s.RecoveryAction), value(s.RowRemap.Banks[0].Banks),
		}
		if got != want {
			t.Errorf("at %v: %+v, want %+v", up, got, want)
		}
	}
	f(0, state{spare: 3072})
	f(70*time.Second, state{corrected: 10, replays: 3, spare: 3072})
	f(3*time.Minute, state{corrected: 25, uncorrected: 1, replays: 7, pending: 1, action: 1, spare: 3071})
	f(7*time.Minute, state{corrected: 60, uncorrected: 1, replays: 18, pending: 1, action: 1, spare: 3071})
}

// Catches a parent that contradicts its partitions.
func TestPartitionsAddUp(t *testing.T) {
	n, clock := newNode(t, Config{})
	clock.up = 13 * time.Minute
	g := n.gpus[7]
	parent := read(t, g)
	var used, active, sevenths float64
	for _, p := range g.partitions {
		s := read(t, p)
		used += value(s.Memory.Used)
		active += value(s.Profile.SMActive) * float64(p.slice.compute) / 7
		sevenths += float64(p.slice.compute)
	}
	if value(parent.Modes.MIG) != 1 || parent.Processes != nil || sevenths != 7 {
		t.Errorf("MIG mode %v, processes %v, %v sevenths", parent.Modes.MIG, parent.Processes, sevenths)
	}
	if got := value(parent.Memory.Used); got != used {
		t.Errorf("the parent uses %v bytes, its partitions %v", got, used)
	}
	if d := value(parent.Profile.SMActive) - active; d < -1e-9 || d > 1e-9 {
		t.Errorf("the parent is %v active, its partitions %v", parent.Profile.SMActive, active)
	}
}

// Catches a Trainium device whose utilization is not the average of its cores, whatever its role.
func TestCoresAddUp(t *testing.T) {
	n, clock := newNode(t, Config{Model: "trn2"})
	for _, up := range []time.Duration{time.Second, 100 * time.Second, 1000 * time.Second} {
		clock.up = up
		for i, g := range n.gpus {
			sum := 0.0
			for _, p := range g.partitions {
				busy := value(read(t, p).Utilization.Compute)
				sum += busy / float64(len(g.partitions))
			}
			if got := value(read(t, g).Utilization.Compute); math.Abs(got-sum) > 1e-12 {
				t.Errorf("after %s device %d is busy for %v, its cores for %v", up, i, got, sum)
			}
		}
	}
}

// Catches partitions of an AMD GPU that do not add up to the GPU.
func TestComplexesAddUp(t *testing.T) {
	n, clock := newNode(t, Config{Model: "mi300x"})
	clock.up = 13 * time.Minute
	g := n.gpus[7]
	parent := read(t, g)
	var used, busy, slices float64
	for _, p := range g.partitions {
		s := read(t, p)
		used += value(s.Memory.Used)
		busy += value(s.Utilization.Compute) * s.Slice.Part()
		slices += s.Slice.Part()
	}
	if d := value(parent.Utilization.Compute) - busy; d < -0.02 || d > 0.02 || busy < 0.2 || slices != 1 {
		t.Errorf("the parent is busy for %v, its %v partitions for %v", parent.Utilization.Compute, slices, busy)
	}
	if own := value(parent.Memory.Used) - used; own < 0 || own > gib || parent.Processes != nil {
		t.Errorf("the parent uses %v bytes besides, processes %v", own, parent.Processes)
	}
}

// Catches cores whose counters do not follow their work, or that are all alike.
func TestCores(t *testing.T) {
	n, clock := newNode(t, Config{Model: "trn2", Seed: 4})
	g := n.gpus[7] // has several tenants
	before := g.partitions[0].sample(clock.up)
	clock.up = 10 * time.Minute
	after := read(t, g.partitions[0])
	rate := (value(after.Runtime.Operations) - value(before.Runtime.Operations)) / clock.up.Seconds()
	if rate < 5e12 || rate > 80e12 || value(after.Runtime.Executions[0].Count) < 100 {
		t.Errorf("%v operations a second, %v executions", rate, after.Runtime.Executions)
	}
	idle := read(t, g.partitions[3])
	if idle.Runtime.Operations != device.Of(0) || idle.Runtime.Executions[0].Count != device.Of(0) || value(idle.Memory.Used) == 0 {
		t.Errorf("an idle core: %+v", idle)
	}
	// A job on a whole device is on all of its cores.
	for _, p := range n.gpus[0].partitions {
		if s := read(t, p); value(s.Memory.Used) < 0.8*p.slice.memory || len(s.Processes) != 1 || s.Processes[0].PID != uint32(n.gpus[0].pid()) {
			t.Errorf("%s uses %v, by %v", p.id.UUID, s.Memory.Used, s.Processes)
		}
	}
}
