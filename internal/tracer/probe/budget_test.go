package probe

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Catches a tracer that slows down a program that launches all the time, one that spares others, and a launch
// that is not counted because its duration is not measured.
func TestBudget(t *testing.T) {
	t.Parallel()
	const launches = 20_000
	type result struct {
		Launches, Kernels, Durations uint64
		Spared                       bool
	}
	for name, c := range map[string]struct {
		o    Options
		what string
		n    uint64
		want bool // launches are spared
	}{
		"fast":            {Options{Mode: ModeSession, Budget: 1e-5}, "loop", launches, true}, // on the busiest machine
		"without a limit": {Options{Mode: ModeSession, Budget: -1}, "loop", launches, false},
		"slow":            {Options{Mode: ModeSession}, "paced", 3000, false},
		"strict":          {Options{Mode: ModeSession, Budget: 1e-5}, "paced", 3000, true},
		"multi":           {Options{Mode: ModeMulti}, "loop", launches, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, c.o, 580)
			p := m.run(c.what, strconv.FormatUint(c.n, 10))
			got := result{Launches: calls(p)["cuLaunchKernel @0"], Spared: m.losses().Spared > 0}
			for _, k := range p.Kernels {
				got.Kernels += k.Count
			}
			for _, op := range p.Ops {
				if op.Op == "cuLaunchKernel" {
					for _, n := range op.Time.Buckets {
						got.Durations += n
					}
					if op.Time.Sum <= 0 || op.Time.Sum/float64(op.Time.Count) > 1 {
						t.Errorf("launches took %v s", op.Time.Sum)
					}
				}
			}
			if diff := cmp.Diff(result{c.n, c.n, c.n, c.want}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Catches a tracer that slows down a program that synchronizes all the time with nothing to wait for, one that does not count
// such a call, and a wait that is missed because it was taken for one of them.
func TestIdleSynchronizations(t *testing.T) {
	t.Parallel()
	for mode, spared := range map[string]bool{ModeSession: true, ModeMulti: false} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const each, waits = 500, 6
			began := time.Now()
			m := newMachine(t, Options{Mode: mode, Budget: 1e-5}, 580)
			p := m.run("polls", strconv.Itoa(each))
			if got := calls(p)["cuStreamSynchronize @0"]; got != (waits+1)*each+waits {
				t.Errorf("%d synchronizations, want %d", got, (waits+1)*each+waits)
			}
			within(t, "wait", p.Devices[0].Wait, waits*20*time.Millisecond, time.Since(began))
			for _, op := range p.Ops {
				if op.Op == "cuStreamSynchronize" {
					within(t, "time of synchronizations", time.Duration(op.Time.Sum*1e9), p.Devices[0].Wait, time.Since(began))
				}
			}
			if n := m.losses().Spared; (n > each) != spared {
				t.Errorf("%d calls are spared", n)
			}
			m.lossless()
		})
	}
}

// Catches a recording with gaps.
func TestRecordedAreNotSpared(t *testing.T) {
	t.Parallel()
	m := newMachine(t, Options{Mode: ModeSession, Budget: 1e-5, RingBytes: 16 << 20}, 580)
	r := m.start("gated", "5000")
	r.reaches("ready")
	check(t, m.p.Record(r.pid, true))
	r.goOn()
	r.ends()
	if n := len(m.p.Events(10_000)); n < 5000 || m.losses().Spared > 0 {
		t.Errorf("%d of 5000 launches are recorded, %d spared", n, m.losses().Spared)
	}
}
