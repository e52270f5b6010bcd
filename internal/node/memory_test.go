package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Catches memory of workloads that does not add up to the device: what the driver itself uses
// was lost if several workloads hold the whole device.
func TestMemoryAddsUp(t *testing.T) {
	const a, b = 1, 2 // PIDs
	whose := map[uint32]workload.Workload{a: pod("a"), b: pod("b")}
	f := func(name string, used device.Value, processes map[uint32]device.Value, parts map[string]float64, want map[string]float64) {
		t.Helper()
		r := &Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}, Memory: device.Memory{Used: used}}, Up: true}
		o := owners{processes: whose}
		for _, pid := range []uint32{a, b} {
			if v, ok := processes[pid]; ok {
				r.Processes = append(r.Processes, device.Process{PID: pid, MemoryUsed: v})
			}
		}
		for _, id := range []string{"a", "b"} {
			if part, ok := parts[id]; ok {
				h := workload.Holding{Workload: pod(id), Device: "A", Part: part, Evidence: workload.ByDevice}
				if part == 0 {
					h.Evidence = workload.ByProcess
				}
				o.holdings = append(o.holdings, h)
			}
		}
		got := map[string]float64{}
		for _, s := range (cut{device: r}).shares(o) {
			if v, ok := s.memory.Get(); ok {
				got[s.Name+s.Kind] = v
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	both := map[uint32]device.Value{a: device.Of(10), b: device.Of(30)}
	half := map[string]float64{"a": 0.5, "b": 0.5}
	const da, db = "adeployment", "bdeployment"
	f("everything is held", device.Of(48), both, half, map[string]float64{da: 14, db: 34})
	f("in unequal parts", device.Of(48), both, map[string]float64{"a": 0.25, "b": 0.75}, map[string]float64{da: 12, db: 36})
	f("a part is free", device.Of(48), both, map[string]float64{"a": 0.25, "b": 0.25}, map[string]float64{da: 10, db: 30, "unallocated": 8})
	f("given to one, used by two", device.Of(48), both, map[string]float64{"a": 1, "b": 0}, map[string]float64{da: 18, db: 30})
	f("one has no process", device.Of(48), map[uint32]device.Value{a: device.Of(10)}, half, map[string]float64{da: 10 + 19, db: 19})
	f("processes have more than the device", device.Of(20), both, half, map[string]float64{da: 5, db: 15})
	f("the device does not report it", device.Value{}, both, half, map[string]float64{da: 10, db: 30})
	f("the processes do not report it", device.Of(48), map[uint32]device.Value{a: {}, b: {}}, half, map[string]float64{})
}
