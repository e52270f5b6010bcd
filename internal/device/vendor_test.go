package device

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

var twoVendors = Vendors{
	{
		Name: "acme", DeviceFiles: []string{"/dev/acme", "/dev/dri/renderD"}, Modules: []string{"acme_core"}, LogWords: []string{"ACM"},
		Resources:     []Resource{{Name: "acme.com/gpu", Unit: Whole}, {Name: "acme.com/slice-*", Unit: Part}},
		ModelPrefixes: []string{"Acme ", "Data Center "}, ModelSuffixes: []string{" 80GB"},
	},
	{Name: "other", DeviceFiles: []string{"/dev/dri/renderD"}, ModelPrefixes: []string{"Acme Other "}},
}

// A short name that is empty, or keeps part of a prefix, would appear in every table.
func TestShortModel(t *testing.T) {
	for model, want := range map[string]string{
		"Acme Data Center X1":      "X1",
		"Acme X1 80GB":             "X1",
		"Acme Other Z":             "Other Z",
		"X1 Acme 80GB v2":          "X1 Acme 80GB v2", // words inside a name are kept
		"Acme ":                    "Acme ",
		"Somebody Else's X1":       "Somebody Else's X1",
		"":                         "",
		"Acme Acme Data Center 80": "80",
	} {
		if got := twoVendors.ShortModel(model); got != want {
			t.Errorf("%q is %q, want %q", model, got, want)
		}
	}
}

// The first matching resource wins, and a resource of another kind is not a device: a quota
// for network cards would count as a quota for GPUs.
func TestVendorsResource(t *testing.T) {
	for name, want := range map[string]Unit{
		"acme.com/gpu": Whole, "acme.com/slice-1g": Part, "acme.com/gpu.shared": "", "acme.com": "", "rdma/hca": "", "": "",
	} {
		if got := twoVendors.Resource(name).Unit; got != want {
			t.Errorf("%s has the unit %q, want %q", name, got, want)
		}
	}
}

// An entry that two vendors have in common is listed once. The name of a module also matches
// with dashes, but not inside another word.
func TestVendorsLists(t *testing.T) {
	if diff := cmp.Diff([]string{"/dev/acme", "/dev/dri/renderD"}, twoVendors.DeviceFiles()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	line := twoVendors.LogLine()
	for text, want := range map[string]bool{"acme-core 0000:01:00.0: x": true, "acme_core: x": true, "acm: x": true, "acme_cores: x": false, "pacman: x": false} {
		if line.MatchString(text) != want {
			t.Errorf("%q matches as a driver line: %v, want %v", text, !want, want)
		}
	}
}
