package hub

import (
	"bufio"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// copyStore copies a store and keeps the times of its files.
func copyStore(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o750)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, rel), b, 0o600); err != nil {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		return os.Chtimes(filepath.Join(to, rel), i.ModTime(), i.ModTime())
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// brokenStore returns a store that needs every kind of repair of a log: put back after others, copied
// without a damaged record, cut off, out-of-order markers removed.
func brokenStore(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	put(t, s, "g", minutes(10*time.Hour, 200)...)
	put(t, s, "g", minutes(12*time.Hour, 100)...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	failedRepair(t, filepath.Join(dir, "tsdb/wal"))
	hidden := filepath.Join(dir, "hidden")
	lost := filepath.Join(dir, "tsdb/wal/00000000.repair")
	if err := os.Rename(lost, hidden); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir, Options{})
	put(t, s, "other", minutes(3*time.Hour, 100)...)
	put(t, s, "other", minutes(5*time.Hour, 50)...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := lastSegment(t, filepath.Join(dir, "tsdb/wal"))
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2+10] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, lost); err != nil {
		t.Fatal(err)
	}
	cutLog(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "tsdb/lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Catches a repair that loses samples, or cannot be repeated, if the process is killed in the middle
// of it.
func TestKillInRepair(t *testing.T) {
	t.Parallel()
	broken := brokenStore(t)
	content := func(dir string) map[string]any {
		s := openTest(t, dir, Options{})
		defer s.Close()
		var damaged []string
		for _, d := range s.Damaged() {
			damaged = append(damaged, d.What)
		}
		return map[string]any{"g": values(t, s, "g"), "other": values(t, s, "other"), "damaged": len(damaged) > 0}
	}
	began := time.Now()
	repair := func(dir string, after time.Duration) (killed bool) {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "GPUMETER_HUB_REPAIRS="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		lines.Scan()
		began = time.Now()
		if after >= 0 {
			time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
		done := lines.Scan()
		if done && lines.Text() != "done <nil>" {
			t.Fatal(lines.Text())
		}
		_ = cmd.Wait()
		return !done
	}
	whole := copyStore(t, broken)
	repair(whole, -1)
	takes := time.Since(began)
	want := content(whole)
	if g := want["g"].(map[string]map[int64]float64); len(g["0"]) != 300 {
		t.Fatalf("the repair restores %d samples of 300", len(g["0"]))
	}
	kills := 0
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	for range rounds {
		dir := copyStore(t, broken)
		for range 3 {
			if !repair(dir, rand.N(takes)) {
				break
			}
			kills++
		}
		if diff := cmp.Diff(want, content(dir)); diff != "" {
			t.Fatalf("after kills in the repair (-want +got):\n%s", diff)
		}
	}
	t.Logf("killed %d times; the repair takes %v", kills, takes)
}
