package watch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// calls returns the kernel's histogram of n calls that took d each.
func calls(n int, d time.Duration) tracer.Histogram {
	h := tracer.Histogram{Count: uint64(n), Sum: float64(n) * d.Seconds(), Offset: tracer.TimeOffset, Buckets: make([]uint64, tracer.TimeBuckets)}
	h.Buckets[tracer.TimeBucket(uint64(d))] = uint64(n)
	return h
}

type watched map[string]time.Duration

func (w watched) Watch(_ uint32, op string, over time.Duration) error {
	w[op] = over
	return nil
}

// Catches a threshold that is not a multiple of the baseline, one set before the baseline is known, and
// one rewritten at each reading, which would cost the kernel a write.
func TestThresholds(t *testing.T) {
	var o Outliers
	f := func(op tracer.Histogram, want watched) {
		t.Helper()
		got := watched{}
		o.Ask(&tracer.Snapshot{Processes: []tracer.Process{{PID: 1, Ops: []tracer.OpStat{{Op: "cuMemAlloc", Time: op}}}}}, got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	f(calls(999, 4*time.Microsecond), watched{})
	f(calls(1000, 4*time.Microsecond), watched{"cuMemAlloc": leastLong})
	f(calls(2000, 4*time.Microsecond), watched{})
	f(calls(2000, 100*time.Millisecond), watched{"cuMemAlloc": time.Second}) // 8 times the bound above 100 ms, 0.125 s
	f(calls(3000, 100*time.Millisecond), watched{})
}
