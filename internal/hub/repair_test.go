package hub

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/wlog"

	"github.com/gpumeter/gpumeter/internal/hub/share"
)

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
