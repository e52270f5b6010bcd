//go:build linux

package inspect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Catches an unbounded recording, and dropped calls that are not counted.
func TestRecordingIsBounded(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	r := newRecording(&b, 2)
	r.process(&tracer.Process{PID: 1, Name: "a"})
	s := tracer.Snapshot{Losses: tracer.Losses{Events: 10}}
	for range 5 {
		s.Events = append(s.Events, tracer.Event{PID: 1, Type: "call", Op: "cuMemFree", Device: -1})
	}
	for _, lost := range []uint64{10, 11} {
		s.Losses.Events = lost
		if err := r.add(&s); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if r.calls != 2 || r.lost() != 9 || !json.Valid([]byte(b.String())) {
		t.Errorf("%d calls, %d lost: %s", r.calls, r.lost(), b.String())
	}
}

// Catches a failed call drawn twice, as a call and as an error, even across two readings, and an error
// that is not drawn because its call was lost.
func TestRecordingDrawsFailureOnce(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	r := newRecording(&b, 10)
	r.process(&tracer.Process{PID: 1, Name: "a"})
	at := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	event := func(kind string, after time.Duration, tid uint32, code int32) tracer.Event {
		return tracer.Event{PID: 1, TID: tid, Type: kind, Op: "cuCtxSynchronize", Device: -1, Code: code, Time: at.Add(after), Duration: time.Microsecond}
	}
	for _, events := range [][]tracer.Event{
		{event("call", 0, 5, 0), event("call", time.Second, 5, 700), event("call", time.Second, 6, 0), event("error", time.Second, 5, 700), event("call", 2*time.Second, 5, 700)},
		{event("error", 2*time.Second+3*time.Microsecond, 5, 700), event("error", 3*time.Second, 5, 700), event("error", 3*time.Second, 7, 700)},
	} {
		if err := r.add(&tracer.Snapshot{Time: at, Events: events}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	var got struct{ TraceEvents []traceEvent }
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatal(err)
	}
	var drawn []string
	for _, e := range got.TraceEvents {
		if e.Phase == "X" {
			drawn = append(drawn, fmt.Sprintf("%d at %.0f: %v", e.TID, e.TS, e.Args["result"]))
		}
	}
	want := []string{"5 at 0: <nil>", "5 at 1000000: 700", "6 at 1000000: <nil>", "5 at 2000000: 700", "5 at 3000000: 700", "7 at 3000000: 700"}
	if diff := cmp.Diff(want, drawn); diff != "" {
		t.Error(diff)
	}
}
