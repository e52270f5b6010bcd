package work

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/workload"
)

var epoch = time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)

func after(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }

// pod returns a pod that was created and started at these seconds; a negative start has not come.
func pod(name string, created, started int) *workload.Job {
	j := &workload.Job{ID: "pod/" + name, Scheduler: "kubernetes", Queue: "ml", Created: after(created)}
	if started >= 0 {
		j.Started = after(started)
	}
	return j
}

// on is a holder of one device.
func on(device string, j *workload.Job, works bool) node.Reading {
	return reading(device, node.Holder{Workload: workload.Workload{ID: j.ID + "/main", Job: j}, Granted: true, Whole: true, Works: works})
}

func reading(uuid string, holders ...node.Holder) node.Reading {
	r := node.Reading{Holders: holders}
	r.ID = device.ID{UUID: uuid}
	return r
}

func see(t testing.TB, w *Watch, s int, readings ...node.Reading) {
	t.Helper()
	if err := w.See(&node.Tick{Time: after(s), Readings: readings}); err != nil {
		t.Fatal(err)
	}
}

func start(t testing.TB, dir string) *Watch {
	t.Helper()
	w, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// sums returns the number of values and their sum in seconds, of all sources.
func sums(w *Watch) map[string][2]float64 {
	out := map[string][2]float64{}
	for _, s := range w.Totals().Sums {
		for _, list := range []scheduler.Histograms{s.Worked, s.Phases} {
			for key, h := range list {
				out[key] = [2]float64{float64(h.Count), h.Sum}
			}
		}
	}
	return out
}

// Catches a job that counts once per device, container or tick; whose first work is that of who had the device before; that counts
// although nobody gave it a device, although it may have worked before anybody watched, or although it never works.
func TestFirstWork(t *testing.T) {
	w := start(t, "")
	f := func(when string, want map[string][2]float64) {
		t.Helper()
		if diff := cmp.Diff(want, sums(w)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	see(t, w, 100, on("A", pod("old", 0, 50), true), on("B", pod("idle before", 0, 50), false), on("C", pod("young", 90, -1), true))
	f("at first", map[string][2]float64{})
	young, two := pod("young", 90, 105), pod("two", 100, 106)
	second := reading("E", node.Holder{Workload: workload.Workload{ID: "sidecar", Job: two}, Granted: true, Whole: true, Works: true})
	see(t, w, 110, on("A", pod("old", 0, 50), true), on("B", pod("idle before", 0, 50), true), on("C", young, false), on("D", two, false), second, on("F", two, false))
	f("one of two containers works on one of three devices", map[string][2]float64{"ml": {1, 10}, "warmup 2-3": {1, 4}})
	part := node.Holder{Workload: workload.Workload{Job: pod("part", 100, 111)}, Granted: true, Works: true, Partition: "mig"}
	uninvited := node.Holder{Workload: workload.Workload{Job: pod("uninvited", 100, 111)}, Works: true}
	ended := node.Holder{Workload: workload.Workload{Job: pod("ended", 100, 111)}, Granted: true, Works: true, Ended: true}
	never := pod("never", 100, 112)
	for i := range 3 {
		see(t, w, 120+10*i, on("C", young, true), on("D", two, true), reading("G", part, uninvited, ended), on("H", never, false))
	}
	f("later", map[string][2]float64{"ml": {3, 10 + 30 + 20}, "warmup 2-3": {1, 4}, "warmup 1": {1, 15}, "warmup part": {1, 9}})

	crashed := pod("crashed", 100, -1)
	crashed.Restarted = true
	slurm := &workload.Job{ID: "slurm/c/7/1", Scheduler: "slurm", Cluster: "c", Queue: "gpu", Created: after(100), Started: after(130)}
	see(t, w, 150, on("A", crashed, true), on("B", slurm, true))
	if got, want := len(w.Totals().Sums), 2; got != want {
		t.Fatalf("%d schedulers, want %d", got, want)
	}
	if got := w.Totals().Sums[1]; got.Source != (Source{"slurm", "c"}) || got.Worked["gpu"].Sum != 50 || got.Phases["warmup 1"].Sum != 20 {
		t.Errorf("Slurm: %+v", got)
	}
	f("also crashed", map[string][2]float64{"ml": {3, 60}, "gpu": {1, 50}, "warmup 2-3": {1, 4}, "warmup 1": {1, 20}, "warmup part": {1, 9}})
}

// Catches the work of the job before, at a tick before the start of the job that has got its device since: a start is told with
// the clock of the API server, and later than the tick.
func TestWorkBeforeStart(t *testing.T) {
	w := start(t, "")
	see(t, w, 0)
	see(t, w, 10, on("A", pod("a", 5, 12), true))
	if got := sums(w); len(got) != 0 {
		t.Errorf("work before the start counts: %v", got)
	}
	see(t, w, 20, on("A", pod("a", 5, 12), true))
	if diff := cmp.Diff(map[string][2]float64{"ml": {1, 15}, "warmup 1": {1, 8}}, sums(w)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a start that is taken from the last restart of a container, although an earlier one was seen.
func TestFirstWorkAfterCrash(t *testing.T) {
	w := start(t, "")
	see(t, w, 0)
	see(t, w, 10, on("A", pod("a", 0, 5), false))
	j := pod("a", 0, 40)
	see(t, w, 50, on("A", j, false))
	j.Started, j.Restarted = time.Time{}, true
	see(t, w, 60, on("A", j, true))
	if diff := cmp.Diff(map[string][2]float64{"ml": {1, 60}, "warmup 1": {1, 55}}, sums(w)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a job that is lost or counts twice when the agent is stopped, killed, or killed while the disk is full; a count that is
// reported before it is kept, so that it falls later; and first work that is said to have come when an agent returned that was away
// for long.
func TestFirstWorkOverRestarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	w := start(t, dir)
	f := func(when string, want map[string][2]float64) {
		t.Helper()
		if diff := cmp.Diff(want, sums(w)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	a, b, c, d := pod("a", 0, 5), pod("b", 0, 5), pod("c", 0, 5), pod("d", 0, 5)
	all := func(works ...bool) []node.Reading {
		return []node.Reading{on("A", a, works[0]), on("B", b, works[1]), on("C", c, works[2]), on("D", d, works[3])}
	}
	see(t, w, 0)
	see(t, w, 10, all(true, false, false, false)...)
	one := map[string][2]float64{"ml": {1, 10}, "warmup 1": {1, 5}}
	f("one", one)
	if _, err := New(dir); err == nil || !strings.Contains(err.Error(), "in use by another agent") {
		t.Errorf("a second agent has the same folder: %v", err)
	}
	kill(t, w)
	w = start(t, dir)
	f("killed", one)
	see(t, w, 20, all(true, true, false, false)...)
	two := map[string][2]float64{"ml": {2, 30}, "warmup 1": {2, 20}}
	f("one began while nobody watched", two)

	if err := os.Mkdir(filepath.Join(dir, "work.json.tmp"), 0o700); err != nil { // the disk is full
		t.Fatal(err)
	}
	if err := w.See(&node.Tick{Time: after(30), Readings: all(true, true, true, false)}); err == nil {
		t.Error("nobody says that the counts cannot be kept")
	}
	f("not kept", two)
	kill(t, w)
	if err := os.RemoveAll(filepath.Join(dir, "work.json.tmp")); err != nil {
		t.Fatal(err)
	}
	w = start(t, dir)
	see(t, w, 40, all(true, true, true, false)...)
	three := map[string][2]float64{"ml": {3, 70}, "warmup 1": {3, 55}}
	f("counted again", three)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w = start(t, dir)
	since := w.Totals().Since
	later := int(maxGap/time.Second) + 60
	see(t, w, later, append(all(true, true, true, true), on("E", pod("e", 30, 50), true), on("F", pod("f", later-30, later-20), true))...)
	f("away for long", map[string][2]float64{"ml": {4, 70 + 30}, "warmup 1": {4, 55 + 20}})
	if !since.Equal(epoch) || !w.Totals().Since.Equal(epoch) {
		t.Errorf("counts since %v, want %v", since, epoch)
	}
	kill(t, w)
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte(`{"version":1,"jobs":{"x":null}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	bad, err := New(dir)
	if err == nil || !strings.Contains(err.Error(), "work.json.bad") {
		t.Errorf("a broken file: %v", err)
	}
	w = bad
	see(t, w, later+10, all(true, true, true, true)...)
	f("anew", map[string][2]float64{})
}

// kill ends a process without a last word.
func kill(t *testing.T, w *Watch) {
	t.Helper()
	if err := w.file.lock.Close(); err != nil {
		t.Fatal(err)
	}
}

// Catches a count that is not the number of jobs that worked, in random lives of jobs with an agent that is killed at random.
func TestFirstWorkOfMany(t *testing.T) {
	type life struct{ created, started, works, ends int }
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 0))
		dir := filepath.Join(t.TempDir(), "work")
		var jobs []life
		for range 40 {
			l := life{created: r.IntN(600)}
			l.started = l.created + r.IntN(60)
			l.works = l.started + r.IntN(300)
			l.ends = l.works + 25 + r.IntN(100) // two ticks, of which one may come too late
			if r.IntN(4) == 0 {
				l.works = l.ends + 1 // never
			}
			jobs = append(jobs, l)
		}
		w := start(t, dir)
		see(t, w, -1)
		want, sum := 0.0, 0.0
		counted := map[int]bool{}
		for now := 0; now < 1200; now += 10 {
			if r.IntN(8) == 0 { // it may miss no job: who restarts it is faster than a job ends
				if r.IntN(2) == 0 {
					kill(t, w)
				} else if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				w = start(t, dir)
			}
			var list []node.Reading
			for i, l := range jobs {
				if now < l.created || now >= l.ends {
					continue
				}
				j := pod(strconv.Itoa(i), l.created, -1)
				if now >= l.started {
					j.Started = after(l.started)
				}
				works := now >= l.works
				list = append(list, on("D"+strconv.Itoa(i), j, works))
				if works && !counted[i] {
					counted[i] = true
					want++
					sum += float64(now - l.created)
				}
			}
			see(t, w, now, list...)
		}
		if got := sums(w)["ml"]; got != [2]float64{want, sum} {
			t.Fatalf("seed %d: %v, want %v jobs with %v s", seed, got, want, sum)
		}
		kill(t, w)
	}
}

// Catches a list of jobs that grows without end.
func TestJobsAreBounded(t *testing.T) {
	w := start(t, "")
	see(t, w, 0)
	var many []node.Holder
	for i := range maxJobs + 10 {
		many = append(many, node.Holder{Workload: workload.Workload{Job: pod(strconv.Itoa(i), 0, 5)}, Granted: true})
	}
	see(t, w, 10, reading("A", many...))
	if len(w.state.Jobs) != maxJobs || w.Refused() != 10 {
		t.Errorf("%d jobs, %d left out", len(w.state.Jobs), w.Refused())
	}
	see(t, w, 20+int(keep/time.Second))
	if len(w.state.Jobs) != 0 {
		t.Errorf("%d jobs are not forgotten", len(w.state.Jobs))
	}
}

// Catches a file that a fuzzer finds and that ends the process.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":1,"since":"2026-11-19T12:00:00Z","jobs":{"pod/a":{"seen":"2026-11-19T12:00:00Z","done":true}},"sums":[{"scheduler":"kubernetes","worked":{"ml":[10,0,1]},"phases":{"warmup 1":[5,0,1]}}]}`))
	f.Fuzz(func(_ *testing.T, b []byte) {
		s, err := parse(b)
		if err != nil {
			return
		}
		w := &Watch{state: *s}
		_ = w.See(&node.Tick{Time: epoch, Readings: []node.Reading{on("A", pod("a", 0, 5), true), on("B", pod("b", -1, -1), true)}})
		w.Totals()
	})
}
