//go:build linux

package gaudi

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

const captures = "../../../../shared/fixtures/gaudi/"

// The captured tree was written independently from the driver's documentation: names and
// units must mean the same to both.
func TestCapturedFiles(t *testing.T) {
	if _, err := os.Stat(captures); err != nil {
		t.Skipf("no captures found: %v", err)
	}
	r, _ := open(t, captures+"sysfs-synthetic", "")
	list := devices(t, r)
	want := device.Sample{
		ID:      device.ID{Vendor: "gaudi", UUID: "gaudi-9b0c-0000:b3:00.0", Model: "Intel Gaudi2", PCI: "0000:b3:00.0"},
		Info:    device.Info{Architecture: "gaudi2"},
		Powers:  []device.Power{{Scope: "gpu", Limits: []device.PowerLimit{{Type: "enforced", Watts: device.Of(600)}}}},
		Clocks:  []device.Clock{{Type: "soc", Frequency: device.Of(1.65e9), Limit: device.Of(1.65e9)}},
		Status:  device.Of(0),
		Resets:  []device.ErrorCount{{Type: "hard", Count: device.Of(0)}, {Type: "soft", Count: device.Of(0)}},
		Aliases: []string{"accel0"},
	}
	if diff := cmp.Diff(want, read(t, list[0], device.Static)); diff != "" || len(list) != 1 {
		t.Errorf("%d devices (-want +got):\n%s", len(list), diff)
	}
}

// Every address that Intel's tool printed on real servers joins the library's accelerators
// to the driver's.
func TestCapturedAddresses(t *testing.T) {
	n := 0
	for _, name := range []string{"hl-smi-1.14.0-plain-HL225x8.txt", "hl-smi-1.18.0-plain-HL205.txt"} {
		b, err := os.ReadFile(captures + name)
		if err != nil {
			t.Skipf("no captures found: %v", err)
		}
		for word := range strings.FieldsSeq(string(b)) {
			if strings.Count(word, ":") == 2 && strings.HasSuffix(word, ".0") {
				n++
				if parseAddress(word) != word {
					t.Errorf("%s: %q gives %q", name, word, parseAddress(word))
				}
			}
		}
	}
	if n != 16 {
		t.Errorf("%d addresses", n)
	}
}
