package view

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// stolen returns three with a workload that uses GPU-a without an allocation and GPU-c used by a
// process of an unknown owner, and the accounts of a day in which another workload ended.
func stolen() (*faulty, Accounts) {
	store := three()
	of := func(name, uuid string, pairs ...string) query.Labels {
		l := query.Labels{fleet.LabelName: name, "gpu_uuid": uuid}
		for i := 0; i < len(pairs); i += 2 {
			l[pairs[i]] = pairs[i+1]
		}
		return l
	}
	thief := []string{"gpu_workload_kind", "statefulset", "gpu_workload_name", "mallory", "gpu_workload_team", "interns", "k8s_namespace_name", "notebooks"}
	store.Add(of(fleet.SeriesAllocation, "GPU-a", thief...), noon, 0)
	store.Add(of(fleet.SeriesWorkloadUtilization, "GPU-a", thief...), noon, 0.25)
	store.Add(of(fleet.SeriesAllocation, "GPU-c", "gpu_workload_kind", "unattributed"), noon, 0.5)
	a := priced()
	inner := a.Bill
	a.Bill = func(ctx context.Context, from, to time.Time) (*Bill, error) {
		b, err := inner(ctx, from, to)
		old := cost.Row{Labels: query.Labels{
			"gpu_uuid": "GPU-a", "host_name": "n2", "gpu_workload_kind": "job", "gpu_workload_name": "old", "k8s_cluster_name": "eu", "k8s_namespace_name": "ml", "user_name": "ada",
			"gpumeter_simulated": "true",
		}}
		old.Amounts = cost.Amounts{Used: 60e6, UsedCost: 1e6}
		unknown := cost.Row{Labels: query.Labels{"gpu_uuid": "GPU-c", "host_name": "n10", "gpu_workload_kind": "unattributed"}}
		unknown.Amounts = cost.Amounts{Unmeasured: 5400e6, UnmeasuredCost: 3e6}
		*b = *billOf(statement(append(b.Rows, old, unknown)...))
		return b, err
	}
	return store, a
}

// Catches a thief that neither the headline, the tiles, the search nor the workloads show, an ended
// workload that cannot be found, and unattributed use that is counted as a workload.
func TestUninvited(t *testing.T) {
	store, accounts := stolen()
	h := Handler(store, accounts, nil, at(noon))
	ask := func(path string, into any) {
		t.Helper()
		code, body := get(t, h, path)
		if err := json.Unmarshal([]byte(body), into); err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d %v %s", path, code, err, body)
		}
	}
	type counts struct{ GPUs, Held, Free, Uninvited, Owners, Teams int }
	var f struct {
		Headline counts
		Owners   []fleet.Owner
		GPUs     struct {
			UUID      []string
			Uninvited map[int][]int
		}
	}
	ask("/fleet", &f)
	if diff := cmp.Diff(counts{GPUs: 3, Held: 3, Free: 0, Uninvited: 1, Owners: 2, Teams: 1}, f.Headline); diff != "" {
		t.Errorf("headline (-want +got):\n%s", diff)
	}
	taken := map[string]string{}
	for row, owners := range f.GPUs.Uninvited {
		taken[f.GPUs.UUID[row]] = f.Owners[owners[0]].Name
	}
	if diff := cmp.Diff(map[string]string{"GPU-a": "mallory"}, taken); diff != "" {
		t.Errorf("tiles (-want +got):\n%s", diff)
	}

	type row struct {
		Name                  string
		GPUs, Uninvited, Busy float64
	}
	var w struct {
		Simulated string
		Workloads []struct {
			Name                         string
			GPUs, Uninvited, Utilization float64
		}
		Notes []string
	}
	ask("/workloads", &w)
	var got []row
	for _, x := range w.Workloads {
		got = append(got, row{x.Name, x.GPUs, x.Uninvited, x.Utilization})
	}
	slices.SortFunc(got, func(a, b row) int { return strings.Compare(a.Name, b.Name) })
	want := []row{{"mallory", 0, 1, 0.25}, {"md", 1, 0, 0}, {"old", 0, 0, 0}, {"train", 1, 0, 0.875}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("workloads (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1.5 GPU-hours belong to no workload above: they were held by processes of unknown owners, or by workloads beyond the limit of an agent, for 3.00 EUR."}, w.Notes); diff != "" || w.Simulated != "some" {
		t.Errorf("notes (-want +got):\n%s\nsimulated %q", diff, w.Simulated)
	}

	search := func(q string, want ...hit) {
		t.Helper()
		var s struct{ Hits []hit }
		ask("/search?q="+q, &s)
		if diff := cmp.Diff(want, s.Hits, cmp.AllowUnexported(hit{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("search for %s (-want +got):\n%s", q, diff)
		}
	}
	search("mallory", hit{Type: "workload", ID: "statefulset//notebooks/mallory/", Title: "mallory", Detail: "statefulset · notebooks · interns · uses 1 GPU without an allocation"},
		hit{Type: "gpu", ID: "GPU-a", Title: "n2 GPU 9", Detail: "NVIDIA H100 · used by mallory without an allocation, train"})
	search("ada", hit{Type: "workload", ID: "job/eu/ml/old/", Title: "old", Detail: "job · ml · ml · ended"})
	search("unattributed")

	var one struct{ GPUs struct{ UUID []string } }
	ask("/workload?id=statefulset%2F%2Fnotebooks%2Fmallory%2F", &one)
	if diff := cmp.Diff([]string{"GPU-a"}, one.GPUs.UUID); diff != "" {
		t.Errorf("its GPUs (-want +got):\n%s", diff)
	}

	type part struct {
		Team string
		Time float64
	}
	var c struct {
		Simulated string
		Teams     []part
	}
	ask("/cost", &c)
	if diff := cmp.Diff([]part{{"vision", 86400}, {"(unattributed)", 5400}, {"ml", 60}, {"(unallocated)", 86400}}, c.Teams); diff != "" || c.Simulated != "some" {
		t.Errorf("teams (-want +got):\n%s\nsimulated %q", diff, c.Simulated)
	}
}

// Catches charts of a day for data of minutes.
func TestSince(t *testing.T) {
	f := func(age time.Duration, want int64) {
		t.Helper()
		m := querytest.NewMemory()
		for at := -age; at <= 0 && age > 0; at += time.Minute {
			m.Add(query.Labels{fleet.LabelName: fleet.SeriesUp, "gpu_uuid": "a"}, noon.Add(at), 1)
		}
		var got sinceAnswer
		_, body := get(t, Handler(m, Accounts{}, nil, at(noon)), "/since")
		if err := json.Unmarshal([]byte(body), &got); err != nil || got.Seconds != want {
			t.Errorf("data of %v: %s, want %d s (%v)", age, body, want, err)
		}
	}
	f(0, 0)
	f(time.Minute, 900)
	f(14*time.Minute, 900)
	f(16*time.Minute, 1800)
	f(3*time.Hour, 3*3600+900)
	f(30*time.Hour, 86400)
}
