package cudareceiver

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/training"
)

// Catches steps that count once per rank or per device, time that counts once per process only, and a restart of
// one job that is one of another.
func TestTraining(t *testing.T) {
	b := newBench(t, machine(2), whoIs{1: job, 2: job}, nil)
	both := proc(1, 0, 10)
	both.Devices = append(both.Devices, tracer.Device{Ordinal: 1, UUID: uuid(1), Memory: tracer.Memory{Peak: 1}})
	b.read(10, both, proc(2, 1, 10))
	b.Train([]training.Growth{
		{
			PID: 1, Leader: true, Steps: []training.Steps{{Count: 30, Mean: 240 * time.Millisecond}}, Checkpoints: 1, CheckpointBytes: 5e9,
			Restarted: true, Redone: 4 * time.Second, Down: 9 * time.Second,
			Time: map[training.Activity]time.Duration{training.Step: 7 * time.Second, training.Data: time.Second},
		},
		{
			PID: 2, Steps: []training.Steps{{Count: 30, Mean: 240 * time.Millisecond}},
			Time: map[training.Activity]time.Duration{training.Step: 6 * time.Second},
		},
	})
	tick := *b.tick
	tick.Time = at(10)
	got := render(b.emit(b.Ledger, nil, &tick))
	on := func(i string) string {
		return "gpu.index=" + i + ",gpu.model=H200,gpu.uuid=GPU-" + i + ",gpu.vendor=nvidia,gpu.workload.kind=slurm_job,gpu.workload.name=train,slurm.job.id=7,"
	}
	src := "training.source=observed"
	want := []string{
		"training.checkpoint.count{" + on("0") + src + "} 1 since 1s",
		"training.checkpoint.io{" + on("0") + src + "} 5000000000 since 1s",
		"training.goodput{" + on("0") + src + "} 0.875",
		"training.goodput{" + on("1") + src + "} 0.928571429",
		"training.lost.time{" + on("0") + "training.lost.reason=redone," + src + "} 4 since 1s",
		"training.lost.time{" + on("0") + "training.lost.reason=restart," + src + "} 9 since 1s",
		"training.lost.time{" + on("1") + "training.lost.reason=redone," + src + "} 4 since 1s",
		"training.lost.time{" + on("1") + "training.lost.reason=restart," + src + "} 9 since 1s",
		"training.restarts{" + on("0") + src + "} 1 since 1s",
		"training.step.duration{" + on("0") + src + "} n=30 sum=7.2 [0 0 0 0 0 0 30 0 0 0 0 0 0 0 0 0 0 0] since 1s",
		"training.steps{" + on("0") + src + "} 30 since 1s",
		"training.time{" + on("0") + "training.activity=data_wait," + src + "} 1 since 1s",
		"training.time{" + on("0") + "training.activity=step," + src + "} 7 since 1s",
		"training.time{" + on("1") + "training.activity=data_wait," + src + "} 1 since 1s",
		"training.time{" + on("1") + "training.activity=step," + src + "} 13 since 1s",
	}
	if diff := cmp.Diff(want, only(got, "training.steps", "training.step.duration", "training.time", "training.goodput", "training.restarts", "training.lost.time", "training.checkpoint.count", "training.checkpoint.io", "training.mfu")); diff != "" {
		t.Error(diff)
	}
}

// Catches an estimate for a device that another process uses, too, and one that ignores the clock.
func TestMFU(t *testing.T) {
	f := func(name string, want float64, pids ...uint32) {
		t.Helper()
		tick := machine(1, pids)
		r := &tick.Readings[0]
		r.Clocks = []device.Clock{{Type: "sm", Frequency: device.Of(990e6), Limit: device.Of(1980e6)}}
		r.Profile.Pipes = []device.Pipe{{Name: "tensor", Active: device.Of(0.8)}, {Name: "fp32", Active: device.Of(0.1)}}
		b := newBench(t, tick, whoIs{1: job}, nil)
		b.read(10, proc(1, 0, 10))
		x := newTrainer("/nowhere")
		x.see(tick)
		r.Profile.Pipes[0].Active = device.Of(0.4)
		x.see(tick)
		b.Train([]training.Growth{{PID: 1, Leader: true, Time: map[training.Activity]time.Duration{training.Step: time.Second}}})
		x.estimate(b.Ledger)
		got := 0.0
		if m := b.Subjects[0].Training.MFU; m != nil {
			got = *m
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	f("alone", 0.30000000000000004, 1)
	f("with another", 0, 1, 2)
}

// The workload of a job that was requeued, or whose pod was replaced, is the same; that of another job is not.
func TestJob(t *testing.T) {
	next, other, again := llm, job, llm
	next.ID, next.Attributes = "pod/u2/train", map[string]string{"k8s.namespace.name": "ml", "k8s.pod.name": "llm-1"}
	other.ID, other.Attributes = "slurm/8", map[string]string{"slurm.job.id": "8"}
	again.Kind = "process"
	b := newBench(t, machine(1), whoIs{1: llm, 2: next, 3: job, 4: other, 5: again}, nil)
	b.read(10, proc(1, 0, 1), proc(2, 0, 1), proc(3, 0, 1), proc(4, 0, 1), proc(5, 0, 1), proc(6, 0, 1))
	key := func(pid uint32) string { return b.Job(pid) }
	if key(1) == "" || key(1) != key(2) || key(3) == key(4) || key(5) != "" || key(6) != "" {
		t.Errorf("%q", []string{key(1), key(2), key(3), key(4), key(5), key(6)})
	}
}
