package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/wlog"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/hub/disk"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// snapshot returns a hash of every file below dir but the lock.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "lock" {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = fmt.Sprintf("%d bytes, %x", len(b), sha256.Sum256(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// fill writes a file that leaves no room on the disk.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); err != nil {
			return
		}
	}
}

// sampleTimes returns the times of the samples of one series, in ms.
func sampleTimes(t *testing.T, s *Store, selector string) (out []int64) {
	t.Helper()
	series, err := s.Raw(t.Context(), selector, now.Add(-30*24*time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range series {
		for _, p := range x.Points {
			out = append(out, p.Time.UnixMilli())
		}
	}
	return out
}

// Catches a start on a full disk that begins a repair it cannot finish: after room was made, all
// samples of the log were gone.
func TestRestartOnFullDisk(t *testing.T) {
	mount := smallDisk(t, 28<<20)
	dir, filler := filepath.Join(mount, "hub"), filepath.Join(mount, "filler")
	s := openTest(t, dir, Options{})
	var kept []int64
	for at := ago(20 * time.Hour); ; at += 1000 {
		a := s.Appender(t.Context())
		for i := range 2000 {
			a.Gauge(name("g", "i", fmt.Sprint(i)), at, float64(at)*1.1+float64(i))
		}
		_, err := a.Commit()
		if _, ok := errors.AsType[*disk.RoomError](err); ok {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, at)
	}
	if len(kept) < 100 {
		t.Fatalf("the disk is full after %d requests", len(kept))
	}
	fill(t, filler)
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("closing on a full disk returns %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	cutLog(t, dir)
	fill(t, filler)
	before := snapshot(t, dir)
	for range 3 {
		_, err := Open(dir, Options{})
		if _, ok := errors.AsType[*disk.RoomError](err); !ok {
			t.Fatalf("start on a full disk: %v", err)
		}
	}
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Fatalf("refused starts changed files (-before +after):\n%s", diff)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir, Options{})
	if diff := cmp.Diff(kept, sampleTimes(t, s, `g{i="7"}`)); diff != "" {
		t.Errorf("samples after room was made (-want +got):\n%s", diff)
	}
	if got := s.Damaged(); len(got) > 0 {
		t.Errorf("a record that was cut off counts as damage: %+v", got)
	}
}

// cutLog replaces the padding at the end of the log by half a record, as a full disk does.
func cutLog(t *testing.T, dir string) {
	t.Helper()
	path := lastSegment(t, filepath.Join(dir, "tsdb/wal"))
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b = append(bytes.TrimRight(b, "\x00"), "\x01\x03\xe8\x12\x34\x56\x78 half a record"...)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// lastSegment returns the last segment that is not empty.
func lastSegment(t *testing.T, dir string) string {
	t.Helper()
	_, last, err := wlog.Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	for ; last > 0; last-- {
		if i, err := os.Stat(wlog.SegmentName(dir, last)); err == nil && i.Size() > 0 {
			break
		}
	}
	return wlog.SegmentName(dir, last)
}

// failedRepair leaves dir as the database's own repair does when the disk is full.
func failedRepair(t *testing.T, log string) {
	t.Helper()
	path := lastSegment(t, log)
	if err := os.Rename(path, path+".repair"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// put stores one sample per series and time, in order or not.
func put(t *testing.T, s *Store, metric string, at ...int64) {
	t.Helper()
	for _, ms := range at {
		a := s.Appender(t.Context())
		for i := range 5 {
			a.Gauge(name(metric, "i", fmt.Sprint(i)), ms, float64(ms)+float64(i))
		}
		if r := commit(t, a); r.Refused > 0 {
			t.Fatalf("%+v", r)
		}
	}
}

func minutes(from time.Duration, n int) (out []int64) {
	for i := range n {
		out = append(out, ago(from)+int64(i)*60_000)
	}
	return out
}

// values returns the samples of a metric by series.
func values(t *testing.T, s *Store, metric string) map[string]map[int64]float64 {
	t.Helper()
	series, err := s.Raw(t.Context(), metric, now.Add(-30*24*time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[int64]float64{}
	for _, x := range series {
		points := map[int64]float64{}
		for _, p := range x.Points {
			points[p.Time.UnixMilli()] = p.Value
		}
		out[x.Labels["i"]] = points
	}
	return out
}

func wantValues(at ...int64) map[string]map[int64]float64 {
	out := map[string]map[int64]float64{}
	for i := range 5 {
		out[fmt.Sprint(i)] = map[int64]float64{}
		for _, ms := range at {
			out[fmt.Sprint(i)][ms] = float64(ms) + float64(i)
		}
	}
	return out
}

// Catches segments that an earlier repair set aside and nobody reads, and series that are mixed up
// because the numbers of the lost series were given to others meanwhile.
func TestPutBack(t *testing.T) {
	t.Parallel()
	order, late := minutes(10*time.Hour, 300), minutes(12*time.Hour, 50)
	after, lateAfter := minutes(3*time.Hour, 100), minutes(4*time.Hour, 20)
	f := func(t *testing.T, logs []string, meanwhile bool) {
		t.Parallel()
		dir := t.TempDir()
		s := openTest(t, dir, Options{})
		put(t, s, "g", order...)
		put(t, s, "g", late...)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, log := range logs {
			failedRepair(t, filepath.Join(dir, "tsdb", log))
		}
		want := map[string]map[string]map[int64]float64{"g": wantValues(append(late, order...)...), "other": {}}
		if meanwhile {
			db, err := tsdb.Open(filepath.Join(dir, "tsdb"), nil, nil, (&Store{opt: Options{Retention: DefaultRetention, OutOfOrder: DefaultOutOfOrder}, nodes: share.NewNodes(DefaultMaxSeries)}).tsdbOptions(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, ms := range append(after, lateAfter...) {
				a := db.Appender(t.Context())
				for i := range 5 {
					if _, err := a.Append(0, name("other", "i", fmt.Sprint(i)), ms, float64(ms)+float64(i)); err != nil {
						t.Fatal(err)
					}
				}
				if err := a.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			want["other"] = wantValues(append(lateAfter, after...)...)
		}
		for i := range 3 { // and again after restarts
			s = openTest(t, dir, Options{})
			got := map[string]map[string]map[int64]float64{"g": values(t, s, "g"), "other": values(t, s, "other")}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("start %d (-want +got):\n%s", i, diff)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "tsdb/w*/*.repair")); len(left) > 0 {
			t.Error("still set aside:", left)
		}
	}
	t.Run("at once", func(t *testing.T) { f(t, []string{"wal"}, false) })
	t.Run("both logs at once", func(t *testing.T) { f(t, []string{"wal", "wbl"}, false) })
	t.Run("out-of-order log", func(t *testing.T) { f(t, []string{"wbl"}, false) })
	t.Run("after others", func(t *testing.T) { f(t, []string{"wal"}, true) })
	t.Run("both logs after others", func(t *testing.T) { f(t, []string{"wal", "wbl"}, true) })
}

// store with three blocks of two hours, a log and out-of-order samples; blockTimes are those of the
// blocks.
func storeWithBlocks(t *testing.T, dir string) (all []int64, blockTimes [][]int64) {
	t.Helper()
	s := openTest(t, dir, Options{})
	start := ago(12 * time.Hour)
	start -= start % (2 * time.Hour).Milliseconds()
	for ms := start; ms < ago(0); ms += 20_000 {
		all = append(all, ms)
	}
	put(t, s, "g", all...)
	if err := s.db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, b := range s.db.Blocks() {
		var in []int64
		for _, ms := range all {
			if m := b.Meta(); ms >= m.MinTime && ms < m.MaxTime {
				in = append(in, ms)
			}
		}
		blockTimes = append(blockTimes, in)
	}
	if len(blockTimes) < 3 {
		t.Fatalf("%d blocks", len(blockTimes))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return all, blockTimes
}

// Catches a hub that does not start because of one damaged file, or drops more than the damaged
// part, or does so in silence.
func TestStartDamaged(t *testing.T) {
	t.Parallel()
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[(at+len(b))%len(b)] ^= 0x55; return b }
	}
	cut := func(b []byte) []byte { return b[:len(b)/2] }
	healthy := t.TempDir()
	all, blocks := storeWithBlocks(t, healthy)
	ids := blockIDs(t, healthy)
	empty := func([]byte) []byte { return nil }
	f := func(title, file string, damage func([]byte) []byte, lostBlock bool, aside string) {
		t.Helper()
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			dir := copyStore(t, healthy)
			path := filepath.Join(dir, "tsdb", strings.ReplaceAll(file, "BLOCK", ids[1]))
			if heads, err := filepath.Glob(path); err == nil && len(heads) > 0 {
				path = heads[0]
			}
			aside := strings.ReplaceAll(strings.ReplaceAll(aside, "BLOCK", ids[1]), "HEAD", filepath.Base(path))
			b, err := os.ReadFile(path)
			if err != nil && damage != nil && !strings.HasSuffix(file, "tombstones") {
				t.Fatal(err)
			}
			if damage == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, damage(b), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			want := wantValues(all...)
			if lostBlock {
				for _, points := range want {
					for _, ms := range blocks[1] {
						delete(points, ms)
					}
				}
			}
			var log strings.Builder
			for range 2 {
				s := openTest(t, dir, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
				if diff := cmp.Diff(want, values(t, s, "g")); diff != "" {
					t.Fatalf("samples (-want +got):\n%s", diff)
				}
				if got := s.Damaged(); len(got) != 1 || got[0].Path != aside || got[0].Reason == "" {
					t.Errorf("set aside: %+v", got)
				} else if _, err := os.Stat(filepath.Join(dir, got[0].Aside)); err != nil {
					t.Error(err)
				} else if from := got[0].Range; lostBlock && (from.From.UnixMilli() != blocks[1][0] || from.To.IsZero()) {
					t.Errorf("the time range of the block is %v", from)
				}
				if err := s.db.Compact(context.Background()); err != nil {
					t.Error(err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if n := strings.Count(log.String(), "A damaged part of the store was set aside"); n != 1 {
				t.Errorf("logged %d times:\n%s", n, log.String())
			}
		})
	}
	f("index without its end", "BLOCK/index", cut, true, "tsdb/BLOCK")
	f("empty index", "BLOCK/index", empty, true, "tsdb/BLOCK")
	f("no index", "BLOCK/index", nil, true, "tsdb/BLOCK")
	f("index of another kind", "BLOCK/index", flip(0), true, "tsdb/BLOCK")
	f("index with damaged contents", "BLOCK/index", flip(-10), true, "tsdb/BLOCK")
	f("index with damaged symbols", "BLOCK/index", flip(12), true, "tsdb/BLOCK")
	f("metadata", "BLOCK/meta.json", cut, true, "tsdb/BLOCK")
	f("no metadata", "BLOCK/meta.json", nil, true, "tsdb/BLOCK")
	f("empty chunk segment", "BLOCK/chunks/000001", empty, true, "tsdb/BLOCK")
	f("chunk segment of another kind", "BLOCK/chunks/000001", flip(1), true, "tsdb/BLOCK")
	f("tombstones", "BLOCK/tombstones", func([]byte) []byte { return []byte("not tombstones at all") }, false, "tsdb/BLOCK/tombstones")
	f("head chunks of another kind", "chunks_head/0*", flip(0), false, "tsdb/chunks_head/HEAD")
	f("head chunks with a wrong checksum", "chunks_head/0*", flip(60), false, "tsdb/chunks_head/HEAD")
}

// Catches a damaged log whose samples after the damage are deleted, as the database's own repair does.
func TestDamagedLog(t *testing.T) {
	t.Parallel()
	order, late := minutes(10*time.Hour, 300), minutes(20*time.Hour, 300)
	f := func(log string, damage func(path string, b []byte) error, lost int) {
		t.Helper()
		dir := t.TempDir()
		for i := range 3 { // as many segments
			s := openTest(t, dir, Options{})
			put(t, s, "g", order[i*100:][:100]...)
			put(t, s, "g", late[i*100:][:100]...)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.RemoveAll(filepath.Join(dir, "tsdb/chunks_head")); err != nil { // has copies
			t.Fatal(err)
		}
		path := filepath.Join(dir, "tsdb", log, "00000001")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := damage(path, b); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			s := openTest(t, dir, Options{})
			for series, points := range values(t, s, "g") {
				if len(points) != 600-lost {
					t.Errorf("start %d: %d samples of series %s are gone, want %d, after damage in %s", i, 600-len(points), series, lost, log)
				}
				if points[order[299]] == 0 || points[late[299]] == 0 {
					t.Errorf("start %d: samples after the damage in %s are gone", i, log)
				}
			}
			if n := len(s.Damaged()); n > 1 || n == 0 && lost < 100 {
				t.Errorf("%d parts are set aside", n)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	flip := func(path string, b []byte) error {
		b[2000] ^= 1
		return os.WriteFile(path, b, 0o600)
	}
	remove := func(path string, _ []byte) error { return os.Remove(path) }
	f("wal", flip, 1)
	f("wbl", flip, 1)
	f("wal", remove, 100)
	f("wbl", remove, 100)
}

func blockIDs(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "tsdb", "*", "meta.json"))
	if err != nil {
		t.Fatal(err)
	}
	byTime := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), `"minTime": `)
		at, _, _ := strings.Cut(rest, ",")
		byTime[at] = filepath.Base(filepath.Dir(f))
	}
	var out []string
	for _, at := range slices.Sorted(maps.Keys(byTime)) {
		out = append(out, byTime[at])
	}
	return out
}

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
