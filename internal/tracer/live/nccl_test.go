//go:build linux

package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/ncclinfo"
)

// Where all ranks here wait for one on another machine, NCCL is asked which it is: when
// they wait, once, and not in a job that rests.
func TestMissing(t *testing.T) {
	m := newMachine(t, Options{RAS: "off"})
	asked := make(chan struct{}, 100)
	answer := ncclinfo.Status{Comms: []ncclinfo.Comm{
		{Hash: "0xfff", Size: 4, Missing: []ncclinfo.Missing{{Rank: 2}}},
		{
			Hash: "0xabc", Size: 4,
			Ranks: []ncclinfo.Rank{
				{Rank: 0, Counts: map[string]uint64{"AllReduce": 100}},
				{Rank: 1, Counts: map[string]uint64{"AllReduce": 100}},
				{Rank: 3, Counts: map[string]uint64{"AllReduce": 99}},
			},
			Missing: []ncclinfo.Missing{{Rank: 2, Dead: true}},
		},
	}}
	m.tracer.asker.ask = func(context.Context) (ncclinfo.Status, error) {
		asked <- struct{}{}
		return answer, nil
	}
	set := func(last, waiting time.Time) {
		for i := range uint32(2) {
			pid := 10 + i
			m.start(pid, time.Minute)
			p := rank(pid, int(i), 100, last)
			p.Devices[0].WaitingSince = waiting
			m.kernel.processes[pid] = p
		}
	}
	start := m.now
	set(start, time.Time{})
	m.snapshot(time.Hour) // rests
	set(start, start.Add(time.Hour))
	m.snapshot(time.Second) // begins to wait
	if len(asked) != 0 {
		t.Fatal("NCCL was asked about a job that does not wait")
	}
	if g := m.snapshot(20 * time.Second).Groups[0]; g.Missing != nil || g.Behind != nil {
		t.Errorf("%+v", g)
	}
	idle := func() bool {
		m.tracer.asker.mu.Lock()
		defer m.tracer.asker.mu.Unlock()
		return !m.tracer.asker.busy
	}
	await.True(t, "the answer", idle)
	g := m.snapshot(time.Second).Groups[0]
	if d := cmp.Diff([]int{2, 3}, g.Missing); d != "" || g.Behind != nil {
		t.Errorf("%s, behind %v", d, g.Behind)
	}
	await.True(t, "the answer", idle)
	if len(asked) != 1 {
		t.Errorf("asked %d times", len(asked))
	}
	// It moves, and then waits anew: what was said before is of no use.
	set(m.now, time.Time{})
	if g := m.snapshot(time.Second).Groups[0]; g.Missing != nil {
		t.Errorf("%+v", g)
	}
	set(m.now, m.now)
	m.tracer.asker.ask = func(context.Context) (ncclinfo.Status, error) { return ncclinfo.Status{}, errors.New("refused") }
	if g := m.snapshot(30 * time.Second).Groups[0]; g.Missing != nil {
		t.Errorf("%+v", g)
	}
	m.snapshot(40 * time.Second)
	await.True(t, "the answer", idle)
	if g := m.snapshot(time.Second).Groups[0]; g.Missing != nil {
		t.Errorf("%+v", g)
	}
}

// A communicator without a hash in common is known by its processes.
func TestSameRanks(t *testing.T) {
	g := tracer.CommGroup{ID: "1", Size: 2, Ranks: []tracer.RankSeen{{Rank: 0, PID: 7}}}
	s := ncclinfo.Status{Comms: []ncclinfo.Comm{
		{Hash: "0x9", Size: 2, Ranks: []ncclinfo.Rank{{Rank: 0, PID: 8}}, Missing: []ncclinfo.Missing{{Rank: 1, PID: 9}}},
		{Hash: "0x9", Size: 3, Ranks: []ncclinfo.Rank{{Rank: 0, PID: 7}}},
		{Hash: "0x9", Size: 2, Missing: []ncclinfo.Missing{{Rank: 0, PID: 7}}},
	}}
	if d := cmp.Diff([]int{0}, missing(s, g)); d != "" {
		t.Error(d)
	}
	if got := missing(ncclinfo.Status{Comms: s.Comms[:2]}, g); got != nil {
		t.Errorf("%v", got)
	}
}

// What the plugin writes down is found by the file the process has open, counted once, and
// forgotten with the process.
func TestMeasured(t *testing.T) {
	m := newMachine(t, Options{RAS: "off"})
	plugin := buildLibrary(t, "libnccl-profiler-inspector.so", fakeNCCL, "aa")
	m.start(10, time.Minute, plugin)
	m.start(11, time.Minute)
	m.kernel.processes[10] = tracer.Process{PID: 10}
	log := filepath.Join(t.TempDir(), "node-pid1.log")
	line := `{"header":{"id":"0x1f","rank":2,"n_ranks":8},"metadata":{"pid":1},"coll_perf":{"coll":"AllReduce","coll_sn":1,"coll_msg_size_bytes":100,"coll_exec_time_us":2000000,"coll_busbw_gbs":3}}` + "\n"
	if err := os.WriteFile(log, []byte(line+line), 0o644); err != nil {
		t.Fatal(err)
	}
	fd := filepath.Join(m.proc, "10", "fd")
	if err := errors.Join(os.Mkdir(fd, 0o755), os.Symlink("/dev/null", filepath.Join(fd, "0")), os.Symlink(log, filepath.Join(fd, "5"))); err != nil {
		t.Fatal(err)
	}
	m.scan(0)
	if d := cmp.Diff([]uint32{10}, m.tracer.find.inspected()); d != "" {
		t.Fatal(d)
	}
	for range 3 {
		m.tracer.inspect.read(m.tracer.find.inspected())
	}
	want := []tracer.Measured{{Comm: "0x1f", Rank: 2, Size: 8, Op: "AllReduce", Count: 2, Bytes: 200, Time: 4 * time.Second, Bus: 12e9}}
	if d := cmp.Diff(want, m.snapshot(0).Processes[0].Measured); d != "" {
		t.Error(d)
	}
	m.stop(10)
	m.scan(2 * time.Second)
	m.tracer.inspect.read(m.tracer.find.inspected())
	if len(m.tracer.inspect.processes) != 0 {
		t.Error("it is kept for a process that is gone")
	}
}

// The kinds of collectives that a file may name are bounded.
func TestMeasuredIsBounded(t *testing.T) {
	p := &inspected{total: map[measuredKey]tracer.Measured{}}
	for i := range 2 * maxMeasured {
		p.add(ncclinfo.Record{Comm: fmt.Sprint(i), Op: "AllReduce"})
	}
	if len(p.total) != maxMeasured {
		t.Errorf("%d kept", len(p.total))
	}
}
