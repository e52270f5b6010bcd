package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
)

func at(seconds int) time.Time { return time.Date(2026, 11, 15, 12, 0, seconds, 0, time.UTC) }

func line(state anomaly.State) Line {
	return Line{Words: "slower", Anomaly: anomaly.Anomaly{
		State: state, Time: at(20), Since: at(10), PID: 1, Process: "python3", Device: "GPU-0", Op: anomaly.Step, Baseline: 1e-3, Observed: 2e-3,
		Lost: 10 * time.Second, Over: 20 * time.Second, Unexplained: 0.25,
		Explanations: []anomaly.Explanation{{Cause: anomaly.Neighbour, Share: 0.75, Seconds: 7.5, Fact: "job 7 has 60 % of the GPU"}},
	}, Attributes: map[string]string{"gpu.uuid": "GPU-0"}}
}

// Catches a line that is not read back, and one older than requested that is.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "anomalies.jsonl")
	lines := []Line{line(anomaly.Open), line(anomaly.Ended)}
	for _, l := range lines {
		if err := Append(path, []Line{l}); err != nil {
			t.Fatal(err)
		}
	}
	got, skipped, err := Read(path, at(0))
	if diff := cmp.Diff(lines, got); diff != "" || skipped != 0 || err != nil {
		t.Error(diff, skipped, err)
	}
	if got, _, _ := Read(path, at(21)); len(got) != 0 {
		t.Errorf("%d lines older than requested", len(got))
	}
}

// Catches an unbounded file, more than one rotated file, and lost newest lines.
func TestJournalIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "anomalies.jsonl")
	line := line(anomaly.Open)
	line.Words = strings.Repeat("x", 30_000)
	for i := range 400 { // 12 MB
		line.PID = uint32(i)
		if err := Append(path, []Line{line}); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{path, old(path)} {
		if st, err := os.Stat(file); err != nil || st.Size() > maxJournal {
			t.Error(st.Size(), err)
		}
	}
	got, skipped, err := Read(path, at(0))
	if err != nil || skipped != 0 || len(got) < 130 || got[len(got)-1].PID != 399 {
		t.Errorf("%d lines, %d skipped, %v", len(got), skipped, err)
	}
}

// Catches a panic on arbitrary content, and a valid line that is not read.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-15T12:00:00Z","op":"step","text":"x"}` + "\n"))
	f.Add([]byte("{\n\n{}\n[1]\n\x00"))
	f.Add([]byte(`{"time":"2026-11-15T12:00:00Z","op":"step","explanations":[{"share":1e308}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, skipped := parse(text, time.Time{})
		if n := len(list) + skipped; n > strings.Count(string(text), "\n")+1 {
			t.Errorf("%d lines of %q", n, text)
		}
		for _, l := range list {
			if l.Op == "" || l.Time.IsZero() {
				t.Errorf("line %+v", l)
			}
		}
	})
}
