package events

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// now is the time of the tests, not a round number so that nothing fits by chance.
var now = time.Date(2026, 3, 7, 13, 14, 15, 161_000_000, time.UTC)

const retention = 30 * 24 * time.Hour

// open opens a log. MaxBytes and Evicted have defaults.
func open(t *testing.T, dir string, o Options) *File {
	t.Helper()
	o.MaxBytes = cmp.Or(o.MaxBytes, 256<<20)
	o.Retention, o.Now = retention, func() time.Time { return now }
	if o.Evicted == nil {
		o.Evicted = func(share.Node, int, bool) {}
	}
	f, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func add(t *testing.T, f *File, list ...Event) {
	t.Helper()
	if err := f.Append(list); err != nil {
		t.Fatal(err)
	}
}

func bodies(t *testing.T, f *File, q Query) []string {
	t.Helper()
	list, err := f.Events(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range list {
		out = append(out, e.Body)
	}
	return out
}

func event(body string, ago time.Duration, attrs ...string) Event {
	e := Event{Time: now.Add(-ago), Name: "n-" + body, Body: body, Attributes: map[string]string{}}
	for i := 0; i < len(attrs); i += 2 {
		e.Attributes[attrs[i]] = attrs[i+1]
	}
	return e
}

// Catches events that a restart loses, duplicates or chokes on, and filters that let others
// through.
func TestEvents(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir, Options{})
	add(t, f, event("a", 3*time.Minute, "host.name", "x"), event("b", time.Minute, "host.name", "y"))
	add(t, f, event("late", 2*time.Minute, "host.name", "x"), event("b", time.Minute, "host.name", "y"))
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// A kill in the middle of a write leaves a truncated record.
	file := filepath.Join(dir, "00000001.jsonl")
	out, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.WriteString("not json\n" + `{"time":"2026-03-07T13:00:00Z","bo`); err != nil {
		t.Fatal(err)
	}
	out.Close()
	f = open(t, dir, Options{})
	add(t, f, event("a", 3*time.Minute, "host.name", "x"), event("c", 0))
	for _, c := range []struct {
		q    Query
		want []string
	}{
		{Query{}, []string{"c", "b", "late", "a"}},
		{Query{Limit: 2}, []string{"c", "b"}},
		{Query{From: now.Add(-2 * time.Minute), To: now.Add(-time.Minute)}, []string{"b"}},
		{Query{Names: []string{"n-a", "n-c"}}, []string{"c", "a"}},
		{Query{Attributes: map[string]string{"host.name": "x"}}, []string{"late", "a"}},
		{Query{Attributes: map[string]string{"host.name": ""}}, []string{"c"}},
		{Query{Text: "LAT"}, []string{"late"}},
	} {
		if diff := gocmp.Diff(c.want, bodies(t, f, c.q)); diff != "" {
			t.Errorf("%+v: %s", c.q, diff)
		}
	}
}

// Catches a record that two processes send, with different words, and that is stored twice; and one that is lost because another
// has the same ID under another name, or none.
func TestEventsWithIDs(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir, Options{})
	other := event("other", 0, recordUID, "1")
	other.Name = "another"
	add(t, f, event("a", 2*time.Minute, recordUID, "1"), event("a", time.Minute, recordUID, "1", "seen.by", "b"), other, event("a", 4*time.Minute), event("a", 5*time.Minute))
	long := event(strings.Repeat("y", maxEvent+1), 0, recordUID, "long", "a", strings.Repeat("z", 1000))
	long.Name = "long"
	for i := range 40 {
		long.Attributes[fmt.Sprint("b", i)] = strings.Repeat("z", 1000)
	}
	add(t, f, long)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = open(t, dir, Options{})
	add(t, f, event("a", time.Minute, recordUID, "1", "seen.by", "c"), long)
	if got := bodies(t, f, Query{}); len(got) != 5 {
		t.Errorf("%.10q", got)
	}
}

// Catches a log that grows without bound, and one that drops its newest events first.
func TestEventsAreBounded(t *testing.T) {
	dir := t.TempDir()
	const size = 64 << 10
	f := open(t, dir, Options{MaxBytes: size})
	for i := range 2000 {
		add(t, f, event(fmt.Sprintf("%d %s", i, strings.Repeat("x", 100)), time.Duration(2000-i)*time.Second))
	}
	add(t, f, event(strings.Repeat("y", maxEvent+1), 0, "long", strings.Repeat("z", maxEvent), "gpu.uuid", "GPU-1"))
	total := int64(0)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range files {
		st, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		total += st.Size()
	}
	if total > size+size/segments {
		t.Errorf("%d bytes in %d files, want %d", total, len(files), size)
	}
	got := bodies(t, f, Query{Limit: 2})
	if len(got) != 2 || !strings.HasPrefix(got[0], "yyy") || len(got[0]) > 2000 || !strings.HasPrefix(got[1], "1999 ") {
		t.Errorf("%.50q", got)
	}
	if cut := bodies(t, f, Query{Attributes: map[string]string{"gpu.uuid": "GPU-1"}}); len(cut) != 1 {
		t.Error("a long event lost its short attributes")
	}
	f.opt.Now = func() time.Time { return now.Add(2 * retention) }
	if got := bodies(t, f, Query{}); len(got) != 0 {
		t.Errorf("%d events exceed the retention", len(got))
	}
}

// Catches a hub, or a sender, whose clock is ahead and for which all other events are too old.
func TestEventsClockAhead(t *testing.T) {
	for _, ahead := range []string{"hub", "sender"} {
		f := open(t, t.TempDir(), Options{MaxBytes: 64 << 10})
		var want []string
		for i := range 100 { // several files
			body := fmt.Sprintf("%d %s", i, strings.Repeat("x", 100))
			add(t, f, event(body, time.Duration(100-i)*time.Second))
			want = append(want, body)
			if i == 20 && ahead == "hub" {
				f.opt.Now = func() time.Time { return now.Add(2 * retention) }
			}
			if i == 20 && ahead == "sender" {
				add(t, f, event("future", -2*retention))
			}
		}
		f.opt.Now = func() time.Time { return now }
		slices.Reverse(want)
		if diff := gocmp.Diff(want, bodies(t, f, Query{To: now})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", ahead, diff)
		}
	}
}

// Catches a race between reader and writer, and reads of truncated events.
func TestEventsTogether(t *testing.T) {
	f := open(t, t.TempDir(), Options{MaxBytes: 64 << 10})
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 100 {
				if err := f.Append([]Event{event(fmt.Sprintf("%d-%d", w, i), time.Duration(i)*time.Second)}); err != nil {
					t.Error(err)
				}
				if _, err := f.Events(t.Context(), Query{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := bodies(t, f, Query{}); len(got) != 400 {
		t.Errorf("%d events", len(got))
	}
}

// FuzzEvents looks for a file that prevents the log from opening.
func FuzzEvents(f *testing.F) {
	f.Add([]byte(`{"time":"2026-03-07T13:00:00Z","body":"x"}` + "\n"))
	f.Add([]byte("\n\n{}\n{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "00000007.jsonl"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		log := open(t, dir, Options{})
		add(t, log, event("after", 0))
		if got := bodies(t, log, Query{Names: []string{"n-after"}}); len(got) != 1 {
			t.Errorf("%q", got)
		}
	})
}
