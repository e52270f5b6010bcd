package events

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// Catches a node whose events push out those of others, or its own rare ones, and a log that
// falls apart into ever more files.
func TestOneNodeKeepsItsEventsFromOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gone := map[share.Node]int{}
	o := Options{MaxBytes: 160_000, Evicted: func(n share.Node, count int, alone bool) {
		if alone {
			t.Error("the noisy node is not alone")
		}
		gone[n] += count
	}}
	f := open(t, dir, o)
	of := func(node, name string, i int) Event {
		return Event{Time: now.Add(-time.Hour + time.Duration(i)*time.Second), Name: name, Body: fmt.Sprint(node, i), Attributes: map[string]string{"host.name": node}}
	}
	var rare []string
	const flood = 6000
	for i := range flood {
		list := []Event{of("noisy", "throttle", i)}
		if i%600 == 0 {
			list = append(list, of("quiet", "xid", i), of("noisy", "xid", i+1))
			rare = append(rare, fmt.Sprint("quiet", i), fmt.Sprint("noisy", i+1))
		}
		add(t, f, list...)
	}
	slices.Reverse(rare)
	check := func(f *File) {
		t.Helper()
		got := bodies(t, f, Query{Names: []string{"xid"}})
		if diff := cmp.Diff(slices.Sorted(slices.Values(rare)), slices.Sorted(slices.Values(got))); diff != "" {
			t.Error(diff)
		}
		got = bodies(t, f, Query{Names: []string{"throttle"}, Limit: 2 * flood})
		if n := len(got); n < 500 || n+gone[share.Node{Name: "noisy"}] != flood {
			t.Errorf("%d throttles are left, %v were deleted", n, gone)
		}
		for i, body := range got { // the newest
			if want := fmt.Sprint("noisy", flood-1-i); body != want {
				t.Fatalf("throttle %d is %s, want %s", i, body, want)
			}
		}
	}
	check(f)
	if len(gone) != 1 || len(f.files) > 2*segments {
		t.Errorf("deleted %v, %d files", gone, len(f.files))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	check(open(t, dir, o))
	// A kill between the two steps of a merge leaves the first file, and its copy in the second.
	first := f.path(f.files[0])
	text, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	for name, part := range map[string][]byte{"00000000.jsonl": text[:strings.Index(string(text), "\n")+1], filepath.Base(first) + ".tmp": text[:10]} {
		if err := os.WriteFile(filepath.Join(dir, name), part, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check(open(t, dir, o))
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}
