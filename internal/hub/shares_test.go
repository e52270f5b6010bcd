package hub

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// Catches a node with ever new labels that leaves no series for the others, before and after a
// restart, and a refusal that nobody sees.
func TestOneNodeDoesNotFillTheHub(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openTest(t, dir, Options{MaxSeries: 1000})
	send := func(node string, from, to int) Result {
		a := s.Appender(t.Context())
		for i := from; i < to; i++ {
			labels := []string{"i", strconv.Itoa(i)}
			if node != "" {
				labels = append([]string{"host_name", node}, labels...)
			}
			a.Gauge(name("x", labels...), ago(time.Second), 1)
		}
		return commit(t, a)
	}
	if got, want := send("bad", 0, 2000), (Result{
		Accepted: 750, Refused: 1250, Points: 1250,
		Why: "node bad: limit of 750 series per node reached: find out which labels change all the time, or raise --max-series-per-node",
	}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := send("good", 0, 100); got != (Result{Accepted: 100}) {
		t.Errorf("another node: %+v", got)
	}
	if got := send("bad", 0, 750); got != (Result{Accepted: 750}) {
		t.Errorf("known series of the node: %+v", got)
	}
	if got := send("", 0, 10); got != (Result{Accepted: 10}) {
		t.Errorf("series without a node: %+v", got)
	}
	own := s.OwnAppender(t.Context())
	own.Gauge(name("gpumeter_fleet_finding", "host_name", "bad"), ago(0), 1)
	if got := commit(t, own); got != (Result{Accepted: 1}) {
		t.Errorf("a finding about the node: %+v", got)
	}
	if n := s.Refusals().Count(NodeSeriesLimit); n != 1250 {
		t.Errorf("%d are counted", n)
	}
	want := []share.Over{{Node: share.Node{Name: "bad"}, What: share.Series, Count: 1250, First: now, Last: now}}
	if diff := cmp.Diff(want, s.Over(now)); diff != "" {
		t.Error(diff)
	}
	if code, body, _ := ask(t, NewHandler(s, s, HandlerOptions{}), "", http.MethodGet, "/readyz", nil); code != http.StatusOK || body != "ok\nnodes that exceed their share of series: 1" {
		t.Errorf("readyz: %d %q", code, body)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir, Options{MaxSeries: 1000})
	if got := send("bad", 2000, 2010); got.Accepted != 0 || got.Refused != 10 {
		t.Errorf("after a restart: %+v", got)
	}
	if got := send("good", 100, 200); got != (Result{Accepted: 100}) {
		t.Errorf("another node after a restart: %+v", got)
	}
}

// Catches a node whose events push out those of others, or its own rare ones, and a log that
// falls apart into ever more files.
func TestOneNodeKeepsItsEventsFromOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gone := map[share.Node]int{}
	o := EventOptions{MaxBytes: 160_000, Evicted: func(n share.Node, count int, alone bool) {
		if alone {
			t.Error("the noisy node is not alone")
		}
		gone[n] += count
	}}
	f := openEvents(t, dir, o)
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
		appendEvents(t, f, list...)
	}
	slices.Reverse(rare)
	check := func(f *EventFile) {
		t.Helper()
		got := events(t, f, EventQuery{Names: []string{"xid"}})
		if diff := cmp.Diff(sorted(rare), sorted(got)); diff != "" {
			t.Error(diff)
		}
		got = events(t, f, EventQuery{Names: []string{"throttle"}, Limit: 2 * flood})
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
	check(openEvents(t, dir, o))
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
	check(openEvents(t, dir, o))
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }
