package watch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
)

var began = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

func slowStep(state anomaly.State, seconds int) Line {
	a := anomaly.Anomaly{
		State: state, Time: began.Add(time.Duration(seconds) * time.Second), Since: began, PID: 1, Process: "python3", Device: "GPU-0", Op: anomaly.Step,
		Explanations: []anomaly.Explanation{{Cause: anomaly.Neighbour, Share: 0.75, Seconds: 7.5, Fact: "job 7 has 60 % of the GPU"}},
	}
	return Line{Anomaly: a, Words: a.Text(), Attributes: map[string]string{"k8s.pod.name": "llm-0"}}
}

// What is kept comes back as it was, without what is older than asked for.
func TestJournal(t *testing.T) {
	lines := []Line{slowStep(anomaly.Open, 10), slowStep(anomaly.Ended, 20)}
	j := Journal{filepath.Join(t.TempDir(), "state", "anomalies.jsonl")}
	for _, l := range lines {
		if err := j.Append([]Line{l}); err != nil {
			t.Fatal(err)
		}
	}
	got, skipped, err := ReadJournal(j.Path, began)
	if diff := cmp.Diff(lines, got); diff != "" || skipped != 0 || err != nil {
		t.Error(diff, skipped, err)
	}
	if got, _, _ := ReadJournal(j.Path, began.Add(21*time.Second)); len(got) != 0 {
		t.Errorf("%d lines from before", len(got))
	}
}

// The file is bounded: there is one old one, and the newest lines are never lost.
func TestJournalIsBounded(t *testing.T) {
	j := Journal{filepath.Join(t.TempDir(), "anomalies.jsonl")}
	line := slowStep(anomaly.Open, 10)
	line.Words = strings.Repeat("x", 30_000)
	for i := range 400 { // 12 MB
		line.PID = uint32(i)
		if err := j.Append([]Line{line}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{j.Path, old(j.Path)} {
		if st, err := os.Stat(path); err != nil || st.Size() > maxJournal {
			t.Error(st.Size(), err)
		}
	}
	got, skipped, err := ReadJournal(j.Path, began)
	if err != nil || skipped != 0 || len(got) < 130 || got[len(got)-1].PID != 399 {
		t.Errorf("%d lines, %d skipped, %v", len(got), skipped, err)
	}
}

// Whatever is in the file, what is a line of ours is read and nothing breaks.
func FuzzParseAnomalies(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-15T12:00:00Z","op":"step","text":"x"}` + "\n"))
	f.Add([]byte("{\n\n{}\n[1]\n\x00"))
	f.Add([]byte(`{"time":"2026-11-15T12:00:00Z","op":"step","explanations":[{"share":1e308}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, skipped := parseAnomalies(text, time.Time{})
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
