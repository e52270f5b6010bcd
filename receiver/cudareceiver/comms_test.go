package cudareceiver

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// older returns a communicator that predates the agent.
func older(key string, sequence uint64) tracer.Comm {
	return tracer.Comm{
		Key: key, Rank: -1, Sequence: sequence, LastEnter: at(5),
		Ops: []tracer.CollOp{{Op: "AllReduce", Type: "float32", Reduce: "sum", Peer: -1, Time: spread(times(int(sequence), time.Microsecond)...), Size: tracer.Histogram{Count: sequence, Sum: float64(8 * sequence)}}},
	}
}

func last(c tracer.Comm) tracer.Comm {
	c.Ended = true
	return c
}

// Communicators older than the agent have no ID, no rank and no size and share one series per device.
// Catches a collective counted twice, a series that falls when one communicator ends, and a missing new
// start time when another appears long after the last has gone.
func TestOlderCommunicators(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm}, nil)
	f := func(seconds int, sequence, bytes string, list ...tracer.Comm) {
		t.Helper()
		p := proc(1, 0, 1000)
		p.Comms = list
		var want []string
		if bytes != "" {
			want = append(want, "nccl.collective.bytes{datatype=float32,"+llmOn0+",nranks=0,op_type=AllReduce,rank=-1,reduce_op=sum} "+bytes)
		}
		if sequence != "" {
			want = append(want, "nccl.collective.sequence{"+llmOn0+",nranks=0,rank=-1} "+sequence)
		}
		if diff := cmp.Diff(want, only(b.read(seconds, p), "nccl.collective.sequence", "nccl.collective.bytes")); diff != "" {
			t.Errorf("at %d s: %s", seconds, diff)
		}
	}
	f(10, "1010 since 1s", "8080 since 1s", older("a", 1000), older("b", 10))
	f(20, "1012 since 1s", "8096 since 1s", older("a", 1001), older("b", 11))
	f(30, "1014 since 1s", "8112 since 1s", older("b", 12), older("a", 1002))
	f(40, "1016 since 1s", "8128 since 1s", last(older("a", 1003)), older("b", 13))
	f(50, "1017 since 1s", "8136 since 1s", older("b", 14))
	// A failed reading repeats the previous state and reports an end only once; then another
	// communicator appears.
	f(60, "1019 since 1s", "8152 since 1s", older("b", 14), last(older("b", 16)))
	f(70, "1019 since 1s", "8152 since 1s", older("b", 14))
	f(80, "1019 since 1s", "8152 since 1s")
	f(369, "1019 since 1s", "8152 since 1s")
	f(370, "ended since 1s", "ended since 1s")
	f(380, "3 since 6m10s", "24 since 6m10s", older("c", 3))
}

// Catches a communicator without any identity that is counted although its earlier activity is unknown,
// and one with a known ID that is not recognized without its key.
func TestCommunicatorsWithoutKey(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm}, nil)
	var got []string
	for i := range uint64(3) {
		p := proc(1, 0, 1000)
		p.Comms = []tracer.Comm{{Rank: -1, Sequence: 100 + i}, {ID: "0xa", Rank: 1, Size: 2, Sequence: 10 + i}}
		got = only(b.read(int(10*i+10), p), "nccl.collective.sequence")
	}
	if diff := cmp.Diff([]string{"nccl.collective.sequence{comm_id_hash=0xa," + llmOn0 + ",nranks=2,rank=1} 12 since 1s"}, got); diff != "" {
		t.Error(diff)
	}
}
