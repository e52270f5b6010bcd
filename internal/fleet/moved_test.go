package fleet

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches a device that is at two nodes, or at the wrong one, after it moved or while two agents
// report it.
func TestMovedDevice(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	m := querytest.NewMemory()
	report := func(host, uuid string, from, to time.Duration) {
		for at := from; at <= to; at += 10 * time.Second {
			l := query.Labels{LabelUUID: uuid, LabelIndex: "0", LabelHost: host}
			for name, more := range map[string]query.Labels{SeriesUp: nil, SeriesAllocation: {LabelKind: "job", LabelWorkload: "on-" + host}} {
				all := query.Labels{LabelName: name}
				maps.Copy(all, l)
				maps.Copy(all, more)
				m.Add(all, noon.Add(at), 1)
			}
		}
	}
	report("n1", "GPU-moved", -time.Hour, 0) // the agent of n1 dies with its machine
	report("n2", "GPU-moved", 2*time.Minute, time.Hour)
	report("b", "GPU-twice", -time.Hour, time.Hour)
	report("a", "GPU-twice", -time.Hour+5*time.Second, time.Hour)
	r := NewReader(m, Options{})
	for at, want := range map[time.Duration][]string{
		0:                {"GPU-moved at n1, 1 of it held", "GPU-twice at a, 1 of it held"},
		time.Minute:      {"GPU-moved at n1, 1 of it held", "GPU-twice at a, 1 of it held"},
		3 * time.Minute:  {"GPU-moved at n2, 1 of it held", "GPU-twice at a, 1 of it held"}, // n1 has samples of the last five minutes
		20 * time.Minute: {"GPU-moved at n2, 1 of it held", "GPU-twice at a, 1 of it held"},
	} {
		f, err := r.At(t.Context(), noon.Add(at))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for i := range f.Devices {
			d := &f.Devices[i]
			got[fmt.Sprintf("%s at %s, %v of it held", d.UUID, d.Node, d.Allocated)] = true
		}
		wanted := map[string]bool{}
		for _, w := range want {
			wanted[w] = true
		}
		if diff := cmp.Diff(wanted, got); diff != "" || len(f.Devices) != 2 {
			t.Errorf("after %s, %d devices (-want +got):\n%s", at, len(f.Devices), diff)
		}
	}
}
