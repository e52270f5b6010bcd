package dra

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

var vendors = device.Vendors{
	{Name: "acme", Resources: []device.Resource{{Name: "gpu.acme.com", Unit: device.Claim, WholeTypes: []string{"gpu"}, ModelAttribute: "productName"}}},
	{Name: "other", Resources: []device.Resource{{Name: "gpu.other.com", Unit: device.Claim}}},
}

type object = map[string]any

func raw(t testing.TB, o any) []byte {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// dev returns a device. attributes are given as name, text, name, text ...
func dev(name string, attributes ...string) object {
	all := object{}
	for i := 0; i+1 < len(attributes); i += 2 {
		all[attributes[i]] = object{"string": attributes[i+1]}
	}
	return object{"name": name, "attributes": all}
}

func with(o object, key string, v any) object { o[key] = v; return o }

// takes makes a device consume counters of a set.
func takes(d object, set, memory string) object {
	return with(d, "consumesCounters", []object{{"counterSet": set, "counters": object{"memory": object{"value": memory}}}})
}

// gpus returns a slice of a driver on a node, whose pool has the name of the node.
func gpus(name, driver, node string, generation int, devices ...object) object {
	return object{"metadata": object{"name": name}, "spec": object{
		"driver": driver, "nodeName": node, "pool": object{"name": node, "generation": generation, "resourceSliceCount": 1}, "devices": devices,
	}}
}

func class(name string, expressions ...string) object {
	list := make([]object, 0, len(expressions))
	for _, e := range expressions {
		list = append(list, object{"cel": object{"expression": e}})
	}
	return object{"metadata": object{"name": name}, "spec": object{"selectors": list}}
}

// asks returns a claim of v1 for some devices of a class.
func asks(name, class string, count int) object {
	return object{"metadata": object{"namespace": "ml", "name": name}, "spec": object{"devices": object{"requests": []object{
		{"name": "r", "exactly": object{"deviceClassName": class, "count": count}},
	}}}}
}

// gets allocates devices of a node, given as DRIVER/DEVICE, to a claim.
func gets(claim object, node string, devices ...string) object {
	list := make([]object, 0, len(devices))
	for _, d := range devices {
		driver, name, _ := strings.Cut(d, "/")
		list = append(list, object{"request": "r", "driver": driver, "pool": node, "device": name})
	}
	claim["status"] = object{"allocation": object{"devices": object{"results": list}}, "reservedFor": []object{{"resource": "pods", "uid": "u1"}, {"resource": "pods", "uid": "u2"}}}
	return claim
}

// world parses objects, which are slices, classes or claims.
func world(t testing.TB, slices, classes, claims []object) (*Catalog, map[string]Claim) {
	t.Helper()
	s, k, c := map[string]Slice{}, map[string]Class{}, map[string]Claim{}
	for _, o := range slices {
		v, err := ParseSlice(raw(t, o), func(driver string) string { return vendors.Resource(driver).ModelAttribute })
		if err != nil {
			t.Fatal(err)
		}
		s[v.Name] = v
	}
	for _, o := range classes {
		v, err := ParseClass(raw(t, o))
		if err != nil {
			t.Fatal(err)
		}
		k[v.Name] = v
	}
	for _, o := range claims {
		v, err := ParseClaim(raw(t, o))
		if err != nil {
			t.Fatal(err)
		}
		c[v.Key()] = v
	}
	return NewCatalog(vendors, k, s), c
}

var isAcme, isMIG = `device.driver == 'gpu.acme.com' && device.attributes['gpu.acme.com'].type == 'gpu'`, `device.driver == "gpu.acme.com" && device.attributes["gpu.acme.com"].type == "mig"`

// Catches a part or a share of a device that counts as a whole one, a device that two slices offer and that counts twice,
// one that is broken or taken and counts as free, and devices of a network card.
func TestNodes(t *testing.T) {
	full := func(name string) object { return dev(name, "type", "gpu", "productName", "X1") }
	counted := gpus("n2", "gpu.other.com", "n2", 1,
		takes(dev("0-full"), "0", "80Gi"), takes(dev("0-a"), "0", "40Gi"), takes(dev("0-b"), "0", "40Gi"), takes(dev("1-full"), "1", "80Gi"), takes(dev("1-a"), "1", "40Gi"))
	counted["spec"].(object)["sharedCounters"] = []object{
		{"name": "0", "counters": object{"memory": object{"value": "80Gi"}}}, {"name": "1", "counters": object{"memory": object{"value": "80Gi"}}},
	}
	c, claims := world(t, []object{
		gpus("n1-old", "gpu.acme.com", "n1", 1, full("gone")),
		gpus("n1", "gpu.acme.com", "n1", 2, full("0"), full("1"), with(full("2"), "taints", []object{{"key": "broken", "effect": "NoExecute"}}),
			with(full("3"), "taints", []object{{"key": "x", "effect": "None"}}),
			dev("4-mig-0", "type", "mig", "gpu.acme.com/parentUUID", "u4", "productName", "X1"), dev("vfio-0", "type", "vfio", "productName", "X1")),
		counted,
		gpus("n3", "gpu.other.com", "n3", 1, with(dev("0"), "allowMultipleAllocations", true), takes(dev("unknown-set"), "9", "1"), dev("child", "gpu.other.com/parentPciAddr", "0000:01:00.0")),
		gpus("n4", "gpu.acme.com", "n4", 1, object{"name": "0", "basic": dev("", "type", "gpu", "productName", "X2")}), // v1beta1
		gpus("nic", "nic.acme.com", "n1", 1, dev("0")),
		{"metadata": object{"name": "net"}, "spec": object{"driver": "gpu.acme.com", "allNodes": true, "pool": object{"name": "net"}, "devices": []object{full("0")}}},
	}, []object{
		class("gpu.acme.com", isAcme), class("mig", isMIG), class("other", `device.driver == "gpu.other.com"`),
		with(class("x2", isAcme, `device.attributes["gpu.acme.com"].productName == "X2" && device.capacity["gpu.acme.com"].memory.isGreaterThan(quantity("1Gi"))`),
			"spec", object{"extendedResourceName": "acme.com/gpu", "selectors": class("", `device.attributes["gpu.acme.com"].productName == "X2"`)["spec"].(object)["selectors"]}),
		class("nic", `device.driver == 'nic.acme.com'`),
	}, []object{
		gets(asks("a", "gpu.acme.com", 1), "n1", "gpu.acme.com/0"), gets(asks("b", "other", 1), "n2", "gpu.other.com/0-a"), gets(asks("c", "other", 1), "n2", "gpu.other.com/1-full"),
		gets(asks("d", "other", 1), "n3", "gpu.other.com/0"), gets(asks("gone", "gpu.acme.com", 1), "n1", "gpu.acme.com/gone"), asks("e", "gpu.acme.com", 5),
		{
			"metadata": object{"namespace": "ops", "name": "watch"},
			"status": object{"allocation": object{"devices": object{"results": []object{
				{"request": "r", "driver": "gpu.acme.com", "pool": "n4", "device": "0", "adminAccess": true},
			}}}},
		},
	})
	want := map[string]*Node{
		"n1": {
			Model: "X1", Vendors: map[string]Devices{"acme": {All: 3, Taken: 1, Broken: 1}},
			Classes: map[string]Offer{"gpu.acme.com": {3, 2}, "mig": {1, 1}}, Resources: map[string]Offer{},
		},
		"n2": {Vendors: map[string]Devices{"other": {All: 2, Taken: 2}}, Classes: map[string]Offer{"other": {5, 1}}, Resources: map[string]Offer{}},
		"n3": {Vendors: map[string]Devices{}, Classes: map[string]Offer{"other": {3, 3}}, Resources: map[string]Offer{}},
		"n4": {
			Model: "X2", Vendors: map[string]Devices{"acme": {All: 1}},
			Classes: map[string]Offer{"gpu.acme.com": {1, 1}, "x2": {1, 1}}, Resources: map[string]Offer{"acme.com/gpu": {1, 1}},
		},
	}
	if diff := cmp.Diff(want, c.Nodes(claims), cmp.AllowUnexported(Node{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a claim that is read differently in an older version of the API, a device that counts for each of its pods, one
// for monitoring that counts at all, and parts that count as whole devices.
func TestCount(t *testing.T) {
	old := object{"metadata": object{"namespace": "ml", "name": "old"}, "spec": object{"devices": object{"requests": []object{
		{"name": "r", "deviceClassName": "gpu.acme.com", "allocationMode": "ExactCount", "count": 2},
	}}}}
	first := object{"metadata": object{"namespace": "ml", "name": "first"}, "spec": object{"devices": object{"requests": []object{
		{"name": "r", "firstAvailable": []object{{"name": "big", "deviceClassName": "gpu.acme.com", "count": 2}, {"name": "small", "deviceClassName": "mig", "count": 1}}},
	}}}}
	given := gets(asks("given", "", 0), "n1", "gpu.acme.com/m")
	given["spec"] = first["spec"]
	given["status"].(object)["allocation"].(object)["devices"].(object)["results"].([]object)[0]["request"] = "r/small"
	share := gets(asks("share", "gpu.acme.com", 1), "n1", "gpu.acme.com/1")
	share["status"].(object)["allocation"].(object)["devices"].(object)["results"].([]object)[0]["shareID"] = "s"
	capacity := asks("capacity", "gpu.acme.com", 1)
	capacity["spec"].(object)["devices"].(object)["requests"].([]object)[0]["exactly"].(object)["capacity"] = object{"requests": object{"memory": "10Gi"}}
	admin := asks("admin", "gpu.acme.com", 1)
	admin["spec"].(object)["devices"].(object)["requests"].([]object)[0]["exactly"].(object)["adminAccess"] = true
	all := asks("all", "gpu.acme.com", 0)
	all["spec"].(object)["devices"].(object)["requests"].([]object)[0]["exactly"].(object)["allocationMode"] = "All"
	both := asks("both", "mig", 3)
	both["spec"].(object)["devices"].(object)["requests"] = append(both["spec"].(object)["devices"].(object)["requests"].([]object), object{"name": "s", "exactly": object{"deviceClassName": "gpu.acme.com", "count": 1}})
	c, claims := world(t,
		[]object{gpus("n1", "gpu.acme.com", "n1", 1, dev("0", "type", "gpu"), dev("1", "type", "gpu"), dev("m", "type", "mig"))},
		[]object{class("gpu.acme.com", isAcme), class("mig", isMIG)},
		[]object{
			old, first, given, share, capacity, admin, all, both, gets(asks("given-0", "gpu.acme.com", 1), "n1", "gpu.acme.com/0"), gets(asks("elsewhere", "gpu.acme.com", 1), "n2", "gpu.acme.com/0"),
			asks("nic", "nic", 1), gets(asks("nic-0", "nic", 1), "n1", "nic.acme.com/0"), asks("by-name", "gpu.other.com", 1),
		})
	count, devices := c.Count(claims)
	const acme = "gpu.acme.com"
	wantCount := map[Group]int64{
		{Pending, acme, acme, ""}: 4, {Pending, "gpu.acme.com,mig", acme, ""}: 1, {Pending, "gpu.other.com", "gpu.other.com", ""}: 1,
		{Allocated, "mig", acme, ""}: 1, {Allocated, acme, acme, ""}: 3,
	}
	wantDevices := map[Group]int64{
		{Pending, acme, acme, Whole}: 2 + 2 + 1 + 1, {Pending, acme, acme, Share}: 1, {Pending, "mig", acme, Part}: 3, {Pending, "gpu.other.com", "gpu.other.com", Whole}: 1,
		{Allocated, acme, acme, Whole}: 1, {Allocated, acme, acme, Share}: 1, {Allocated, acme, acme, Unknown}: 1, {Allocated, "mig", acme, Part}: 1,
	}
	if diff := cmp.Diff(wantCount, count); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantDevices, devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	for name, want := range map[string]Asks{
		"old": {Classes: map[string]int64{acme: 2}, Whole: 2}, "given": {Classes: map[string]int64{"mig": 1}, Node: "n1"}, "share": {Classes: map[string]int64{acme: 1}, Node: "n1"},
		"both": {Classes: map[string]int64{"mig": 3, acme: 1}, Whole: 1}, "nic": {}, "nic-0": {}, "admin": {},
		"elsewhere": {Classes: map[string]int64{acme: 1}, Unclear: true},
	} {
		claim := claims["ml/"+name]
		if diff := cmp.Diff(want, c.Asks(&claim)); diff != "" {
			t.Errorf("%s asks (-want +got):\n%s", name, diff)
		}
	}
}

// Catches an expression that is evaluated although an alternative, a negation or a macro changes its meaning, and a class of
// accelerators that is not recognized because it does not name the driver.
func TestClass(t *testing.T) {
	f := func(expression, driver string, rules ...rule) {
		t.Helper()
		c, err := ParseClass(raw(t, class("c", expression)))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.driver(vendors); got != driver {
			t.Errorf("%s: driver %q, want %q", expression, got, driver)
		}
		if diff := cmp.Diff(rules, c.rules, cmp.AllowUnexported(rule{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", expression, diff)
		}
	}
	f(isAcme, "gpu.acme.com", rule{"", "", "gpu.acme.com"}, rule{"gpu.acme.com", "type", "gpu"})
	f(`device.attributes["gpu.acme.com"].productName.matches("^X") && device.attributes["gpu.acme.com"].type=="mig"`, "gpu.acme.com", rule{"gpu.acme.com", "type", "mig"})
	f(`device.driver == "gpu.acme.com" || device.driver == "gpu.other.com"`, "gpu.acme.com")
	f(`device.driver == "gpu.acme.com" && false || device.driver == "gpu.other.com"`, "gpu.acme.com")
	f(`!(device.driver == "gpu.acme.com" && true)`, "gpu.acme.com")
	f(`["x"].exists(x, true && device.driver == "gpu.acme.com" && true)`, "gpu.acme.com")
	f(`device.attributes["gpu.acme.com"].note == "a && b || c"`, "gpu.acme.com", rule{"gpu.acme.com", "note", "a && b || c"})
	f(`device.driver == "nic.acme.com" && device.attributes["nic.acme.com"].gpu == "gpu.acme.com"`, "", rule{"", "", "nic.acme.com"}, rule{"nic.acme.com", "gpu", "gpu.acme.com"})
	f(`device.driver != "gpu.acme.com"`, "gpu.acme.com") // not understood: too much rather than too little
	f(`)]} && device.driver == 'gpu.acme.com`, "")
}

// Catches an object that a fuzzer finds and that ends the process, or has an impossible number.
func FuzzObjects(f *testing.F) {
	f.Add(raw(f, gpus("n1", "gpu.acme.com", "n1", 1, takes(dev("0", "type", "gpu"), "s", "1"))))
	f.Add(raw(f, class("c", isAcme)))
	f.Add(raw(f, class("c", "a&&&b")))
	f.Add(raw(f, gets(asks("a", "gpu.acme.com", 3), "n1", "gpu.acme.com/0")))
	f.Add([]byte(`{"metadata":{"name":"x"},"spec":{"devices":{"requests":[{"name":"r","deviceClassName":"gpu.acme.com","count":9223372036854775807}]}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		classes, slices, claims := map[string]Class{}, map[string]Slice{}, map[string]Claim{}
		if c, err := ParseClass(b); err == nil {
			classes[c.Name] = c
		}
		if s, err := ParseSlice(b, func(string) string { return "productName" }); err == nil {
			slices[s.Name] = s
		}
		if c, err := ParseClaim(b); err == nil {
			claims[c.Key()] = c
		}
		c := NewCatalog(vendors, classes, slices)
		count, devices := c.Count(claims)
		for _, all := range []map[Group]int64{count, devices} {
			for g, n := range all {
				if n <= 0 {
					t.Errorf("%d of %v", n, g)
				}
			}
		}
		for name, n := range c.Nodes(claims) {
			for class, o := range n.Classes {
				if o.Left < 0 || o.Left > o.All {
					t.Errorf("%s has %v of %s", name, o, class)
				}
			}
		}
	})
}

// Catches a list of devices without an end, and names that cost more than they may.
func TestLimits(t *testing.T) {
	var many []object
	for i := range maxDevices + 1 {
		many = append(many, dev(fmt.Sprint(i)))
	}
	if _, err := ParseSlice(raw(t, gpus("n1", "gpu.acme.com", "n1", 1, many...)), func(string) string { return "" }); err == nil {
		t.Error("a slice with too many devices is accepted")
	}
	s, err := ParseSlice(raw(t, gpus("n1", "gpu.acme.com", "n1", 1, dev("0", "type", strings.Repeat("x", maxText+1)))), func(string) string { return "" })
	if err != nil || s.Devices[0].Type != "" {
		t.Errorf("%v, the type has %d characters", err, len(s.Devices[0].Type))
	}
}
