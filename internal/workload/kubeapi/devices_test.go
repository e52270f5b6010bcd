package kubeapi

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

func slice(driver, pool string, generation int, devices ...object) object {
	return object{"spec": object{
		"nodeName": "node1", "driver": driver, "pool": object{"name": pool, "generation": generation}, "devices": devices,
	}}
}

func device(name string, attributes object) object {
	return object{"name": name, "attributes": attributes}
}

func text(s string) object { return object{"string": s} }

func claimOf(device string, admin bool) object {
	r := object{"driver": "gpu.nvidia.com", "pool": "node1", "device": device}
	if admin {
		r["adminAccess"] = true
	}
	return object{"kind": "ResourceClaim", "status": object{"allocation": object{"devices": object{"results": []object{r}}}}}
}

// The names by which the readers know a device, most certain first. A partition must not be
// mistaken for its parent.
func TestParseSlices(t *testing.T) {
	f := func(driver string, d object, want ...string) {
		t.Helper()
		for version, form := range map[string]object{
			"v1": d, "v1beta1": {"name": d["name"], "basic": object{"attributes": d["attributes"]}},
		} {
			b, err := json.Marshal(object{"items": []object{slice(driver, "node1", 1, form)}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseSlices(b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got[claimed{driver, "node1", d["name"].(string)}]); diff != "" {
				t.Errorf("%s %v (-want +got):\n%s", version, d["name"], diff)
			}
		}
	}
	f("gpu.nvidia.com", device("gpu-0", object{
		"uuid": text("GPU-1"), "type": text("gpu"), "index": object{"int": 0}, "driverVersion": object{"version": "1.2.3"},
		"resource.kubernetes.io/pciBusID": text("0000:0f:00.0"),
	}), "GPU-1", "0000:0f:00.0", "gpu-0")
	f("gpu.nvidia.com", device("gpu-0-mig-1g10gb-19-0", object{
		"uuid": text("MIG-1"), "parentUUID": text("GPU-1"), "resource.kubernetes.io/pciBusID": text("0000:0f:00.0"),
	}), "MIG-1", "gpu-0-mig-1g10gb-19-0")
	f("gpu.nvidia.com", device("gpu-0", object{"gpu.nvidia.com/uuid": text("GPU-1")}), "GPU-1", "gpu-0")
	f("gpu.nvidia.com", device("gpu-0", object{"example.com/uuid": text("not ours")}), "gpu-0")
	f("gpu.amd.com", device("gpu-1-129", object{"pciAddr": text("0003:00:02.0"), "cardIndex": object{"int": 1}}), "0003:00:02.0", "gpu-1-129")
	f("gpu.amd.com", device("gpu-2-130", object{"parentPciAddr": text("0003:00:02.0"), "pciAddr": text("0003:00:02.0")}), "gpu-2-130")
	f("gaudi.intel.com", device("0000-0f-00-0-0x1020", object{"serial": text("AM1")}), "AM1", "0000:0f:00.0", "0000-0f-00-0-0x1020")
	f("gpu.intel.com", device("0000-03-00-0-0x56c0", nil), "0000:03:00.0", "0000-03-00-0-0x56c0")
	f("tenstorrent.com", device("tt-0", object{"pciAddress": text("0000:01:00.0")}), "0000:01:00.0", "tt-0")
	f("tpu.google.com", device("accel0", object{"uuid": object{"int": 3}}), "accel0")
}

// While a driver republishes its pool there are two generations of it.
func TestParseSlicesGenerations(t *testing.T) {
	b, err := json.Marshal(object{"items": []object{
		slice("d", "p", 2, device("x", object{"uuid": text("new")})),
		slice("d", "p", 1, device("x", object{"uuid": text("old")}), device("y", object{"uuid": text("gone")})),
		slice("d", "q", 1, device("x", object{"uuid": text("other pool")})),
	}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseSlices(b)
	if err != nil {
		t.Fatal(err)
	}
	want := map[claimed][]string{{"d", "p", "x"}: {"new", "x"}, {"d", "q", "x"}: {"other pool", "x"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(claimed{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Every version that a cluster may have, and none.
func TestClaimVersions(t *testing.T) {
	f := func(want string, versions ...string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			s := kubeapitest.New()
			var list []object
			for _, v := range versions {
				list = append(list, object{"version": v})
				s.Put("/apis/resource.k8s.io/"+v+"/resourceslices", object{"items": []object{slice("d", "p", 1, device("x", object{"uuid": text(v)}))}})
			}
			if list != nil {
				s.Put("/apis/resource.k8s.io", object{"versions": list})
			}
			c := start(t, s, Config{})
			c.Claimed("d", "p", "x")
			synctest.Wait()
			ids, _ := c.Claimed("d", "p", "x")
			if want == "" && ids != nil || want != "" && (ids == nil || ids[0] != want) {
				t.Errorf("%v: %v, want %q", versions, ids, want)
			}
		})
	}
	f("v1", "v1", "v1beta1", "v1beta2")
	f("v1beta2", "v1beta1", "v1beta2")
	f("v1beta1", "v1alpha3", "v1beta1")
	f("", "v1alpha3")
	f("")
}

// If no claim is in use, no request is sent. An unknown device must not cause a storm of
// requests, and a new one must be found soon.
func TestDevicesPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withEverything()
		c := start(t, s, Config{})
		time.Sleep(time.Hour)
		if n := count(s, "resource.k8s.io"); n != 0 {
			t.Errorf("%d requests without a lookup", n)
		}
		for range 600 {
			c.Claimed("gpu.nvidia.com", "node1", "gpu-9")
			time.Sleep(100 * time.Millisecond)
		}
		if n := count(s, "resourceslices"); n < 10 || n > 13 {
			t.Errorf("%d requests in a minute, want one every 5 s", n)
		}
		if n := count(s, "fieldSelector=spec.nodeName%3Dnode1"); n < 10 {
			t.Errorf("requests are not for this node: %v", s.Requests())
		}
		s.Put("/apis/resource.k8s.io/v1/resourceslices", object{"items": []object{
			slice("gpu.nvidia.com", "node1", 2, device("gpu-9", object{"uuid": text("GPU-9")})),
		}})
		g := c.State().Generation
		c.Claimed("gpu.nvidia.com", "node1", "gpu-9")
		time.Sleep(6 * time.Second)
		if ids, ok := c.Claimed("gpu.nvidia.com", "node1", "gpu-9"); !ok || ids[0] != "GPU-9" || c.State().Generation == g {
			t.Errorf("after 6 s: %v", ids)
		}
		time.Sleep(time.Hour)
		before := count(s, "resourceslices")
		time.Sleep(time.Hour)
		if n := count(s, "resourceslices"); n != before {
			t.Errorf("%d requests long after the last lookup", n-before)
		}
	})
}

// Monitoring that uses every GPU with admin access must be distinguished from holders.
func TestAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withEverything()
		s.Put("/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/monitor", claimOf("gpu-0", true))
		c := start(t, s, Config{})
		ask := func() (got []Access) {
			for _, claim := range []string{"claim", "monitor", "deleted"} {
				got = append(got, c.Access("ml", claim, "gpu.nvidia.com", "node1", "gpu-0"))
			}
			return append(got, c.Access("ml", "claim", "gpu.nvidia.com", "node1", "gpu-1"))
		}
		if diff := cmp.Diff([]Access{AccessPending, AccessPending, AccessPending, AccessPending}, ask()); diff != "" {
			t.Errorf("at first (-want +got):\n%s", diff)
		}
		for range 600 {
			time.Sleep(time.Second)
			ask()
		}
		if diff := cmp.Diff([]Access{AccessHolder, AccessAdmin, AccessUnknown, AccessUnknown}, ask()); diff != "" {
			t.Errorf("then (-want +got):\n%s", diff)
		}
		if n := count(s, "resourceclaims/"); n > 9 {
			t.Errorf("%d requests in 10 minutes for 3 claims", n)
		}
	})
}

// A pending answer must not stay pending forever.
func TestAccessPendingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withEverything()
		s.Fail("/apis/resource.k8s.io", kubeapitest.Fault{Hang: true})
		c := start(t, s, Config{})
		c.Access("ml", "claim", "d", "p", "x")
		time.Sleep(6 * time.Second)
		if a := c.Access("ml", "claim", "d", "p", "x"); a != AccessUnknown {
			t.Errorf("access = %v after 6 s", a)
		}
	})
}

func FuzzParseSlices(f *testing.F) {
	for _, d := range []object{
		device("gpu-0", object{"uuid": text("GPU-1")}), device("x", object{"parentUUID": text("y")}),
		{"name": "z", "basic": object{"attributes": object{"uuid": text("u")}}},
	} {
		b, err := json.Marshal(object{"items": []object{slice("gpu.nvidia.com", "node1", 1, d)}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ids, err := parseSlices(b)
		if err != nil && ids != nil && len(ids) != maxDevices {
			t.Errorf("%d devices beside %v", len(ids), err)
		}
		for d, names := range ids {
			if len(names) == 0 || names[len(names)-1] != d.device {
				t.Errorf("%+v is called %q, and not by its own name", d, names)
			}
		}
		parseClaim(b)
		parseGroup(b)
		parseNode(b)
	})
}

// A bounded cache keeps the most recently used entries.
func TestLRU(t *testing.T) {
	l := newLRU[string, int](2)
	l.put("a", 1)
	l.put("b", 2)
	l.get("a")
	l.put("c", 3)
	var got []string
	for _, k := range []string{"a", "b", "c"} {
		if v, ok := l.get(k); ok {
			got = append(got, fmt.Sprint(k, v))
		}
	}
	if diff := cmp.Diff([]string{"a1", "c3"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
