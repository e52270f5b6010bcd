package cudareceiver

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// written returns one line per record: name, severity, body, the attributes other than those of the
// workload and device, and the workload.
func written(ld plog.Logs) []string {
	var list []string
	for _, rl := range ld.ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, rec := range sl.LogRecords().All() {
				attrs := map[string]string{}
				for k, v := range rec.Attributes().All() {
					attrs[k] = v.AsString()
				}
				var words []string
				for _, k := range slices.Sorted(maps.Keys(attrs)) {
					if !strings.HasPrefix(k, "gpu.model") && !strings.HasPrefix(k, "gpu.vendor") && !strings.HasPrefix(k, "gpu.index") && !strings.HasPrefix(k, "k8s.") && k != "gpu.workload.kind" && k != "gpu.workload.team" {
						words = append(words, k+"="+attrs[k])
					}
				}
				list = append(list, fmt.Sprintf("%s %s %s | %s", rec.EventName(), rec.SeverityText(), rec.Body().Str(), strings.Join(words, " ")))
			}
		}
	}
	return list
}

// Catches errors, outliers and communicators without a record or an owner, and records of calls that are
// merely recorded or of exits.
func TestRecordsOfEvents(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm}, nil)
	r := newRecorder(b.emitter.cfg, receivertest.NewNopSettings(metadata.Type))
	s := tracer.Snapshot{Time: at(10), Started: began, Processes: []tracer.Process{proc(1, 0, 10)}, Events: []tracer.Event{
		{Type: "call", PID: 1, Op: "cuMemFree"},
		{Type: "outlier", Time: at(3), PID: 1, TID: 12, Op: "cuMemcpyHtoD", Duration: 1500 * time.Millisecond, Bytes: 4096, RunQueue: time.Second, Blocked: time.Millisecond},
		{Type: "error", Time: at(4), PID: 1, TID: 12, Op: "cuLaunchKernel", Code: 700, Duration: 3 * time.Microsecond, Kernel: "gemm"},
		{Type: "comm_init", Time: at(2), PID: 1, TID: 12, Op: "ncclCommInitRank", Duration: 1200 * time.Millisecond, Comm: "0xabc", Rank: 1, Size: 2},
		{Type: "exit", PID: 1},
	}}
	b.readAll(s)
	want := []string{
		"nccl.comm.init INFO python3: rank 1 of 2 of communicator 0xabc was created in 1.2s | comm_id_hash=0xabc gpu.cuda.duration=1.2 gpu.cuda.operation=ncclCommInitRank gpu.uuid=GPU-0 gpu.workload.name=llm nranks=2 process.executable.name=python3 process.pid=1 rank=1 thread.id=12",
		"gpu.cuda.error WARN python3: cuLaunchKernel failed with 700 | gpu.cuda.duration=0.000003 gpu.cuda.error.code=700 gpu.cuda.kernel.name=gemm gpu.cuda.operation=cuLaunchKernel gpu.uuid=GPU-0 gpu.workload.name=llm process.executable.name=python3 process.pid=1 thread.id=12",
		"gpu.cuda.outlier INFO python3: cuMemcpyHtoD took 1.5s | gpu.cuda.bytes=4096 gpu.cuda.duration=1.5 gpu.cuda.host.blocked.time=0.001 gpu.cuda.host.run_queue.time=1 gpu.cuda.operation=cuMemcpyHtoD gpu.uuid=GPU-0 gpu.workload.name=llm process.executable.name=python3 process.pid=1 thread.id=12",
	}
	if diff := cmp.Diff(want, written(r.emit(b.Ledger, &s, nil, b.tick))); diff != "" {
		t.Error(diff)
	}
	// An error storm is bounded and counted.
	s.Events = slices.Repeat(s.Events[2:3], 1000)
	if n := r.emit(b.Ledger, &s, nil, b.tick).LogRecordCount(); n != 100 || r.dropped != 900 {
		t.Errorf("%d records, %d dropped", n, r.dropped)
	}
}

// Catches a hang that does not name the missing rank, or is reported more than once when it is certain
// and once when it is over.
func TestRecordOfAHang(t *testing.T) {
	b := newBench(t, machine(3), whoIs{1: llm, 2: job}, nil)
	r := newRecorder(b.emitter.cfg, receivertest.NewNopSettings(metadata.Type))
	f := func(seconds int, behind []int, want ...string) {
		t.Helper()
		s := traced()
		s.Time = at(seconds)
		s.Groups[0].Behind, s.Groups[0].Waiting = behind, at(28)
		b.readAll(s)
		if diff := cmp.Diff(want, written(r.emit(b.Ledger, &s, nil, b.tick))); diff != "" {
			t.Errorf("at %d s: %s", seconds, diff)
		}
	}
	const of = ` | comm_id_hash=0xabc gpu.uuid=GPU-2 gpu.workload.name=train nccl.hang.duration=%d nccl.hang.ranks=[1] nccl.hang.state=%s nranks=4 process.executable.name=python3 process.pid=2 slurm.job.id=7`
	f(40, []int{1}) // it may still arrive
	f(60, []int{1}, "nccl.hang WARN communicator 0xabc of 4 ranks hangs: rank 1 has not arrived, others have waited for 32s"+fmt.Sprintf(of, 32, "active"))
	f(70, []int{1})
	f(80, nil, "nccl.hang INFO communicator 0xabc no longer hangs: others waited for rank 1 for 52s"+fmt.Sprintf(of, 52, "over"))
	f(90, nil)
}

func slowStep(state anomaly.State) anomaly.Anomaly {
	return anomaly.Anomaly{
		State: state, Time: at(20), Since: at(10), PID: 1, Process: "python3", Device: uuid(0), Op: anomaly.Step, Baseline: 1e-3, Observed: 2e-3,
		Lost: 10 * time.Second, Over: 20 * time.Second, Unexplained: 0.25,
		Explanations: []anomaly.Explanation{{Cause: anomaly.Neighbour, Share: 0.75, Seconds: 7.5, Fact: "job 7 has 60 % of the GPU"}},
	}
}

// Catches an anomaly without its explanations in the text and the attributes, counted twice, or in the
// series of another process or device.
func TestAnomalies(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm}, nil)
	r := newRecorder(b.emitter.cfg, receivertest.NewNopSettings(metadata.Type))
	s := tracer.Snapshot{Time: at(20), Started: began, Processes: []tracer.Process{proc(1, 0, 10)}}
	b.readAll(s)
	lines := b.Name([]anomaly.Anomaly{slowStep(anomaly.Open)})
	lines = append(lines, b.Name([]anomaly.Anomaly{slowStep(anomaly.Ended)})...)
	want := []string{
		"gpumeter.anomaly WARN " + slowStep(anomaly.Open).Text() + ` | cause=neighbour gpu.cuda.operation=step gpu.uuid=GPU-0 gpu.workload.name=llm gpumeter.anomaly.baseline=0.001 gpumeter.anomaly.explanations=[{"cause":"neighbour","fact":"job 7 has 60 % of the GPU","seconds":7.5,"share":0.75}] gpumeter.anomaly.lost.time=10 gpumeter.anomaly.observed=0.002 gpumeter.anomaly.since=2026-11-15T12:00:10Z gpumeter.anomaly.state=open gpumeter.anomaly.unexplained=0.25 process.executable.name=python3 process.pid=1`,
	}
	if diff := cmp.Diff(want, written(r.emit(b.Ledger, &s, lines[:1], b.tick))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"gpumeter.anomaly.count{cause=neighbour," + llmOn0 + "} 1 since 1s"}, only(b.readAll(s), "gpumeter.anomaly.count")); diff != "" {
		t.Error(diff)
	}
}
