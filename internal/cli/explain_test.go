//go:build linux

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
	"github.com/gpumeter/gpumeter/internal/tracer/journal"
	"github.com/gpumeter/gpumeter/internal/tracer/live"
	"github.com/gpumeter/gpumeter/internal/tracer/tracertest"
)

// explain prints the latest state of each anomaly in the window, oldest first. It skips other
// anomalies and a truncated record.
func TestExplain(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	slow := func(pid uint32, state anomaly.State, since, at time.Duration, pod string) journal.Line {
		a := anomaly.Anomaly{
			State: state, Time: now.Add(-at), Since: now.Add(-since), PID: pid, Process: "python3", Op: anomaly.Step, Baseline: 1e-3, Observed: 2e-3,
			Lost: 10 * time.Second, Over: 20 * time.Second,
			Explanations: []anomaly.Explanation{{Cause: anomaly.HostDelay, Share: 0.8, Seconds: 8, Fact: "1.6 s/s in the run queue"}}, Unexplained: 0.2,
			Changes: []anomaly.Change{{Op: "bubble", Baseline: 1e-5, Observed: 1e-3, Seconds: 8}},
		}
		return journal.Line{Anomaly: a, Words: a.Text(), Attributes: map[string]string{"k8s.namespace.name": "ml", "k8s.pod.name": pod}}
	}
	var text []byte
	for _, l := range []journal.Line{
		slow(1, anomaly.Open, 3*time.Hour, 3*time.Hour, "old"),
		slow(2, anomaly.Open, 40*time.Minute, 39*time.Minute, "llm-0"),
		slow(3, anomaly.Open, 30*time.Minute, 29*time.Minute, "llm-1"),
		slow(2, anomaly.Ended, 40*time.Minute, 20*time.Minute, "llm-0"),
	} {
		b, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, b...), '\n')
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "anomalies.jsonl"), append(text, `{"time":"20`...), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(want int, also string, args ...string) []string {
		t.Helper()
		cmd := newExplain()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs(append(args, "--state-dir", dir))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "(pid "); n != want || !strings.Contains(out.String(), also) {
			t.Errorf("%v: %d anomalies, want %d and %q: %s", args, n, want, also, out.String())
		}
		return strings.Split(strings.TrimSpace(out.String()), "\n")
	}
	lines := f(2, "1 line of")
	local := func(ago time.Duration, layout string) string { return now.Add(-ago).Local().Format(layout) }
	want := []string{
		local(40*time.Minute, time.DateTime) + " to " + local(20*time.Minute, time.TimeOnly),
		"  python3 (pid 2) made 50% fewer launches per second; 10.0 s of 20.0 s were",
		"  lost.",
		"    80%  host delay: 1.6 s/s in the run queue",
		"    20%  unexplained: no known event at the same time accounts for it",
		"  Affected operations",
		"   bubble (between calls)        1.0 ms instead of 10.0 us",
		"",
		local(30*time.Minute, time.DateTime) + ", still ongoing at " + local(29*time.Minute, time.TimeOnly),
		"  python3 (pid 3) made 50% fewer launches per second; 10.0 s of 20.0 s were",
		"  lost.",
	}
	if diff := cmp.Diff(want, lines[:len(want)]); diff != "" {
		t.Error(diff)
	}
	f(3, "old", "--since", "4h", "--json")
	f(1, "pid 3", "--pod", "ml/llm-1")
	f(0, "Nothing got slower in the last 1m0s", "--since", "1m")
}

// Catches an explain that fails on a machine where nothing has been slow yet.
func TestExplainWithoutJournal(t *testing.T) {
	dir := t.TempDir()
	f := func(want string, args ...string) {
		t.Helper()
		cmd := newExplain()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"--state-dir", dir}, args...))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("explain %q (-want +got):\n%s", args, diff)
		}
	}
	f("No anomaly has been recorded: " + dir + "/anomalies.jsonl does not exist.\nRun gpumeter agent --trace to record them, or gpumeter explain --duration 2m to trace now.\n")
	f("", "--json")
}

// slowing is a tracer of a machine that is as ever for seven readings, 10 s from each other,
// and whose threads then wait for a CPU for 4 s of them and do half as much.
type slowing struct {
	*tracertest.Tracer
	began    time.Time
	readings int
	launches uint64
	queue    time.Duration
	bubble   time.Duration
}

func (f *slowing) Snapshot(time.Time, map[uint32][]string) tracer.Snapshot {
	f.readings++
	if f.readings > firstWindows+learnedWindows {
		f.launches, f.queue, f.bubble = f.launches+5_000, f.queue+4*time.Second, f.bubble+4*time.Second
	} else {
		f.launches, f.bubble = f.launches+10_000, f.bubble+100*time.Millisecond
	}
	s := tracertest.Snapshot(f.began.Add(time.Duration(f.readings)*10*time.Second), f.began, f.launches)
	s.Groups = nil
	s.Processes[0].Devices[0].Bubble = f.bubble
	s.Processes[0].Host = tracer.Host{Threads: 1, Known: true, RunQueue: f.queue}
	return s
}

// watchSlowing runs explain --duration on a slowing machine for the given number of windows.
func watchSlowing(t *testing.T, windows int, asJSON bool) string {
	t.Helper()
	c := &explainCommand{traceEnv: fakeEnv(nil), duration: time.Duration(windows) * time.Millisecond, interval: time.Millisecond, asJSON: asJSON}
	c.root = t.TempDir()
	c.tracer = func(live.Options) (inspect.Tracer, error) {
		return &slowing{Tracer: tracertest.New(), began: time.Now()}, nil
	}
	var out strings.Builder
	if err := c.watch(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Without an agent it watches itself. The least duration is just enough for the detector to
// find something: with one window less nothing can be found, however slow it is.
func TestExplainLive(t *testing.T) {
	t.Parallel()
	if got := watchSlowing(t, leastWindows-1, false); !strings.HasPrefix(got, "Nothing got slower within 8ms.") {
		t.Error(got)
	}
	got := strings.Split(watchSlowing(t, leastWindows, false), "\n")
	want := []string{ // docs/anomalies.md has it
		"  python3 (pid 4242, pod ml/llm-0) made 50% fewer launches per second; 10.0 s of",
		"  20.0 s were lost.",
		"    80%  host delay: launching threads waited 4.0 s more for a CPU",
		"    20%  unexplained: no known event at the same time accounts for it",
		"  Affected operations",
		"   bubble (between calls)      800.0 us instead of 10.0 us",
		"", "",
	}
	if diff := cmp.Diff(want, got[1:]); diff != "" {
		t.Error(diff)
	}
	var l journal.Line
	if err := json.Unmarshal([]byte(watchSlowing(t, leastWindows, true)), &l); err != nil || l.Cause() != anomaly.HostDelay {
		t.Errorf("%v: %+v", err, l)
	}
}

// A duration too short to detect anything is rejected with the minimum.
func TestExplainRefuses(t *testing.T) {
	t.Parallel()
	f := func(want string, args ...string) {
		t.Helper()
		cmd := (&explainCommand{traceEnv: fakeEnv(nil)}).command()
		cmd.SetArgs(args)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	f("--duration must be at least 1m30s, 9 windows of 10s, is 1m0s: one to start from, 6 to learn the baseline and 2 slow ones", "--duration", "1m")
	f("at least 9s, 9 windows of 1s, is 8s", "--duration", "8s", "--interval", "1s")
	f("--interval must be at least 1s", "--duration", "8s", "--interval", "1ms")
	f("give only one of them", "--duration", "2m", "--since", "1h")
}
