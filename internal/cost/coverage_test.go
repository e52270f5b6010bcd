package cost

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches a bill that is smaller because agents were away, and does not say so.
func TestCover(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	// run writes a device that is held and seen between two minutes, every ten seconds.
	held := map[string]float64{}
	run := func(uuid string, from, to int) {
		for s := from * 60; s <= to*60; s += 10 {
			at := noon.Add(time.Duration(s) * time.Second)
			m.Add(query.Labels{"__name__": fleet.SeriesUp, "gpu_uuid": uuid, "gpu_index": uuid[1:], "gpu_model": "H100", "host_name": "n1"}, at, 1)
			one(m, at, held[uuid], 0, "gpu_uuid", uuid, "host_name", "n1", "k8s_pod_uid", uuid)
			held[uuid] += 10
		}
	}
	run("g0", -10, 70)
	run("g1", -10, 10) // away from 10 to 50
	run("g1", 50, 70)
	run("g2", 20, 70)   // new
	run("g3", -10, 40)  // away since
	run("g4", -120, -5) // away throughout
	p := mustParse(t, `
currency: EUR
prices:
- match: {model: H100}
  rates: [{from: 2020-01-01, kind: spot, per_hour: 3}, {from: `+noon.Add(30*time.Minute).Format(time.RFC3339)+`, kind: spot, per_hour: 6}]
`)
	s := mustBill(t, m, p, noon, noon.Add(time.Hour))
	got, err := Cover(t.Context(), m, p, &s, nil)
	if err != nil {
		t.Fatal(err)
	}
	const minute = Seconds(60e6)
	gpu := func(i string, unknown Seconds, cost Money, why ...Unknown) Covered {
		return Covered{Node: "n1", GPU: i, UUID: "g" + i, Model: "H100", Known: 60*minute - unknown, Unknown: unknown, Why: why, Cost: cost}
	}
	// The price doubles after half of the hour: what is missing before and after it has its own price.
	want := &Coverage{
		GPUs: []Covered{
			// The account of g1 continues where it was: 40 minutes and the 10 seconds of the sample at 50.
			gpu("0", 0, 0), gpu("1", 40*minute-10e6, 2_987_500, Unknown{Gap, 40*minute - 10e6}),
			gpu("2", 20*minute, 1_000_000, Unknown{NotSeenBefore, 20 * minute}), gpu("3", 20*minute, 2_000_000, Unknown{NotSeenSince, 20 * minute}),
			gpu("4", 60*minute, 4_500_000, Unknown{NotSeen, 60 * minute}),
		},
		Known: 160*minute + 10e6, Unknown: 140*minute - 10e6, Cost: 10_487_500, From: noon, To: noon.Add(time.Hour), Tolerance: 90 * time.Second,
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Covered{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var names []string
	for _, g := range got.Incomplete() {
		names = append(names, g.UUID)
	}
	if diff := cmp.Diff([]string{"g4", "g1", "g2", "g3"}, names); diff != "" {
		t.Errorf("incomplete (-want +got):\n%s", diff)
	}
}

// Catches hours of a dead node that are in no row, rows that change the total of what is known, and
// the price of the last workload for hours that nobody knows anything about.
func TestNotSeenRows(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for s := 0; s <= 1800; s += 10 { // dead after half an hour
		at := noon.Add(time.Duration(s) * time.Second)
		more := []string{"gpu_uuid", "g", "gpu_model", "H100", "host_name", "n1", "k8s_cluster_name", "eu", "k8s_node_label_pool", "spot", "k8s_namespace_name", "ml", "gpu_workload_team", "vision"}
		one(m, at, float64(s), 0, more...)
		up := query.Labels{"__name__": fleet.SeriesUp, "gpu_index": "0", "gpu_workload_kind": "job", "gpu_workload_name": "train"}
		for i := 0; i < len(more); i += 2 {
			up[more[i]] = more[i+1]
		}
		m.Add(up, at, 1)
	}
	p := mustParse(t, `
currency: EUR
prices:
- {match: {namespace: ml}, rates: [{from: 2020-01-01, kind: spot, per_hour: 8}]}
- {match: {k8s.node.label.pool: spot}, rates: [{from: 2020-01-01, kind: spot, per_hour: 2}]}
`)
	s := mustBill(t, m, p, noon, noon.Add(time.Hour))
	c, err := Cover(t.Context(), m, p, &s, nil)
	if err != nil {
		t.Fatal(err)
	}
	const half = Seconds(1800e6)
	want := []Row{{
		Labels:  query.Labels{"gpu_uuid": "g", "gpu_model": "H100", "host_name": "n1", "k8s_cluster_name": "eu", "k8s_node_label_pool": "spot", "gpu_workload_kind": "not seen"},
		Amounts: Amounts{NotSeen: half, NotSeenCost: 1e6},
	}}
	if diff := cmp.Diff(want, c.Rows(), cmpopts.IgnoreUnexported(Row{})); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if s.Total.Total() != 4e6 || s.Total.Time() != half {
		t.Errorf("the bill has %s and %v", s.Total.Total(), s.Total.Time())
	}
	for name, want := range map[string]string{"team": "(not seen)", "workload": "(not seen)", "node": "n1", "model": "H100", "cluster": "eu"} {
		d, _ := DimensionOf(name)
		groups, sum := c.NotSeen(d)
		amounts := Amounts{NotSeen: half, NotSeenCost: 1e6}
		if diff := cmp.Diff([]Group{{Name: want, Keys: []string{want}, Amounts: amounts, Devices: 1}}, groups); diff != "" || sum.Amounts != amounts {
			t.Errorf("by %s: %+v (-want +got):\n%s", name, sum, diff)
		}
	}
	both := s.Total.Add(c.Rows()[0].Amounts)
	if both.Total() != 4e6 || both.NotSeenCost != 1e6 {
		t.Errorf("%+v", both)
	}
}
