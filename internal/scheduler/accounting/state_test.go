package accounting

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Catches a damaged cursor that is not reported or stops the records, and a folder that others can read.
func TestState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	d := &database{now: epoch, backlog: -1}
	for i := range 4 {
		end := epoch.Add(-time.Duration(i) * 25 * time.Minute)
		d.rows = append(d.rows, lateRow{job(i+1, end, end), end})
	}
	s := &sink{got: map[string]int{}}
	if err := newFollower(t, d, s, dir).Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.got) != 1 { // only what ends from now on
		t.Errorf("%d records at first", len(s.got))
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, stateFile): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
	for _, text := range []string{"", "{", `{"version":9,"cursor":5}`, `[]`, `{"version":1}`} {
		if err := os.WriteFile(filepath.Join(dir, stateFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.got = map[string]int{}
		f := newFollower(t, d, s, dir)
		said := 0
		f.Say = func(string, error) { said++ }
		if err := f.Round(t.Context()); err != nil || said != 1 || len(s.got) != 3 {
			t.Errorf("%q: %v, reported %d times, %d rows", text, err, said, len(s.got))
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.json.*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// With an unwritable folder, this process still delivers nothing twice.
	f := newFollower(t, d, s, "/proc/none")
	s.got = map[string]int{}
	f.Since = time.Hour
	for range 3 {
		if err := f.Round(t.Context()); err == nil {
			continue
		}
	}
	for uid, n := range s.got {
		if n != 1 {
			t.Errorf("%s: %d times without a state", uid, n)
		}
	}
}

// Catches a clock that was ahead when the cursor was saved and stops the records.
func TestClock(t *testing.T) {
	dir := t.TempDir()
	d := &database{now: epoch.Add(1000 * time.Hour), backlog: -1}
	s := &sink{got: map[string]int{}}
	if err := newFollower(t, d, s, dir).Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.now = epoch
	f := newFollower(t, d, s, dir)
	if err := f.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.now = epoch.Add(time.Minute)
	d.rows = []lateRow{{job(1, epoch, d.now), d.now}}
	if err := f.Round(t.Context()); err != nil || len(s.got) != 1 {
		t.Errorf("%v, %d rows", err, len(s.got))
	}
}

// Catches an incomplete row that is sent because slurmdbd received the end of a short job before its
// start, and one that is waited for forever.
func TestHalfRow(t *testing.T) {
	d := &database{now: epoch, backlog: -1}
	s := &sink{got: map[string]int{}}
	f := newFollower(t, d, s, t.TempDir())
	round := func(at time.Duration, want int) {
		t.Helper()
		d.now = epoch.Add(at)
		if err := f.Round(t.Context()); err != nil || len(s.got) != want {
			t.Errorf("after %v: %v, %d rows", at, err, len(s.got))
		}
	}
	round(0, 0)
	half, never := job(1, epoch, epoch.Add(10*time.Second)), job(2, epoch, epoch.Add(10*time.Second))
	half.Partition, never.Partition = "", ""
	d.rows = []lateRow{{half, half.End}, {never, never.End}}
	round(20*time.Second, 0)
	d.rows[0].Job.Partition = "gpu"
	round(30*time.Second, 1)
	round(f.Settle+20*time.Second, 2)
	round(f.Settle+40*time.Second, 2)
}

// Catches unbounded state.
func TestBound(t *testing.T) {
	st := &state{Version: 1, Cursor: 1, Delivered: map[string]int64{}}
	for i := range 100 {
		st.Delivered[strconv.Itoa(i)] = int64(1000 + i)
	}
	if n := st.bound(60); n != 40 || len(st.Delivered) > 60 || st.Cursor != 1041 {
		t.Errorf("%d dropped, %d left, cursor %d", n, len(st.Delivered), st.Cursor)
	}
	for _, uid := range slices.Collect(maps.Keys(st.Delivered)) {
		if st.Delivered[uid] < st.Cursor {
			t.Errorf("%s is before the cursor", uid)
		}
	}
}

// Catches a UID that depends on more than the cluster, the job and its times, or changes between
// versions.
func TestUID(t *testing.T) {
	j := job(7, epoch, epoch.Add(time.Minute))
	const want = "06c28bd8e5862496056fe8ccc1560132"
	if got := j.UID(); got != want {
		t.Errorf("%s", got)
	}
	o := j
	o.Name, o.State, o.Elapsed, o.End = "x", "FAILED", 3, o.End.In(time.FixedZone("x", 3600))
	if o.UID() != j.UID() {
		t.Error("the UID depends on more than the run")
	}
	for _, change := range []func(*Job){
		func(j *Job) { j.ID = "8" },
		func(j *Job) { j.Cluster = "d" },
		func(j *Job) { j.Start = j.Start.Add(time.Second) },
		func(j *Job) { j.End = j.End.Add(time.Second) },
	} {
		o := j
		change(&o)
		if o.UID() == j.UID() {
			t.Errorf("%+v has the UID of another row", o)
		}
	}
}
