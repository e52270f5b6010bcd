// Package tracertest is a machine with one GPU and one traced process, for tests of consumers of a
// trace.
package tracertest

import (
	"context"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Tracer traces one process, 4242, that launches 1,000 kernels per second.
type Tracer struct {
	began time.Time

	mu       sync.Mutex
	recorded map[uint32]bool
	lost     uint64 // events
}

// New returns a Tracer that starts now.
func New() *Tracer { return &Tracer{began: time.Now(), recorded: map[uint32]bool{}} }

// Run returns when ctx ends.
func (f *Tracer) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Record implements inspect.Tracer.
func (f *Tracer) Record(pid uint32, on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recorded[pid] = on
	return nil
}

// Snapshot implements inspect.Tracer. While 4242 is recorded, each reading has three of its calls, one
// of another process, and one lost call.
func (f *Tracer) Snapshot(now time.Time, _ map[uint32][]string) tracer.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Snapshot(now, f.began, uint64(now.Sub(f.began).Milliseconds()))
	if f.recorded[4242] {
		for range 3 {
			s.Events = append(s.Events, tracer.Event{
				Time: now, PID: 4242, TID: 4243, Type: "call", Op: "cuLaunchKernel", Duration: 4 * time.Microsecond, Kernel: "gemm<float>", Stream: 7,
			})
		}
		s.Events = append(s.Events, tracer.Event{Time: now, PID: 99, Type: "call", Op: "cuMemFree"})
		f.lost++
	}
	s.Losses.Events = f.lost
	return s
}

// Snapshot returns a reading of a tracer that started at began, after this many launches.
func Snapshot(now, began time.Time, launches uint64) tracer.Snapshot {
	buckets := make([]uint64, tracer.TimeBuckets)
	buckets[tracer.TimeBucket(4000)] = launches
	return tracer.Snapshot{
		Time: now, Started: began,
		Libraries: []tracer.Library{{Path: "/usr/lib/libcuda.so.1", Kind: "cuda", Probes: 70, Mode: "session"}},
		Untraced:  []tracer.Untraced{{PID: 77, Reason: "permission_denied", Detail: "cannot read its maps"}},
		Processes: []tracer.Process{
			{
				PID: 4242, Name: "python3", Since: began,
				Devices: []tracer.Device{{
					UUID: "GPU-0", Busy: time.Duration(launches) * time.Millisecond, Wait: time.Duration(launches) * 700 * time.Microsecond, Bubble: time.Duration(launches) * 10 * time.Microsecond,
					Memory: tracer.Memory{Reserved: 8 << 30, Peak: 9 << 30, Allocated: 6 << 30, Pool: 8 << 30, Framework: true, Oldest: time.Minute, Growth: 1 << 20, Leak: true},
				}},
				Ops: []tracer.OpStat{
					{
						Op: "cuLaunchKernel", Class: tracer.Launch, Time: tracer.Histogram{Count: launches, Sum: float64(launches) * 4e-6, Offset: tracer.TimeOffset, Buckets: buckets},
						Errors: []tracer.CodeCount{{Code: 700, Count: launches / 500}},
					},
					{Op: "cuMemcpyHtoDAsync", Class: tracer.Copy, Kind: "htod", Bytes: launches << 10, Time: tracer.Histogram{Count: launches / 10, Sum: float64(launches) * 1e-6, Offset: tracer.TimeOffset, Buckets: buckets}},
				},
				Kernels: []tracer.Kernel{{Name: "gemm<float>", Symbol: "_Z4gemm", Count: launches, Grid: [3]uint32{132, 2, 1}, Block: [3]uint32{128, 1, 1}}},
				Comms: []tracer.Comm{{
					ID: "0xabc", Rank: 0, Size: 2, Sequence: launches, LastEnter: now.Add(-2 * time.Second), LastOp: "AllReduce",
					Ops: []tracer.CollOp{{Op: "AllReduce", Type: "bfloat16", Reduce: "sum", Peer: -1, Time: tracer.Histogram{Count: launches, Sum: float64(launches) * 3e-5}, Size: tracer.Histogram{Count: launches, Sum: float64(launches) * 1024}}},
				}},
				Host: tracer.Host{Threads: 1, Known: true, RunQueue: time.Duration(launches) * 100 * time.Microsecond, Blocked: time.Duration(launches) * 700 * time.Microsecond},
			},
			{PID: 5000, Name: "other", Since: began},
		},
		Groups: []tracer.CommGroup{{ID: "0xabc", Size: 2, Behind: []int{1}, Waiting: now.Add(-2 * time.Second)}},
	}
}

// Machine has one GPU and a pod on it.
type Machine struct{}

// Tick implements inspect.Machine.
func (Machine) Tick(_ context.Context, now time.Time) node.Tick {
	return node.Tick{Time: now, Readings: []node.Reading{{Up: true, Sample: device.Sample{
		ID: device.ID{Vendor: "any", UUID: "GPU-0", Index: 3, Model: "H200"}, Processes: []device.Process{{PID: 4242}, {PID: 77}},
	}}}}
}

// Learn implements inspect.Machine.
func (Machine) Learn(ctx context.Context) { <-ctx.Done() }

// Process implements inspect.Machine. Process 4242 belongs to a pod and to a task of a Slurm array.
func (Machine) Process(pid uint32) (workload.Workload, bool) {
	if pid != 4242 {
		return workload.Workload{}, false
	}
	return workload.Workload{ID: "pod/u1/c", Kind: "deployment", Name: "llm", Attributes: map[string]string{
		"k8s.namespace.name": "ml", "k8s.pod.name": "llm-0", "slurm.job.id": "9", "slurm.array.job.id": "7", "slurm.array.task.id": "2",
	}}, true
}
