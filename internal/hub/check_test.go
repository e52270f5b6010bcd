package hub

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/hub/disk"
	"github.com/gpumeter/gpumeter/internal/hub/events"
)

// Catches a check that misses damage, takes a healthy store for damaged, changes something, or
// cannot run beside a hub.
func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all, blocks := storeWithBlocks(t, dir)
	ids := blockIDs(t, dir)
	s := openTest(t, dir, Options{})
	if err := s.AppendEvents(t.Context(), []events.Event{{Time: now, Body: "x"}, {Time: now.Add(time.Second), Body: "y"}}); err != nil {
		t.Fatal(err)
	}
	check := func(dir string) *disk.Report {
		t.Helper()
		before := snapshot(t, dir)
		r, err := disk.Check(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
			t.Errorf("check changed files (-before +after):\n%s", diff)
		}
		return r
	}
	running := check(dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	stopped := check(dir)
	if !running.InUse || stopped.InUse {
		t.Errorf("in use: %v beside a hub, %v without", running.InUse, stopped.InUse)
	}
	for _, r := range []*disk.Report{running, stopped} {
		var got []string
		for _, b := range r.Blocks {
			got = append(got, fmt.Sprintf("%s %s %d series %d samples %s", b.ID, b.Range, b.Series, b.Samples, b.Damage))
		}
		var want []string
		for i, id := range ids {
			first, last := time.UnixMilli(blocks[i][0]).UTC(), time.UnixMilli(blocks[i][len(blocks[i])-1]+20_000).UTC()
			want = append(want, fmt.Sprintf("%s %s to %s 5 series %d samples ", id, first.Format(time.RFC3339), last.Format(time.RFC3339), 5*len(blocks[i])))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("blocks (-want +got):\n%s", diff)
		}
		if r.Events.Events != 2 || len(r.Problems) > 0 || len(r.Repairs) > 0 || len(r.SetAside) > 0 {
			t.Errorf("%+v", r)
		}
		last := r.Logs[slices.IndexFunc(r.Logs, func(f disk.Files) bool { return f.Name == "tsdb/wal" })]
		if last.Range.To.UnixMilli() != all[len(all)-1] {
			t.Errorf("the log ends at %v", last.Range)
		}
	}
	damaged := func(title, file string, at int) {
		t.Helper()
		dir := copyStore(t, dir)
		path := filepath.Join(dir, strings.ReplaceAll(file, "BLOCK", ids[1]))
		if found, err := filepath.Glob(path); err == nil && len(found) > 0 {
			path = found[0]
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[(at+len(b))%len(b)] ^= 0x11
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r := check(dir)
		if len(r.Problems) != 1 || !strings.HasPrefix(strings.TrimPrefix(path, dir+"/"), r.Problems[0].Path) || r.Problems[0].Reason == "" || r.Problems[0].Range.From.IsZero() {
			t.Errorf("%s: problems %+v", title, r.Problems)
		}
	}
	damaged("series in the index", "tsdb/BLOCK/index", 250)
	damaged("labels in the index", "tsdb/BLOCK/index", -400)
	damaged("samples", "tsdb/BLOCK/chunks/000001", 1000)
	damaged("last sample", "tsdb/BLOCK/chunks/000001", -6)
	damaged("log", "tsdb/wal/0*", 1000)
	damaged("head chunks", "tsdb/chunks_head/0*", 200)
	damaged("event", "events/0*", 0)
}

// Catches a block whose damage is not seen at the start, and that makes every query of its time fail
// for good.
func TestScrub(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all, blocks := storeWithBlocks(t, dir)
	ids := blockIDs(t, dir)
	path := filepath.Join(dir, "tsdb", ids[1], "chunks/000001")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[1000] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, dir, Options{})
	await.True(t, "the damaged block to be set aside", func() bool { return len(s.Damaged()) == 1 })
	if diff := cmp.Diff([]string{"damaged parts of the store that were set aside: 1; gpumeter hub check lists them"}, s.State()); diff != "" {
		t.Error(diff)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	want := wantValues(all...)
	for _, points := range want {
		for _, ms := range blocks[1] {
			delete(points, ms)
		}
	}
	s = openTest(t, dir, Options{})
	if diff := cmp.Diff(want, values(t, s, "g")); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}

// Catches a check beside a hub that takes files that are written or deleted meanwhile for damaged.
func TestCheckBesideHub(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for ms := ago(20 * time.Hour); ; ms += 60_000 {
			select {
			case <-stop:
				return
			default:
			}
			if ms > ago(0) {
				return
			}
			a := s.Appender(context.Background())
			for i := range 50 {
				a.Gauge(name("g", "i", fmt.Sprint(i)), ms, float64(ms)*1.1)
				a.Gauge(name("late", "i", fmt.Sprint(i)), ms-2*3_600_000, float64(ms)*1.1)
			}
			if _, err := a.Commit(); err != nil {
				t.Error(err)
			}
			if ms/60_000%60 == 0 {
				if err := s.db.Compact(context.Background()); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for range 20 {
		r, err := disk.Check(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if !r.InUse || len(r.Problems) > 0 {
			t.Fatalf("%+v", r)
		}
	}
	close(stop)
	<-stopped
}
