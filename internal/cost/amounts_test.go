package cost

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches the energy of a workload on a device that was not given to it: it is in the total, so its row
// must show it.
func TestEnergyWithoutAnAllocation(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := range 61 {
		at := noon.Add(time.Duration(i) * time.Minute)
		for name, v := range map[string]float64{fleet.SeriesAllocatedTime: 0, fleet.SeriesActiveTime: float64(i * 60), fleet.SeriesEnergy: float64(i * 60 * 1000)} {
			m.Add(query.Labels{"__name__": name, "gpu_uuid": "g", "gpu_model": "H100", "gpu_workload_kind": "job", "gpu_workload_name": "thief", "k8s_pod_uid": "1"}, at, v)
		}
	}
	p := mustParse(t, "{currency: EUR, prices: [{rates: [{from: 2020-01-01, kind: owned, capex: 8766, years: 1}]}], power: [{rates: [{from: 2020-01-01, per_kwh: 0.2}]}]}")
	s := mustBill(t, m, p, noon, noon.Add(time.Hour))
	if len(s.Rows) != 1 || !s.Rows[0].Priced() {
		t.Fatalf("%+v", s.Rows)
	}
	if diff := cmp.Diff(Amounts{Energy: 3.6e9, EnergyCost: 200_000, Uncounted: 3.6e9}, s.Rows[0].Amounts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
