package view

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/query"
)

// An ID goes into an address and comes back as what selects the same series, whatever
// characters its names have.
func TestOwnerRoundTrip(t *testing.T) {
	f := func(l query.Labels, id, selector string) {
		t.Helper()
		o, ok := ownerOf(l)
		if !ok || o.ID != id {
			t.Errorf("got %+v, want the id %s", o, id)
		}
		if got, err := selects(o.ID); err != nil || got != selector {
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
		if o, ok := ownerOf(query.Labels{"gpu_workload_kind": kind}); ok {
			t.Errorf("%q is a workload: %+v", kind, o)
		}
	}
}

func FuzzSelects(f *testing.F) {
	f.Add("job/a/b/c/")
	f.Add("////")
	f.Add("job/%zz/b/c/")
	f.Fuzz(func(_ *testing.T, id string) { _, _ = selects(id) })
}

// A device is idle since its holder last used it: not before a use, a new start of the
// counter or the first sample, and a moment's use does not count.
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

func TestNatural(t *testing.T) {
	f := func(a, b string, want int) {
		t.Helper()
		if got := natural(a, b); got != want {
			t.Errorf("natural(%q, %q) = %d, want %d", a, b, got, want)
		}
	}
	f("node-9", "node-10", -1)
	f("node-10", "node-9", 1)
	f("a", "a", 0)
	f("a", "a1", -1)
	f("r2n1", "r2n1", 0)
	f("r10", "r2", 1)
}

// Charts have enough points, and never too many.
func TestStepOf(t *testing.T) {
	for _, d := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour, maxSpan} {
		for _, most := range []time.Duration{maxPoints, maxPoints / 4} {
			if n := d / stepOf(d, int(most)); n > most || d > time.Hour && n < most/5 {
				t.Errorf("%s has %d points of %d", d, n, most)
			}
		}
	}
}

// The questions are good PromQL and mean what the names of the fields say: the counts of
// a fleet that is written into a real store come back.
func TestRealStore(t *testing.T) {
	s, err := hub.Open(t.TempDir(), hub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Now().Truncate(time.Minute)
	sim := simulated{nodes: 5, perNode: 8, history: 30 * time.Minute, step: time.Minute}
	sim.fill(t, s, now)
	v := &viewer{store: s, opts: Options{Now: func() time.Time { return now }, Rack: "rack"}}
	f, err := v.fleetAt(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	want := headline{GPUs: 40, Nodes: 5, Simulated: 40, Teams: 5}
	for i := range sim.nodes * sim.perNode {
		n, g := i/sim.perNode, i%sim.perNode
		t := tenants[(i*7/sim.perNode+n)%len(tenants)]
		if t.kind == "" {
			want.Free++
			continue
		}
		want.Held++
		if t.busy == 0 {
			want.Idle++
		}
		if g == 3 && t.sick == 0 {
			want.Sick++
		}
		if g == 3 && t.sick == 0.5 {
			want.Warning++
		}
	}
	got := f.headline()
	got.Owners, got.Watts, got.Utilization, got.LostPerDay, got.CostPerHour = 0, 0, 0, 0, 0 // of which the fake knows nothing
	if diff := cmp.Diff(want, got); diff != "" || got.Idle == 0 {
		t.Errorf("-want +got:\n%s", diff)
	}
	for i := range f.gpus {
		if g := &f.gpus[i]; g.isIdle() && (g.idle < 25 || g.idle > 31) {
			t.Errorf("%s is idle for %v minutes", g.uuid, g.idle)
		}
	}
	for name, c := range charts {
		r := request{from: now.Add(-time.Hour), to: now, values: map[string][]string{"chart": {name}}}
		a, err := v.rangePage(t.Context(), r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if a := a.(*rangeAnswer); a.Unit != c.unit || len(a.Times) > maxPoints+1 {
			t.Errorf("%s: %s, %d points", name, a.Unit, len(a.Times))
		}
	}
}

// Catches a device that does not say whether it is used being shown as always used.
func TestUnmeasuredIsNotUsed(t *testing.T) {
	r := cost.Row{Labels: query.Labels{"gpu_uuid": "GPU-a", "gpu_workload_kind": "job", "gpu_workload_name": "a"}}
	r.Unmeasured = 3600e6
	b := billOf(&cost.Statement{Rows: []cost.Row{r}})
	if got := b.Rows[0]; got.Allocated != 3600 || !math.IsNaN(got.Active) || !math.IsNaN(got.Idle) || !math.IsNaN(got.IdleCost) {
		t.Errorf("an hour that was not measured is %+v", got)
	}
}
