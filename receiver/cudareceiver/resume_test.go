package cudareceiver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// fakeHeir is a source whose counts survive a restart: n thousand milliseconds of work.
type fakeHeir struct {
	fakeSource
	until time.Time
	n     int
	left  bool
}

func (f *fakeHeir) Inherited() time.Time { return f.until }
func (f *fakeHeir) Keeps() bool          { return true }
func (f *fakeHeir) Leave()               { f.left = true }

func (f *fakeHeir) Snapshot(now time.Time, _ map[uint32][]string) tracer.Snapshot {
	f.snapshots++
	return tracer.Snapshot{Time: now, Started: began, Processes: []tracer.Process{proc(1, 0, f.n*1000)}}
}

// Catches an agent that was stopped for so long that its probes went to sleep, and counts nothing any more.
func TestAsleep(t *testing.T) {
	opened := 0
	sources := []*fakeSource{{fails: []error{nil, fmt.Errorf("cannot read: %w", tracer.ErrAsleep)}}, {}}
	sink := new(consumertest.MetricsSink)
	r := newReceiver(createDefaultConfig().(*Config), receivertest.NewNopSettings(metadata.Type), func(*Config) (source, error) {
		opened++
		return sources[opened-1], nil
	})
	r.metrics, r.owners = sink, whoIs{1: llm}
	r.forgetCounts()
	seconds := 0
	r.clock = func() time.Time { seconds += 10; return at(seconds) }
	if err := r.begin(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.tick(*machine(1, []uint32{1}))
	}
	if opened != 2 || !sources[0].ran || sources[1].ran || sources[1].snapshots != 1 || len(sink.AllMetrics()) != 2 {
		t.Errorf("%d tracers, %d readings of the second, %d delivered", opened, sources[1].snapshots, len(sink.AllMetrics()))
	}
	r.end(false)
}

// Catches a restarted agent whose sums start with what its predecessor has counted, or without what happened in
// between; and one that trusts a reading that its predecessor could no longer replace.
func TestResume(t *testing.T) {
	file := filepath.Join(t.TempDir(), "traced.json")
	sink := new(consumertest.MetricsSink)
	seconds := 0
	agent := func(src *fakeHeir, work func(read func(n int) []string)) {
		t.Helper()
		cfg := createDefaultConfig().(*Config)
		cfg.StateFile = file
		r := newReceiver(cfg, receivertest.NewNopSettings(metadata.Type), func(*Config) (source, error) { return src, nil })
		r.metrics, r.owners = sink, whoIs{1: llm}
		r.forgetCounts()
		r.clock = func() time.Time { return at(seconds) }
		if err := r.begin(); err != nil {
			t.Fatal(err)
		}
		work(func(n int) []string {
			seconds += 10
			src.n = n
			r.tick(*machine(1, []uint32{1}))
			return only(render(sink.AllMetrics()[len(sink.AllMetrics())-1]), "gpu.cuda.busy.time")
		})
		r.end(true)
		if !src.left {
			t.Error("the probes are not left to the next agent")
		}
	}
	expect := func(what string, got []string, want string) {
		t.Helper()
		if diff := cmp.Diff([]string{"gpu.cuda.busy.time{" + llmOn0 + "} " + want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	agent(&fakeHeir{}, func(read func(int) []string) {
		expect("the first agent", read(5), "5 since 1s")
		expect("the first agent goes on", read(7), "7 since 1s")
	})
	agent(&fakeHeir{until: at(25)}, func(read func(int) []string) {
		expect("the second agent", read(10), "3 since 20s")
		expect("the second agent goes on", read(12), "5 since 20s")
	})
	last, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	agent(&fakeHeir{until: at(90)}, func(read func(int) []string) { // the file is of second 40
		expect("an old reading", read(20), "0 since 50s")
		expect("an old reading, then more", read(21), "1 since 50s")
	})
	if err := os.WriteFile(file, last[:len(last)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	agent(&fakeHeir{until: at(65)}, func(read func(int) []string) {
		expect("half a reading", read(30), "0 since 1m10s")
	})
	if err := os.Chmod(filepath.Dir(file), 0o500); err != nil {
		t.Fatal(err)
	}
	agent(&fakeHeir{}, func(read func(int) []string) {
		expect("another process", read(1), "1 since 1s")
	})
}
