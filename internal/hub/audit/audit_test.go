package audit

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Catches entries that are lost or mixed up by concurrent requests or a rotation, a file that grows
// without bound or that others can read, and a request that forges a line.
func TestLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := Open(path, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	l.max = 100_000
	const n = 1500 // about 250 bytes each: three full files and the current one
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			for j := range n / 10 {
				l.Write(Entry{Time: time.Unix(0, 0).UTC(), Token: "t", Method: "GET", Path: fmt.Sprint("/", i*n/10+j), Query: "a\n{\"status\":200}", Status: 200, Peer: strings.Repeat("p", 100)})
			}
		})
	}
	all.Wait()
	l.Write(Entry{Path: strings.Repeat("x", 10_000)})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	files, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		st, err := os.Stat(file)
		if err != nil || st.Mode().Perm() != 0o600 || st.Size() > l.max {
			t.Errorf("%s: %v %d bytes %v", file, st.Mode(), st.Size(), err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var e Entry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%s: %q: %v", file, line, err)
			}
			seen[e.Path]++
		}
	}
	want := map[string]int{strings.Repeat("x", maxText) + "…": 1}
	for i := range n {
		want[fmt.Sprint("/", i)] = 1
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if len(files) != 4 {
		t.Errorf("%d files: %s", len(files), files)
	}
}

// Catches a log that writes through a link, and a failure that is reported for each request.
func TestLogFailures(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "audit")
	if err := os.Symlink(filepath.Join(dir, "other"), path); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, nil); err == nil {
		t.Error("a link is followed")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	said := 0
	l, err := Open(path, func(error) { said++ })
	if err != nil {
		t.Fatal(err)
	}
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		l.Write(Entry{})
	}
	if said != 1 {
		t.Errorf("a failure is reported %d times", said)
	}
}
