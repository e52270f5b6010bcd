package probe

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Golden test of NCCL's arguments: rank and unique id are where the ABI puts them, bytes are
// count times type size.
func TestNCCL(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"nccl", "cuLaunchKernelEx", "cuStreamSync"}, func(t *testing.T, m *machine) {
		r := m.start("nccl")
		r.reaches("made")
		began := time.Now()
		p := m.read(r.pid)
		got := map[string]tracer.Comm{}
		ops := map[string]map[string]string{}
		ids := map[string]string{}
		keys := map[string]bool{}
		for _, c := range p.Comms {
			name := fmt.Sprintf("%d of %d", c.Rank, c.Size)
			ids[name] = c.ID
			if c.Sequence > 0 && (c.LastEnter.IsZero() || c.LastEnter.After(began)) {
				t.Errorf("%s entered at %v", name, c.LastEnter)
			}
			by := map[string]string{}
			for _, op := range c.Ops {
				by[op.Op] = fmt.Sprintf("%d x %s %s %d: %v bytes, %d errors", op.Time.Count, op.Type, op.Reduce, op.Peer, op.Size.Sum, op.Errors)
				// Each has one size, so the kernel's bucket must be ours.
				if i := tracer.SizeBucket(uint64(op.Size.Sum) / op.Size.Count); len(op.Size.Buckets) != i+1 || op.Size.Buckets[i] != op.Size.Count {
					t.Errorf("%s of %s has sizes in %v, want bucket %d", op.Op, name, op.Size.Buckets, i)
				}
				if op.Size.Count != op.Time.Count || op.Time.Sum <= 0 {
					t.Errorf("%s of %s: %+v", op.Op, name, op)
				}
			}
			if len(by) > 0 {
				ops[name] = by
			}
			if name == "3 of 8" && (c.BarrierWait.Count != 1 || c.BarrierWait.Sum < 0.02) {
				t.Errorf("one synchronisation of 20 ms came after the collectives: %+v", c.BarrierWait)
			}
			keys[c.Key] = true
			c.Key, c.Address, c.ID, c.LastEnter, c.Ops, c.BarrierWait = "", 0, "", time.Time{}, nil, tracer.Histogram{}
			got[name] = c
		}
		want := map[string]tracer.Comm{
			"3 of 8":  {Rank: 3, Size: 8, Sequence: 18, LastOp: "Scatter"},
			"2 of 4":  {Rank: 2, Size: 4, Sequence: 2, LastOp: "AllReduce"},
			"1 of 2":  {Rank: 1, Size: 2, Device: 3}, // of InitAll; the split one has it, too
			"0 of 2":  {Rank: 0, Size: 2, Device: 5},
			"-1 of 0": {Rank: -1, Sequence: 1, LastOp: "AllReduce"},
			"9 of 16": {Rank: 9, Size: 16},
		}
		if len(keys) != len(p.Comms) || keys[""] {
			t.Errorf("%d communicators have the keys %v: two would be taken for one", len(p.Comms), keys)
		}
		split := 0
		for _, c := range p.Comms {
			if c.Rank == 1 && c.Size == 2 && c.Device == 1 {
				split++
			}
		}
		c := got["1 of 2"]
		c.Device = 3
		got["1 of 2"] = c
		if diff := cmp.Diff(want, got); diff != "" || split != 1 || len(p.Comms) != 7 {
			t.Errorf("%d communicators, %d from a split (-want +got):\n%s", len(p.Comms), split, diff)
		}
		wantOps := map[string]map[string]string{
			"3 of 8": {
				"AllReduce":     "10 x float32 sum -1: 40960 bytes, 0 errors",
				"Broadcast":     "1 x bfloat16  5: 200 bytes, 0 errors",
				"Bcast":         "1 x uint8  4: 101 bytes, 0 errors",
				"Reduce":        "1 x float64 max 6: 816 bytes, 0 errors",
				"AllGather":     "1 x int64  -1: 824 bytes, 0 errors",
				"ReduceScatter": "1 x float16 avg -1: 208 bytes, 0 errors",
				"AlltoAll":      "1 x float8e4m3  -1: 105 bytes, 0 errors",
				"Gather":        "1 x int32  7: 424 bytes, 0 errors",
				"Scatter":       "1 x uint32  0: 428 bytes, 0 errors",
				"Send":          "1 x int8  1: 108 bytes, 0 errors",
				"Recv":          "1 x uint64  2: 872 bytes, 0 errors",
			},
			"2 of 4":  {"AllGather": "1 x float8e5m2  -1: 110 bytes, 1 errors", "AllReduce": "1 x float32 custom -1: 444 bytes, 0 errors"},
			"-1 of 0": {"AllReduce": "1 x float32 sum -1: 4 bytes, 0 errors"},
		}
		if diff := cmp.Diff(wantOps, ops); diff != "" {
			t.Errorf("collectives (-want +got):\n%s", diff)
		}
		if ids["3 of 8"] == "" || ids["3 of 8"] == ids["2 of 4"] || ids["3 of 8"] != ids["9 of 16"] || ids["-1 of 0"] != "" {
			t.Errorf("ids are %v", ids)
		}
		// The launch inside a collective counts too; the Broadcast made by Bcast does not.
		if got := calls(p); got["cuLaunchKernelEx @0"] != 12 || got["ncclAllReduce @0"] != 12 || got["ncclBroadcast @0"] != 1 || got["ncclGroupEnd @0"] != 1 {
			t.Errorf("calls are %v", got)
		}

		r.goOn()
		r.reaches("ended")
		ended := map[string]bool{}
		for _, c := range m.read(r.pid).Comms {
			if c.Ended {
				ended[fmt.Sprintf("%d of %d %v", c.Rank, c.Size, c.Aborted)] = len(c.Ops) > 0
			}
		}
		if diff := cmp.Diff(map[string]bool{"3 of 8 false": true, "1 of 2 true": false}, ended); diff != "" {
			t.Errorf("ended (-want +got):\n%s", diff)
		}
		if n := len(m.read(r.pid).Comms); n != 5 {
			t.Errorf("%d communicators are left, want 5", n)
		}
		events := map[string]int{}
		for _, e := range m.p.Events(100) {
			events[fmt.Sprintf("%s %s %d/%d %v", e.Type, e.Op, e.Rank, e.Size, e.Comm != "")]++
		}
		wantEvents := map[string]int{
			"comm_init ncclCommInitRank 3/8 true":          1,
			"comm_init ncclCommInitRank 2/4 true":          1,
			"comm_init ncclCommSplit -1/0 true":            1,
			"comm_init ncclCommInitAll 0/2 true":           1,
			"comm_init ncclCommInitAll 1/2 true":           1,
			"comm_init ncclCommInitRankScalable 9/16 true": 1,
			"error ncclAllGather 2/4 false":                1,
			"comm_end ncclCommFinalize 3/8 true":           1,
			"comm_end ncclCommAbort 1/2 true":              1,
		}
		if diff := cmp.Diff(wantEvents, events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		r.goOn()
		r.ends()
		m.lossless()
	})
}

// All ranks of a communicator have NCCL's id, and each split has another.
func TestRanksShareIDs(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, nil, func(t *testing.T, m *machine) {
		var ids [2][]string
		for rank := range ids {
			r := m.start("rank", fmt.Sprint(rank))
			hash := r.ends()
			for _, c := range m.read(r.pid).Comms {
				ids[rank] = append(ids[rank], c.ID)
			}
			if !slices.Contains(ids[rank], hash) {
				t.Errorf("rank %d has the ids %v, NCCL's is %s", rank, ids[rank], hash)
			}
		}
		if diff := cmp.Diff(ids[0], ids[1]); diff != "" {
			t.Errorf("ids of ranks 0 and 1 differ:\n%s", diff)
		}
		if len(ids[0]) != 3 || ids[0][0] == ids[0][1] || ids[0][1] == ids[0][2] || ids[0][0] == "" {
			t.Errorf("ids are %v", ids[0])
		}
	})
}

// Ranks of a pipeline send and receive different numbers of messages: counted as collectives, a
// rank would seem to be behind.
func TestPipeline(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, nil, func(t *testing.T, m *machine) {
		for n := 2; n < 5; n++ {
			p := m.run("pipeline", fmt.Sprint(n))
			if len(p.Comms) != 1 {
				t.Fatalf("%d communicators, want 1", len(p.Comms))
			}
			c := p.Comms[0]
			if c.Sequence != 1 || c.LastOp != "AllReduce" || c.LastEnter.IsZero() {
				t.Errorf("after %d sends it is at %d, the last was %q at %v", n, c.Sequence, c.LastOp, c.LastEnter)
			}
			got := map[string]uint64{}
			for _, op := range c.Ops {
				got[op.Op] = op.Time.Count
			}
			if diff := cmp.Diff(map[string]uint64{"AllReduce": 1, "Send": uint64(n), "Recv": uint64(2 * n)}, got); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		}
		m.lossless()
	})
}
