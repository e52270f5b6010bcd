package hub

import (
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

	"github.com/gpumeter/gpumeter/internal/hub/disk"
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
