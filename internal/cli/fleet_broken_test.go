//go:build linux

package cli_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/local/fleettest"
)

// One broken device of each vendor costs itself, in part or as a whole, and no other device
// of its vendor or of another.
func TestFleetBroken(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.tpu.Close() // libtpu does not answer; what it said before would be used for a while
	a := start(t, append(f.flags(), "--interval", "1s")...)
	waitFleet(t, a, func(p page) error { return complete(p, "tpu") })

	f.nvidia.Append(t, "gpu 1 lost")
	if err := fleettest.ScriptHLML(f.gaudi, f.script+"0 ret hlml_device_get_power_usage 15\n"); err != nil { // is lost
		t.Fatal(err)
	}
	const (
		mi210     = "amd-1901f3a8c0de4242"
		b580      = "intel-ba8774eed46244ce-0000:1d:00.0"
		trainium  = "neuron-a1b2c3d401"
		blackhole = "tenstorrent-0000046131924099-fcf9bcf9e3c8b89e"
	)
	b580Dir := "sys/devices/pci0000:17/0000:17:03.0/0000:1b:00.0/0000:1c:01.0/0000:1d:00.0/"
	for _, file := range []string{
		"sys/class/drm/card10/device/gpu_metrics",
		b580Dir + "tile0/gt0/freq0/act_freq",
		"sys/devices/virtual/neuron_device/neuron1/neuron_core0/stats/memory_usage/device_mem/tensors/total",
		"sys/devices/pci0000:00/0000:81:00.0/tenstorrent/tenstorrent!2/tt_aiclk",
	} {
		if err := fleettest.Spoil(f.root, file); err != nil {
			t.Fatal(err)
		}
	}
	broken := map[string]string{ // what it has no longer; gpu_up: that is 0
		"GPU-00000000-0000-4000-8000-000000000001": "gpu_up",
		"01P4-HL3090A0-18-U4V193-22-07-02":         "gpu_up",
		mi210:                                      "gpu_utilization_ratio",
		b580:                                       "gpu_clock_frequency_hertz",
		trainium + "-nc0":                          "gpu_partition_memory_used_bytes",
		blackhole:                                  "gpu_clock_frequency_hertz",
		"tpu-ba8774eed46244ce-0000:00:04.0":        "gpu_utilization_ratio",
		"tpu-ba8774eed46244ce-0000:00:05.0":        "gpu_utilization_ratio",
	}
	affected := func(series string) bool {
		uuid := label(series, "gpu_uuid")
		return broken[uuid] != "" || uuid == trainium
	}
	want := fleetGolden(t)
	got := waitFleet(t, a, func(p page) error {
		for s, v := range p {
			what := broken[deviceOf(s)]
			if what == "gpu_up" && strings.HasPrefix(s, "gpu_up{") && v != 0 || what != "gpu_up" && what != "" && strings.HasPrefix(s, what) {
				return fmt.Errorf("%s is %g", s, v)
			}
		}
		return lacks(p, want, affected)
	})
	golden, err := os.ReadFile("testdata/fleet/page.prom")
	if err != nil {
		t.Fatal(err)
	}
	others := func(page string) []string {
		var lines []string
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "gpu_") && !affected(line) {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if diff := cmp.Diff(others(string(golden)), others(got)); diff != "" {
		t.Errorf("it cost others (-want +got):\n%s", diff)
	}
	p, err := parse(got)
	if err != nil {
		t.Fatal(err)
	}
	ups := map[string]float64{}
	for s, v := range p {
		if strings.HasPrefix(s, "gpu_up{") || strings.HasPrefix(s, "gpu_partition_up{") {
			ups[deviceOf(s)] = v
		}
	}
	for id, what := range broken {
		if up, ok := ups[id]; !ok || (up == 0) != (what == "gpu_up") {
			t.Errorf("%s, without %s: gpu_up %g, shown %v", id, what, up, ok)
		}
	}
	a.stop()
}
