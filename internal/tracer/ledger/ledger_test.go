package ledger

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/workload"
)

var (
	llm = workload.Workload{ID: "pod/u1/train", Kind: "deployment", Name: "llm"}
	job = workload.Workload{ID: "slurm/7", Kind: "slurm_job", Name: "train"}
)

func at(seconds int) time.Time { return time.Date(2026, 11, 15, 12, 0, seconds, 0, time.UTC) }

func uuid(i int) string { return fmt.Sprintf("GPU-%d", i) }

func empty(offset, buckets int) tracer.Histogram {
	return tracer.Histogram{Offset: offset, Buckets: make([]uint64, buckets)}
}

// whoIs implements Owners.
type whoIs map[uint32]workload.Workload

func (w whoIs) Process(pid uint32) (workload.Workload, bool) {
	x, ok := w[pid]
	return x, ok
}

// bench is a ledger under test, on a machine of some devices.
type bench struct {
	*Ledger
	tick node.Tick
}

func newBench(devices int, who Owners, o Options) *bench {
	b := &bench{Ledger: New(o)}
	b.Owners = who
	for i := range devices {
		b.tick.Readings = append(b.tick.Readings, node.Reading{Up: true, Sample: device.Sample{ID: device.ID{UUID: uuid(i), Index: i}}})
	}
	return b
}

func (b *bench) read(seconds int, processes ...tracer.Process) {
	b.Observe(&tracer.Snapshot{Time: at(seconds), Processes: processes}, NewPlaces(&b.tick))
}

// Catches a device taken for reset because a kernel left the top and moved its launches to the rest,
// which has no device.
func TestKernelLeavesTheTop(t *testing.T) {
	b := newBench(2, whoIs{1: llm}, Options{MaxWorkloads: 128, MaxKernels: 20, MaxCommunicators: 32})
	read := func(seconds int, kernels ...tracer.Kernel) (sum uint64) {
		p := tracer.Process{PID: 1, Since: at(1), Devices: []tracer.Device{{Ordinal: 0, UUID: uuid(0)}, {Ordinal: 1, UUID: uuid(1)}}, Kernels: kernels, KernelsFolded: 1}
		b.read(seconds, p)
		for _, s := range b.Subjects {
			for _, k := range s.Kernels {
				sum += k.Launches
			}
		}
		return sum
	}
	got := []uint64{
		read(10, tracer.Kernel{Name: "a", Count: 1000}, tracer.Kernel{Name: "b", Count: 500}, tracer.Kernel{Name: Other, Device: -1, Count: 990}),
		read(20, tracer.Kernel{Name: "c", Count: 15}, tracer.Kernel{Name: "b", Count: 501}, tracer.Kernel{Name: Other, Device: -1, Count: 990 + 1002}),
	}
	if diff := cmp.Diff([]uint64{2490, 2508}, got); diff != "" {
		t.Error(diff)
	}
}

// Catches a sum over all series that differs from the activity of the processes, a series that falls,
// and launches lost or invented as kernels enter and leave the top, in any order of starts, ends and
// changes of owner.
func TestSumsAreTheTruth(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 8))
		who := whoIs{}
		b := newBench(3, who, Options{MaxWorkloads: 5, MaxKernels: 4, MaxCommunicators: 32})
		type live struct {
			p       tracer.Process
			kernels [6]uint64
		}
		var truth struct{ calls, errors, bytes, launches, sequence, sent uint64 }
		procs := map[uint32]*live{}
		before := map[string]uint64{}
		for round := 1; round < 12; round++ {
			var list []tracer.Process
			for pid := uint32(1); pid < 6; pid++ {
				l := procs[pid]
				if l == nil {
					if random.IntN(2) == 0 {
						continue
					}
					l = &live{p: tracer.Process{PID: pid, Since: at(10 * round), Devices: []tracer.Device{{UUID: uuid(random.IntN(3))}}}}
					l.p.Ops = []tracer.OpStat{{Op: "cuMemcpyHtoDAsync", Class: tracer.Copy, Kind: "htod", Time: empty(tracer.TimeOffset, tracer.TimeBuckets), Errors: []tracer.CodeCount{{Code: 700}}}}
					l.p.Comms = []tracer.Comm{{ID: "c", Rank: int(pid), Size: 8, Ops: []tracer.CollOp{{Op: "AllReduce", Peer: -1, Time: empty(tracer.TimeOffset, tracer.TimeBuckets), Size: empty(tracer.SizeOffset, tracer.SizeBuckets)}}}}
					procs[pid] = l
				}
				n := uint64(random.IntN(5))
				p := &l.p
				op := p.Ops[0]
				op.Time.Buckets = append([]uint64(nil), op.Time.Buckets...)
				op.Time.Count += n
				op.Time.Buckets[random.IntN(40)] += n
				op.Bytes += n * 100
				op.Errors = []tracer.CodeCount{{Code: 700, Count: op.Errors[0].Count + n/2}}
				p.Ops = []tracer.OpStat{op}
				c := p.Comms[0]
				c.Sequence += n
				coll := c.Ops[0]
				coll.Size.Count += n
				coll.Size.Sum += float64(n * 8)
				coll.Size.Buckets = append([]uint64(nil), coll.Size.Buckets...)
				coll.Size.Buckets[5] += n
				c.Ops = []tracer.CollOp{coll}
				p.Comms = []tracer.Comm{c}
				truth.calls, truth.bytes, truth.errors, truth.sequence, truth.sent = truth.calls+n, truth.bytes+n*100, truth.errors+n/2, truth.sequence+n, truth.sent+n*8
				// Two of six kernels are reported by name, and they vary.
				top := random.IntN(6)
				p.Kernels, p.KernelsFolded = nil, 0
				rest := tracer.Kernel{Name: Other}
				for k := range l.kernels {
					n := uint64(random.IntN(4))
					l.kernels[k] += n
					truth.launches += n
					if k == top || k == (top+1)%6 {
						name := string(rune('a' + k))
						p.Kernels = append(p.Kernels, tracer.Kernel{Name: name, Symbol: name, Count: l.kernels[k]})
						continue
					}
					rest.Count += l.kernels[k]
					p.KernelsFolded++
				}
				p.Kernels = append(p.Kernels, rest)
				switch random.IntN(4) {
				case 0:
					who[pid] = llm
				case 1:
					who[pid] = job
				case 2:
					delete(who, pid)
				}
				p.Ended = random.IntN(5) == 0
				list = append(list, *p)
				if p.Ended {
					delete(procs, pid)
				}
			}
			b.read(10*round, list...)
			got := truth
			got.calls, got.errors, got.bytes, got.launches, got.sequence, got.sent = 0, 0, 0, 0, 0, 0
			now := map[string]uint64{}
			note := func(s *Subject, name string, v uint64) uint64 {
				now[s.Key+name] = v
				return v
			}
			for _, s := range b.Subjects {
				for k, op := range s.Ops {
					got.calls += note(s, k.Op, op.Time.Count)
				}
				for k, n := range s.Errors {
					got.errors += note(s, "error"+k.Op, n)
				}
				for k, n := range s.Copies {
					got.bytes += note(s, "copy"+k, n)
				}
				for k, x := range s.Kernels {
					got.launches += note(s, "kernel"+k, x.Launches)
				}
				for k, c := range s.Comms {
					got.sequence += note(s, "comm"+string(rune(k.Rank)), c.Sequence)
					for _, op := range c.Ops {
						got.sent += op.Bytes
					}
				}
			}
			if got != truth {
				t.Fatalf("seed %d round %d: %+v, want %+v", seed, round, got, truth)
			}
			for k, v := range before {
				if now[k] < v {
					t.Fatalf("seed %d round %d: %s fell from %d to %d", seed, round, k, v, now[k])
				}
			}
			before = now
		}
	}
}
