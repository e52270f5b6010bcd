package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

var noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// Catches an owner ID that does not survive a URL, or that selects other series, because of special
// characters in a name.
func TestOwnerRoundTrip(t *testing.T) {
	f := func(l query.Labels, id, selector string) {
		t.Helper()
		o, ok := OwnerOf(l)
		if !ok || o.ID != id {
			t.Errorf("got %+v, want ID %s", o, id)
		}
		kind, name, matchers, err := ParseOwner(o.ID)
		if got := strings.Join(matchers, ","); err != nil || got != selector || kind != o.Kind || name != o.Name {
			t.Errorf("%s selects %s, %v; want %s", o.ID, got, err, selector)
		}
	}
	f(query.Labels{"gpu_workload_kind": "job", "gpu_workload_name": `a/b "c"`, "k8s_namespace_name": "é%2F"},
		"job//%C3%A9%252F/a%2Fb%20%22c%22/",
		`gpu_workload_kind="job",k8s_cluster_name="",k8s_namespace_name="é%2F",gpu_workload_name="a/b \"c\"",slurm_job_id=""`)
	f(query.Labels{"gpu_workload_kind": "slurm_job", "gpu_workload_name": "x", "slurm_job_id": "7", "slurm_cluster": "hpc", "k8s_cluster_name": "not this"},
		"slurm_job/hpc//x/7",
		`gpu_workload_kind="slurm_job",slurm_cluster="hpc",k8s_namespace_name="",gpu_workload_name="x",slurm_job_id="7"`)
	for _, kind := range []string{"", "unallocated"} {
		if o, ok := OwnerOf(query.Labels{"gpu_workload_kind": kind}); ok {
			t.Errorf("%q is a workload: %+v", kind, o)
		}
	}
}

func FuzzParseOwner(f *testing.F) {
	f.Add("job/a/b/c/")
	f.Add("////")
	f.Add("job/%zz/b/c/")
	f.Fuzz(func(_ *testing.T, id string) { _, _, _, _ = ParseOwner(id) })
}

// Catches an idle time that ignores a use, a counter reset or the first sample, and one that a
// momentary use interrupts.
func TestStreak(t *testing.T) {
	f := func(want time.Duration, values ...float64) {
		t.Helper()
		var p []query.Point
		for i, v := range values {
			p = append(p, query.Point{Time: noon.Add(time.Duration(i) * time.Minute), Value: v})
		}
		if got := streak(p); got != want {
			t.Errorf("%v: idle for %s, want %s", values, got, want)
		}
	}
	f(0, 5)
	f(3*time.Minute, 5, 5, 5, 5)
	f(2*time.Minute, 0, 60, 60, 60)
	f(0, 0, 60, 120)
	f(time.Minute, 100, 3, 3)
	f(2*time.Minute, 0, 1.2, 1.2) // 2 % of a minute
	f(time.Minute, 0, 1.3, 1.3)
}

// Catches a view of one machine that calls a device idle before it has watched for long enough,
// after a single use, or never.
func TestHistory(t *testing.T) {
	var h History
	active := 0.0
	at := noon
	watch := func(d time.Duration, busy float64) time.Duration {
		var idle time.Duration
		for range d / (5 * time.Second) {
			at = at.Add(5 * time.Second)
			active += 5 * busy
			idle = h.Idle("a", at, active)
		}
		return idle
	}
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if (got - want).Abs() > recentStep {
			t.Errorf("%s: idle for %s, want about %s", what, got, want)
		}
	}
	near("watched for 5 minutes", watch(5*time.Minute, 0), 5*time.Minute)
	near("watched for 15 minutes", watch(10*time.Minute, 0), 15*time.Minute)
	near("in use", watch(4*time.Minute, 0.9), 0)
	near("idle again", watch(20*time.Minute, 0), 20*time.Minute)
	near("used for a hundredth of the time", watch(20*time.Minute, 0.01), 40*time.Minute)
	watch(48*time.Hour, 0)
	if n := len(h.points["a"]); n > int(longAgo/recentStep) {
		t.Errorf("%d points are kept", n)
	}
	h.Forget(func(string) bool { return false })
	near("forgotten", h.Idle("a", at, active), 0)
}
