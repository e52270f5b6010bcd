package host

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// grouped is what the control groups say of a process that has nothing else.
func grouped(t *testing.T, r Reader) Facts {
	t.Helper()
	f, err := r.Process(77)
	if err != nil {
		t.Fatal(err)
	}
	return Facts{
		Throttled: f.Throttled, ThrottledPeriods: f.ThrottledPeriods,
		CPUPressure: f.CPUPressure, IOPressure: f.IOPressure, MemoryPressure: f.MemoryPressure, PressureOf: f.PressureOf,
	}
}

// In a cgroup namespace of our own, the group of another container has no path here. It is
// read where the container has it, if that is its own; else it is absent, never that of
// another.
func TestGroupOutside(t *testing.T) {
	const own = "proc/77/root/sys/fs/cgroup/"
	files := map[string]string{
		"proc/77/stat":       processStat,
		"proc/77/cgroup":     "0::/../../pod/container\n",
		"proc/pressure/cpu":  "some avg10=0.00 total=9000000\n",
		"cgroup/cpu.stat":    "nr_throttled 1\nthrottled_usec 1000000\n", // ours
		own + "cpu.stat":     "nr_throttled 3\nthrottled_usec 2000000\n",
		own + "cpu.pressure": "some avg10=0.00 total=4000000\n",
	}
	machine := Facts{CPUPressure: optional.Of(9), PressureOf: "machine"}
	f := func(what string, change func(root string), extra map[string]string, want Facts) {
		t.Helper()
		all := maps.Clone(files)
		maps.Copy(all, extra)
		r := tree(t, all)
		change(filepath.Join(r.Proc, "77/root"))
		if diff := cmp.Diff(want, grouped(t, r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	same := func(string) {}
	f("the machine's root", same, map[string]string{own + "cgroup.procs": "77\n"}, machine)
	f("another group", same, map[string]string{own + "cgroup.procs": "7\n177\n", own + "cgroup.events": "populated 1\n"}, machine)
	its := map[string]string{own + "cgroup.procs": "1\n77\n", own + "cgroup.events": "populated 1\n"}
	f("its own", same, its, Facts{Throttled: optional.Of(2), ThrottledPeriods: optional.Of(3), CPUPressure: optional.Of(4), PressureOf: "cgroup"})
	f("a link", func(root string) {
		dir := filepath.Join(root, "sys/fs/cgroup")
		if err := os.Rename(dir, filepath.Join(root, "elsewhere")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(root, "elsewhere"), dir); err != nil {
			t.Fatal(err)
		}
	}, its, machine)
}

// The group above was throttled for long, but that is over; that of the process is throttled
// now. Of the longest alone one would not see it.
func TestThrottlingGrows(t *testing.T) {
	at := func(container string) optional.Float {
		return grouped(t, tree(t, map[string]string{
			"proc/77/stat":                  processStat,
			"proc/77/cgroup":                "0::/pod/container\n",
			"cgroup/pod/cpu.stat":           "nr_throttled 900\nthrottled_usec 900000000\n",
			"cgroup/pod/container/cpu.stat": container,
		})).Throttled
	}
	before, after := at("nr_throttled 1\nthrottled_usec 1000000\n"), at("nr_throttled 5\nthrottled_usec 6000000\n")
	if got := after.Since(before); got != optional.Of(5) {
		t.Errorf("it was throttled for %v s meanwhile, want 5", got)
	}
}
