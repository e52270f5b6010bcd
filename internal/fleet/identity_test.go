package fleet

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches an ID of one machine that is taken for the same device on another machine, and a vendor's
// UUID that becomes two devices when its node is renamed or two agents report it.
func TestGlobal(t *testing.T) {
	const machine = "0123456789abcdef0123456789abcdef"
	got := map[string]bool{}
	want := map[string]bool{
		"": false,
		"GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c": true,
		"GPU-0":                             true, // of a test or another exporter
		"one":                               true,
		"01P0-HL2080A0-15-TNPS34-20-07-10":  true,
		"tpu-1f0c83b2a4d5e697-0000:00:04.0": true,
		"tpu-1f0c83b2a4d5e697-3":            true,
		"tpu-8c5f3a1b2d4e6f70":              true, // a unique_id of 16 digits
		"tpu-0100014211703001-0000:03:00.0": true, // a serial number with a chip's address
		"tpu-am49033422":                    true,
		"tpu-0000:00:04.0":                  false,
		"tpu--0000:00:04.0":                 false,
		"tpu-" + machine + "-0000:00:04.0":  false,
		"tpu-3":                             false,
		"tpu-" + machine + "-3":             false,
		"tpu-" + machine + "-12-nc1":        false,
		"other-0000:00:04.0":                false, // the vendor is missing or spelled differently
		"other-3":                           true,
		"MIG-GPU-4404041a-04cf-1ccf-9e70-f139a9b1/1/0": true,
	}
	for uuid := range want {
		got[uuid] = Global(query.Labels{LabelUUID: uuid, LabelVendor: "tpu"})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Catches an upgraded agent whose devices are not recognized under their new IDs, and vendor IDs that are taken
// for addresses.
func TestSlot(t *testing.T) {
	const machine = "0123456789abcdef0123456789abcdef"
	want := map[string]string{
		"": "", "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c": "", "tpu-8c5f3a1b2d4e6f70": "", "tpu-am49033422": "",
		"tpu-1f0c83b2a4d5e697-0000:00:04.0": "tpu-0000:00:04.0", "tpu-0000:00:04.0": "tpu-0000:00:04.0", "tpu--0000:00:04.0": "tpu-0000:00:04.0",
		"tpu-" + machine + "-0000:00:04.0": "tpu-0000:00:04.0", "tpu-" + machine + "-3": "tpu-3", "tpu-1f0c83b2a4d5e697-3": "tpu-3", "tpu-3": "tpu-3",
	}
	got := map[string]string{}
	for uuid := range want {
		got[uuid] = Slot(query.Labels{LabelUUID: uuid, LabelVendor: "tpu"})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := Slot(query.Labels{LabelUUID: "tpu-0000:00:04.0"}); got != "tpu-0000:00:04.0" {
		t.Errorf("without a vendor: %q", got)
	}
}

// Catches the sum of two machines whose devices have the same ID, and an account of one device that
// splits because two agents name the machine differently or a node was renamed.
func TestAccountOfTwoHosts(t *testing.T) {
	f := func(uuid string, same bool) {
		t.Helper()
		on := func(host string) query.Labels {
			return query.Labels{LabelUUID: uuid, LabelVendor: "tpu", LabelHost: host, LabelPodUID: "p", LabelContainer: "c", LabelKind: "job"}
		}
		for name, key := range map[string]func(query.Labels) string{"Account": Account, "Instance": Instance, "DeviceKey": DeviceKey} {
			if got := key(on("a")) == key(on("b")); got != same {
				t.Errorf("%s of %s on two hosts is equal: %v, want %v", name, uuid, got, same)
			}
		}
	}
	f("GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c", true)
	f("tpu-1f0c83b2a4d5e697-0000:00:04.0", true)
	f("tpu-0000:00:04.0", false)
	f("tpu-0123456789abcdef0123456789abcdef-0000:00:04.0", false)
}

// Catches devices of two hosts that count as one because their IDs are equal, a GPU that moved to another
// node and counts twice or has the power and holder that it had there, and a device with two senders that is
// allocated to 200 % or alternates between two nodes.
func TestOneIDOfTwoHosts(t *testing.T) {
	const (
		pci   = "tpu-0000:00:04.0"
		moved = "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c"
		twice = "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23d"
	)
	m := querytest.NewMemory()
	put := func(uuid, vendor, host string, ago time.Duration, watts float64, workload string) {
		l := func(name string, more ...string) query.Labels {
			out := query.Labels{LabelName: name, LabelUUID: uuid, LabelVendor: vendor, LabelHost: host, LabelIndex: "0"}
			for i := 0; i < len(more); i += 2 {
				out[more[i]] = more[i+1]
			}
			return out
		}
		at := noon.Add(-ago)
		m.Add(l(SeriesUp), at, 1)
		m.Add(l(SeriesPower), at, watts)
		m.Add(l(SeriesMemoryUsed), at, watts)
		m.Add(l(SeriesMemoryTotal), at, 1000)
		m.Add(l(SeriesAllocation, LabelKind, "job", LabelWorkload, workload), at, 1)
	}
	put(pci, "tpu", "a", 0, 100, "x")
	put(pci, "tpu", "b", 0, 200, "y")
	put(moved, "nvidia", "a", 3*time.Minute, 300, "x")
	put(moved, "nvidia", "c", 0, 30, "z")
	put(twice, "nvidia", "d", 0, 400, "x")
	put(twice, "nvidia", "e", time.Second, 401, "x")

	r := NewReader(m, Options{})
	f, err := r.At(t.Context(), noon)
	if err != nil {
		t.Fatal(err)
	}
	type device struct {
		Host, UUID           string
		Power, Memory, Total optional.Float
		Allocated            float64
		Owner                string
	}
	var got []device
	for _, d := range f.Devices {
		x := device{Host: d.Host, UUID: d.UUID, Power: d.Power, Memory: d.Memory, Total: d.MemoryTotal, Allocated: d.Allocated}
		for _, n := range d.Owners {
			x.Owner += f.Owners[n].Name
		}
		got = append(got, x)
	}
	of := func(host, uuid string, watts float64, owner string) device {
		return device{host, uuid, optional.Of(watts), optional.Of(watts), optional.Of(1000.0), 1, owner}
	}
	want := []device{of("a", pci, 100, "x"), of("b", pci, 200, "y"), of("c", moved, 30, "z"), of("d", twice, 400, "x")}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(optional.Float{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for i := range f.Devices {
		if n := f.Index[f.Devices[i].Key()]; n != i {
			t.Errorf("%s on %s is at %d, the index says %d", f.Devices[i].UUID, f.Devices[i].Host, i, n)
		}
	}
}
