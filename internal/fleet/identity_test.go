package fleet

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/query"
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
