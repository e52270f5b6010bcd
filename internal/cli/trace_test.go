//go:build linux

package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
	"github.com/gpumeter/gpumeter/internal/tracer/live"
	"github.com/gpumeter/gpumeter/internal/tracer/tracertest"
)

func fakeEnv(err error) traceEnv {
	return traceEnv{
		tracer: func(live.Options) (inspect.Tracer, error) {
			if err != nil {
				return nil, err
			}
			return tracertest.New(), nil
		},
		view: func(local.Config) (inspect.Machine, error) { return tracertest.Machine{}, nil },
	}
}

// runTrace runs the command on the fake machine.
func runTrace(t *testing.T, fail error, args ...string) (string, error) {
	t.Helper()
	cmd := (&traceCommand{traceEnv: fakeEnv(fail)}).command()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// --json prints one parseable object per interval and nothing else.
func TestTraceJSON(t *testing.T) {
	t.Parallel()
	out, err := runTrace(t, nil, "--json", "--pod", "ml/llm-0", "--interval", "200ms", "--duration", "700ms")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) < 2 {
		t.Fatalf("%d reports: %s", len(lines), out)
	}
	for _, line := range lines {
		var r inspect.Report
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Processes) != 1 || r.Processes[0].PID != 4242 || r.Processes[0].Workload.Name != "llm" || r.Others != 1 || r.Seconds <= 0 {
			t.Errorf("report %s", line)
		}
		if len(r.Processes[0].Ops) != 2 || r.Processes[0].Ops[0].Time.Count == 0 {
			t.Errorf("nothing was called: %s", line)
		}
	}
}

// A duration shorter than the interval still yields a report.
func TestTraceShorterThanTheInterval(t *testing.T) {
	t.Parallel()
	out, err := runTrace(t, nil, "--interval", "1m", "--duration", "200ms")
	if err != nil || strings.Count(out, "python3 (pid 4242") != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

// A report of the screen is drawn over the one before, one of a pipe is not.
func TestTraceRedraws(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{true, false} {
		c := &traceCommand{traceEnv: fakeEnv(nil), terminal: terminal}
		cmd := c.command()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"--interval", "200ms", "--duration", "500ms"})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "\x1b[H") != terminal || !strings.Contains(out.String(), "gemm<float>") {
			t.Errorf("on a terminal %v: %q", terminal, out.String())
		}
	}
}

// Invalid flags are rejected with valid values.
func TestTraceRefuses(t *testing.T) {
	t.Parallel()
	f := func(want string, args ...string) {
		t.Helper()
		if out, err := runTrace(t, nil, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q; %s", args, err, want, out)
		}
	}
	f("--duration must be above 0", "--duration", "-1s")
	f("at most 1m0s", "--perfetto", "x", "--duration", "2m")
	f("mutually exclusive", "--perfetto", "x", "--json")
	f("between 200ms and 5m", "--interval", "1ms")
	f("must be NAMESPACE/NAME", "--pod", "llm")
	f("give only one of", "--pod", "ml/llm", "--pid", "1")
	f("did not call CUDA", "--perfetto", filepath.Join(t.TempDir(), "x"), "--job", "1", "--duration", "300ms")
	missing := errors.New("CAP_BPF is missing: nothing can be traced")
	if _, err := runTrace(t, missing, "--duration", "1s"); err == nil || !errors.Is(err, missing) {
		t.Error(err)
	}
}

// The recording is a valid trace with the calls of the selected process only, and reports how
// many calls were lost.
func TestTracePerfetto(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "calls.json")
	out, err := runTrace(t, nil, "--perfetto", file, "--pid", "4242", "--duration", "600ms")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	type traceEvent struct { // of Chrome's format
		Name string
		Cat  string
		Ph   string
		TS   float64
		Dur  float64
		PID  uint32
		TID  uint32
		Args map[string]any
	}
	var got struct {
		TraceEvents []traceEvent
		Metadata    map[string]any
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	calls := 0
	for _, e := range got.TraceEvents {
		if e.PID != 4242 {
			t.Errorf("a call of process %d", e.PID)
		}
		if e.Ph == "M" {
			if diff := cmp.Diff(traceEvent{Name: "process_name", Ph: "M", PID: 4242, TID: 4242, Args: map[string]any{"name": "python3"}}, e); diff != "" {
				t.Error(diff)
			}
			continue
		}
		calls++
		want := traceEvent{Name: "gemm<float>", Cat: "launch", Ph: "X", TS: e.TS, Dur: 4, PID: 4242, TID: 4243, Args: map[string]any{"call": "cuLaunchKernel", "device": 0.0, "stream": 7.0}}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Error(diff)
		}
	}
	if calls == 0 || calls%3 != 0 || got.Metadata["gpumeter.calls"] != float64(calls) || got.Metadata["gpumeter.lost"] != float64(calls/3) {
		t.Errorf("%d calls, metadata %v", calls, got.Metadata)
	}
	if !strings.Contains(out, "calls of 1 process written") {
		t.Errorf("output %q", out)
	}
}
