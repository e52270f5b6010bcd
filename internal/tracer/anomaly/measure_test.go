package anomaly

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Communicators older than the tracer have no ID. When one of them ends, the waits of the
// others must not be lost.
func TestBarrierOfOlderCommunicators(t *testing.T) {
	comm := func(key string, waited float64) tracer.Comm {
		return tracer.Comm{Key: key, Rank: -1, BarrierWait: tracer.Histogram{Count: uint64(waited), Sum: waited}}
	}
	of := func(comms ...tracer.Comm) totals {
		return totalsOf(&tracer.Process{PID: 1, Since: noon, Comms: comms}, host.Facts{}, false)
	}
	before, after := of(comm("a", 10), comm("b", 10)), of(comm("b", 15))
	s, ok := after.between(&before, 10*time.Second)
	if !ok || s.barrier != 5 || s.barriers != 5 {
		t.Errorf("got %v, %+v", ok, s)
	}
}
