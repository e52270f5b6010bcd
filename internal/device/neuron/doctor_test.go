//go:build linux

package neuron

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Every line that a user may see, with a fix they can apply.
func TestDiagnose(t *testing.T) {
	f := func(name string, m tree, o Options, want ...string) {
		t.Helper()
		o.Root, o.Now = m.write(t, t.TempDir()), func() time.Time { return testTime }
		var got []string
		for _, c := range Diagnose(t.Context(), o) {
			got = append(got, strings.ReplaceAll(fmt.Sprintf("%s: %s: %s [%s]", c.Subject, c.State, c.Detail, c.Fix), o.Root, "ROOT"))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	const (
		devices   = "neuron devices: ok: 2 with 4 cores, driver 2.21.37.0 []"
		processes = "neuron processes: ok: 2 processes have a device open []"
		fix       = " [run neuron-monitor and write its output to the configured file or unix socket]"
		noMonitor = "neuron monitor: limited: not configured: the utilization of the cores is unknown" + fix
	)
	f("nothing", tree{}, Options{}, "neuron hardware: absent: no Inferentia or Trainium on the PCI bus []")
	network := tree{"sys/bus/pci/devices/0000:00:05.0/vendor": "0x1d0f\n", "sys/bus/pci/devices/0000:00:05.0/device": "0xec20\n"}
	f("network card", network, Options{}, "neuron hardware: absent: no Inferentia or Trainium on the PCI bus []")
	network["sys/bus/pci/devices/0000:00:1e.0/vendor"], network["sys/bus/pci/devices/0000:00:1e.0/device"] = "0x1d0f\n", "0x7164\n"
	f("no driver", network, Options{},
		"neuron driver: failed: not loaded, although there are 1 devices on the PCI bus [install aws-neuronx-dkms, or load it with modprobe neuron]")
	f("no monitor", users2(), Options{}, devices, processes, noMonitor)
	f("all is well", users2(), Options{Monitor: output(t, oneLine(t, line), 0)}, devices, processes, "neuron monitor: ok: 2 processes use the devices []")
	f("old", users2(), Options{Monitor: output(t, oneLine(t, line), time.Hour)}, devices, processes, "neuron monitor: limited: neuron-monitor: no new output: neuron-monitor has stopped"+fix)
	f("a group", users2(), Options{Monitor: output(t, strings.Replace(oneLine(t, line), `"loaded_models":[],"error":""`, `"error":"x"`, 1), 0)}, devices, processes,
		"neuron monitor: limited: 2 processes use the devices; neuron-monitor: memory_used: the group reports an error []")
	broken := users2()
	broken[virtual+"neuron1/stats/hardware/mem_ecc_uncorrected"] = "x"
	f("broken", broken, Options{Monitor: "/no/such/file"}, devices,
		`neuron values: limited: cannot parse ROOT/sys/devices/virtual/neuron_device/neuron1/stats/hardware/mem_ecc_uncorrected: "x" is not an unsigned integer []`,
		processes, "neuron monitor: limited: neuron-monitor: no such file or directory"+fix)
	bare := tree{}
	for k, v := range users2() {
		if !strings.Contains(k, "neuron_core") {
			bare[k] = v
		}
	}
	bare[virtual+"neuron0/neuron_core0/values/x"] = "1"
	f("another layout", bare, Options{}, "neuron devices: limited: 2 with 1 cores, driver 2.21.37.0: no core values found in the known places; drivers from 2.31 on moved some of them"+
		" [use a driver before 2.31, or a newer release of gpumeter]", processes, noMonitor)
	blind := users2()
	for k := range blind {
		if strings.HasPrefix(k, "proc/") {
			delete(blind, k)
		}
	}
	delete(blind, "sys/module/neuron/version")
	f("no processes", blind, Options{}, strings.Replace(devices, "2.21.37.0", "of unknown version", 1),
		"neuron processes: failed: cannot find the processes on the devices: open ROOT/proc: no such file or directory [run in the host's PID namespace with CAP_SYS_PTRACE]", noMonitor)
	if c := userCheck(users{denied: 2}); c.State != device.CheckLimited || c.Fix == "" {
		t.Errorf("%+v", c)
	}
}
