//go:build linux

package gaudi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Each state of a machine is diagnosed and comes with a fix.
func TestDiagnose(t *testing.T) {
	f := func(name, root, library string, want ...string) {
		t.Helper()
		var got []string
		for _, c := range Diagnose(t.Context(), Options{Root: root, Library: library}) {
			got = append(got, fmt.Sprintf("%s: %s", c.Subject, c.State))
			if (c.State == device.CheckFailed || c.State == device.CheckLimited) && c.Fix == "" {
				t.Errorf("%s: no fix for %q", name, c.Detail)
			}
			if strings.Contains(c.Detail, "AN0000") {
				t.Errorf("%s: a serial number is shown: %s", name, c.Detail)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("nothing", machine(t, map[string]string{"sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086"}), "", "gaudi hardware: absent")
	f("no driver", machine(t, map[string]string{"sys/bus/pci/devices/0000:33:00.0/vendor": "0x1da3"}), "", "gaudi kernel driver: failed")
	root := machine(t, server())
	f("whole", root, fake(t, script), "gaudi library: ok", "gaudi accel0: ok", "gaudi accel2: ok", "gaudi accel10: ok")
	f("no library", root, "", "gaudi library: limited", "gaudi accel0: ok", "gaudi accel2: ok", "gaudi accel10: ok")
	f("no device files", root, fake(t, "init 9\n"), "gaudi library: failed", "gaudi devices: failed", "gaudi accel0: ok", "gaudi accel2: ok", "gaudi accel10: ok")
	f("other library", root, fake(t, "init 49\n"), "gaudi library: failed", "gaudi devices: failed", "gaudi accel0: ok", "gaudi accel2: ok", "gaudi accel10: ok")
	f("one only", root, fake(t, script+"count 1\n"), "gaudi library: ok", "gaudi accel0: limited", "gaudi accel2: limited", "gaudi accel10: ok")
	f("old library", root, fake(t, script, old...),
		"gaudi library: ok", "gaudi accel0: ok", "gaudi accel2: ok", "gaudi accel10: ok", "gaudi functions: limited")
	put(t, root, busDir+first+"/status", "Disabled")
	put(t, root, busDir+second+"/status", "Needs reset")
	put(t, root, busDir+third+"/max_power", "/")
	f("ill", root, fake(t, script), "gaudi library: ok", "gaudi accel0: failed", "gaudi accel2: failed", "gaudi accel10: failed")
}

// The line about a missing library names the absent values and the searched paths.
func TestDiagnoseLibrary(t *testing.T) {
	root := untouched
	for _, c := range Diagnose(t.Context(), Options{Root: root, LibraryDirs: []string{"/some/where"}}) {
		if c.Subject != "gaudi library" {
			continue
		}
		for _, want := range []string{"utilization", "/some/where/libhlml.so", root + "/usr/lib/habanalabs/libhlml.so"} {
			if !strings.Contains(c.Detail, want) {
				t.Errorf("%q does not contain %q", c.Detail, want)
			}
		}
	}
}

func TestHungCheck(t *testing.T) {
	if c := hungCheck("gaudi accel0", "hlml_init"); c.State != device.CheckFailed || !strings.Contains(c.Detail, "hlml_init") || c.Fix == "" {
		t.Errorf("%+v", c)
	}
}
