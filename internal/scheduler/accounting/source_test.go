package accounting

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/programtest"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// fakeREST responds like slurmrestd 22.05 or newer, with responses captured from 22.05.
type fakeREST struct {
	t       testing.TB
	old     bool
	fail    int
	queries []string
}

func (f *fakeREST) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/openapi/v3":
		fmt.Fprint(w, `{"paths":{"/slurm/v0.0.38/jobs":{}}}`)
		return
	case r.URL.Path == "/slurm/v0.0.38/diag/":
		fmt.Fprint(w, `{"statistics":{"dbd_agent_queue_size":7}}`)
		return
	case r.URL.Path != "/slurmdb/v0.0.38/jobs/":
		f.t.Errorf("unexpected request for %s", r.URL.Path)
	}
	q := r.URL.Query()
	f.queries = append(f.queries, r.URL.RawQuery)
	seconds := strings.HasPrefix(q.Get("start_time"), "uts") == f.old
	if f.fail != 0 || !seconds || f.old == q.Has("show_duplicates") || strings.Contains(r.URL.RawQuery, ",") {
		w.WriteHeader(cmp.Or(f.fail, http.StatusInternalServerError))
		return
	}
	name := "testdata/22.05/rest-lived.json"
	if q.Get("state") != "" {
		name = "testdata/22.05/rest-ended.json"
	}
	b, err := os.ReadFile(name)
	if err != nil {
		f.t.Error(err)
	}
	_, _ = w.Write(b)
}

var recording = Query{From: unix(1794734100), To: unix(1794735000)}

// Catches a query that a version rejects because of its parameters, and jobs lost because those
// cancelled while pending are in one response only and those requeued in the other.
func TestREST(t *testing.T) {
	for _, old := range []bool{true, false} {
		f := &fakeREST{t: t, old: old}
		server := httptest.NewServer(f)
		defer server.Close()
		s, err := Open(Connection{REST: server.URL, Cluster: "renamed"})
		if err != nil {
			t.Fatal(err)
		}
		jobs, err := s.Jobs(t.Context(), recording)
		if err != nil || len(jobs) != 27 {
			t.Fatalf("old %v: %d jobs, %v", old, len(jobs), err)
		}
		first := len(f.queries)
		if _, err := s.Jobs(t.Context(), recording); err != nil || len(f.queries) != first+2 {
			t.Errorf("old %v: %d requests at first, then %d", old, first, len(f.queries)-first)
		}
		if !slices.IsSortedFunc(jobs, func(a, b Job) int { return a.End.Compare(b.End) }) || jobs[0].Cluster != "renamed" {
			t.Errorf("old %v: %+v", old, jobs[0])
		}
		one, err := s.Jobs(t.Context(), Query{From: recording.From, To: recording.To, Users: []string{"gpu_bob"}, Jobs: []string{"6", "1"}})
		if err != nil || len(one) != 4 {
			t.Errorf("tasks of one array of one user: %d, %v", len(one), err)
		}
		if n, ok := s.Backlog(t.Context()); n != 7 || !ok {
			t.Errorf("backlog %d, %v", n, ok)
		}
		f.fail, f.queries = http.StatusUnauthorized, nil
		if _, err := s.Jobs(t.Context(), recording); err == nil || len(f.queries) != 1 {
			t.Errorf("rejected: %v after %d requests", err, len(f.queries))
		}
	}
	if _, err := Open(Connection{REST: "nowhere"}); err == nil {
		t.Error("an invalid address is accepted")
	}
}

// Catches jobs that only existed in a range, which sacct shows, taken for jobs that ended in it.
func TestRange(t *testing.T) {
	dir := t.TempDir()
	answer, err := filepath.Abs("testdata/22.05/sacct.txt")
	if err != nil {
		t.Fatal(err)
	}
	script := `#!/bin/sh
echo "$*" >> ` + dir + `/asked
for a in "$@"; do case $a in --delimiter=*) d=${a#--delimiter=};; esac; done
exec /bin/sed "s,|~|,$d,g" ` + answer + "\n"
	programtest.Write(t, filepath.Join(dir, "sacct"), script)
	s, err := Open(Connection{Tools: dir})
	if err != nil {
		t.Fatal(err)
	}
	count := func(from, to int64) int {
		t.Helper()
		jobs, err := s.Jobs(t.Context(), Query{From: unix(from), To: unix(to)})
		if err != nil {
			t.Fatal(err)
		}
		return len(jobs)
	}
	if n := count(1794734100, 1794735000); n != 27 {
		t.Errorf("%d jobs in total", n)
	}
	if n := count(1794734253, 1794734253); n != 4 { // both ends are inclusive
		t.Errorf("%d in a second", n)
	}
	if a, b := count(1794734100, 1794734253), count(1794734254, 1794735000); a+b != 27 {
		t.Errorf("%d and %d in two halves", a, b)
	}
	if _, err := s.Jobs(t.Context(), Query{From: unix(1794734100), To: unix(1794735000), Users: []string{"alice"}}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if last := lines[len(lines)-1]; strings.Contains(last, "--allusers") || !strings.Contains(last, "--user=alice") {
		t.Errorf("wrong query: %s", last)
	}
	seen := map[string]bool{}
	for _, line := range lines {
		_, rest, _ := strings.Cut(line, "--delimiter=")
		delimiter, _, _ := strings.Cut(rest, " ")
		if seen[delimiter] || len(delimiter) < 10 {
			t.Errorf("the delimiter %q is predictable", delimiter)
		}
		seen[delimiter] = true
		if !strings.Contains(line, "--allocations --duplicates --noconvert --parsable") && !strings.Contains(line, "--starttime=uts1794734") {
			t.Error(line)
		}
	}
	if _, ok := s.Backlog(t.Context()); ok {
		t.Error("a missing sdiag reports no backlog")
	}
	// A response with unreadable rows still has the others.
	programtest.Write(t, filepath.Join(dir, "sacct"), strings.Replace(script, "s,|~|,$d,g", "s,1794734234,yesterday,;s,|~|,$d,g", 1))
	jobs, err := s.Jobs(t.Context(), recording)
	if !Unreadable(err) || len(jobs) == 0 || len(jobs) >= 27 {
		t.Errorf("%d jobs, %v", len(jobs), err)
	}
	none, err := Open(Connection{Tools: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Jobs(t.Context(), recording); err == nil {
		t.Error("a missing Slurm is not an error")
	}
}

// Catches an unbounded response.
func TestCollectBound(t *testing.T) {
	c := collect{q: Query{To: epoch}, seen: map[string]bool{}, jobs: make([]Job, maxJobs)}
	if err := c.add(job(1, epoch, epoch)); err == nil || !strings.Contains(err.Error(), slurm.ErrTooLong.Error()) {
		t.Error(err)
	}
	c = collect{q: Query{From: epoch, To: epoch.Add(time.Hour), Unfinished: true}, seen: map[string]bool{}}
	running := job(1, epoch, time.Time{})
	running.State = "RUNNING"
	_ = c.add(running)
	_ = c.add(running)
	if len(c.jobs) != 1 {
		t.Errorf("%d jobs", len(c.jobs))
	}
}
