//go:build linux

package inspect

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Catches communicators older than the trace, which have no ID, compared with each other.
func TestDeltaOfOlderCommunicators(t *testing.T) {
	t.Parallel()
	comm := func(key string, n uint64) tracer.Comm {
		return tracer.Comm{
			Key: key, Rank: -1, Sequence: n, BarrierWait: tracer.Histogram{Count: n, Sum: float64(n)},
			Ops: []tracer.CollOp{{Op: "AllReduce", Peer: -1, Time: tracer.Histogram{Count: n, Sum: float64(n)}, Size: tracer.Histogram{Count: n, Sum: float64(n)}}},
		}
	}
	before := tracer.Process{PID: 1, Comms: []tracer.Comm{comm("a", 1000), comm("b", 10)}}
	now := tracer.Process{PID: 1, Comms: []tracer.Comm{comm("b", 13), comm("a", 1002), comm("c", 1)}}
	d := processSince(&now, &before)
	got := map[string][3]float64{}
	for _, c := range d.Comms {
		got[c.Key] = [3]float64{float64(c.Ops[0].Time.Count), c.Ops[0].Size.Sum, float64(c.BarrierWait.Count)}
	}
	if diff := cmp.Diff(map[string][3]float64{"a": {2, 2, 2}, "b": {3, 3, 3}, "c": {1, 1, 1}}, got); diff != "" {
		t.Error(diff)
	}
}
