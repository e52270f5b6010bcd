package cost

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	gpu := func(i string, unknown Seconds, why ...Unknown) Covered {
		return Covered{
			Node: "n1", GPU: i, UUID: "g" + i, Model: "H100", Known: 60*minute - unknown, Unknown: unknown, Why: why,
			AtMost: Money(unknown / minute * 100_000), Priced: true,
		}
	}
	want := &Coverage{
		GPUs: []Covered{
			// The account of g1 continues where it was: 40 minutes and the 10 seconds of the sample at 50.
			gpu("0", 0), gpu("1", 40*minute-10e6, Unknown{Gap, 40*minute - 10e6}),
			gpu("2", 20*minute, Unknown{NotSeenBefore, 20 * minute}), gpu("3", 20*minute, Unknown{NotSeenSince, 20 * minute}), gpu("4", 60*minute, Unknown{NotSeen, 60 * minute}),
		},
		Known: 160*minute + 10e6, Unknown: 140*minute - 10e6, AtMost: 13_983_333, From: noon, To: noon.Add(time.Hour), Tolerance: 90 * time.Second,
	}
	want.GPUs[1].AtMost = 3_983_333
	if diff := cmp.Diff(want, got); diff != "" {
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
