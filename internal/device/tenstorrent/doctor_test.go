//go:build linux

package tenstorrent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Each state of a machine is diagnosed and comes with a fix.
func TestDiagnose(t *testing.T) {
	f := func(name string, files map[string]string, want ...string) {
		t.Helper()
		var got []string
		for _, c := range Diagnose(t.Context(), Options{Root: machine(t, files)}) {
			got = append(got, fmt.Sprintf("%s: %s", c.Subject, c.State))
			if (c.State == device.CheckFailed || c.State == device.CheckLimited) && c.Fix == "" {
				t.Errorf("%s: no fix for %q", name, c.Detail)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("nothing", map[string]string{"sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086"}, "tenstorrent hardware: absent")
	f("no driver", map[string]string{"sys/bus/pci/devices/0000:04:00.0/vendor": "0x1e52"}, "tenstorrent kernel driver: failed")
	f("lab", lab(), "tenstorrent 0: ok", "tenstorrent 2: ok", "tenstorrent 3: ok", "tenstorrent 3 telemetry: limited", "tenstorrent 3 power: limited", "tenstorrent 10: ok")

	old := chipFiles("0", "0000:41:00.0", wormholeClass, wormholePCI)
	f("old driver", old, "tenstorrent 0: ok", "tenstorrent 0 processes: limited")
	broken := lab()
	for name := range broken {
		if strings.HasSuffix(name, "!0/tt_serial") || strings.HasSuffix(name, "!2/tt_heartbeat") {
			broken[name] = "/"
		}
	}
	f("broken", broken, "tenstorrent devices: failed", "tenstorrent 2: failed",
		"tenstorrent 3: ok", "tenstorrent 3 telemetry: limited", "tenstorrent 3 power: limited", "tenstorrent 10: ok")
}
