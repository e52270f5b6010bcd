//go:build linux

package intel

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// lines formats checks for comparison: state, subject, detail.
func lines(checks []device.Check) []string {
	var list []string
	for _, c := range checks {
		list = append(list, string(c.State)+" "+c.Subject+": "+c.Detail)
	}
	return list
}

func TestDiagnose(t *testing.T) {
	f := func(m *machine, want ...string) {
		t.Helper()
		checks := Diagnose(context.Background(), m.options())
		if diff := cmp.Diff(want, lines(checks)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for _, c := range checks {
			if (c.State == device.CheckFailed || c.State == device.CheckLimited) && c.Fix == "" {
				t.Errorf("%q has no fix", c.Detail)
			}
		}
	}
	m := load(t, "node.txt")
	m.set(arcDir+"/power/runtime_status", "suspended")
	f(m,
		"ok intel hardware: 6 on the PCI bus: 0000:1a:00.0 0000:1d:00.0 0000:4d:00.0 0000:5e:00.0 0000:5e:00.1 0000:6f:00.0",
		"ok intel gpu 0: Intel Data Center GPU Flex 170, card1, driver i915 1.25.2.40.250316",
		"ok intel gpu 1: Intel Arc B580, card2, driver xe 6.16.3-generic; asleep: its sensors are not read until work wakes the GPU",
		"ok intel gpu 2: Intel Data Center GPU Max 1550, card4, driver xe 6.16.3-generic",
		"ok intel gpu 3: Intel Arc Pro B60, card6, driver xe 6.16.3-generic",
		"limited intel gpu 3 power: none: the driver counts no energy for this GPU",
		"ok intel gpu 3 vf 0000:5e:00.1: Intel Arc Pro B60, card7, driver xe 6.16.3-generic",
		"failed intel gpu 4: Intel Arc B570 is in survivability mode and accepts nothing but new firmware",
		"ok intel processes: all processes are visible",
	)

	const bus = "sys/bus/pci/devices/0000:08:00.0"
	one := func() *machine {
		m := oneCard(t, map[string]string{"hwmon/hwmon0/energy1_input": "1"})
		m.link(bus, "../../../"+strings.TrimPrefix(cardDir, "sys/"))
		return m
	}
	hardware := "ok intel hardware: 1 on the PCI bus: 0000:08:00.0"
	m = one()
	m.remove("proc/2")
	f(m, hardware, "ok intel gpu 0: Intel Arc A380, card0, driver xe",
		"limited intel processes: only the processes of this PID namespace are visible: utilization and memory use of the GPU are unknown")
	m = one()
	m.remove("proc")
	if got := lines(Diagnose(context.Background(), m.options())); len(got) != 3 || !strings.HasPrefix(got[2], "failed intel processes: open ") {
		t.Errorf("%q", got)
	}
	m = one()
	m.remove(cardDir + "/hwmon")
	f(m, hardware, "ok intel gpu 0: Intel Arc A380, card0, driver xe",
		"limited intel gpu 0 sensors: none: the driver provides no energy, temperature or fan sensor", "ok intel processes: all processes are visible")
	m = one()
	m.spoil(cardDir + "/hwmon/hwmon0/energy1_input")
	if got := lines(Diagnose(context.Background(), m.options())); len(got) != 3 || !strings.Contains(got[1], "energy1_input") || !strings.HasPrefix(got[1], "failed") {
		t.Errorf("%q", got)
	}

	// On the bus, without its driver.
	m = newMachine(t)
	m.set(bus+"/uevent", "PCI_CLASS=30000\nPCI_ID=8086:56A5\nPCI_SLOT_NAME=0000:08:00.0\n")
	f(m, hardware, "failed intel 0000:08:00.0: Intel Arc A380 has no driver")
	m.set(bus+"/uevent", "DRIVER=vfio-pci\nPCI_CLASS=30000\nPCI_ID=8086:56A5\nPCI_SLOT_NAME=0000:08:00.0\n")
	f(m, hardware, "limited intel 0000:08:00.0: Intel Arc A380 is bound to the driver vfio-pci")
	m.set(bus+"/uevent", "DRIVER=i915\nPCI_CLASS=30000\nPCI_ID=8086:46D0\nPCI_SLOT_NAME=0000:00:02.0\n")
	f(m, "absent intel hardware: no discrete Intel GPU on the PCI bus; integrated GPUs are not supported (1 found)")
	m.set("sys/class/drm/card0/device/uevent", "DRIVER=xe\nPCI_ID=8086:56A5\n")
	if got := lines(Diagnose(context.Background(), m.options())); len(got) != 2 || !strings.HasPrefix(got[1], "failed intel devices: cannot identify") {
		t.Errorf("%q", got)
	}
}

// The fix for denied access to processes must be named.
func TestDiagnoseDenied(t *testing.T) {
	m := oneCard(t, nil)
	r := m.open()
	r.scan.last.Store(&openFiles{host: true, denied: 3, ended: m.now})
	c := r.processCheck(context.Background())
	if c.State != device.CheckLimited || !strings.Contains(c.Detail, "3 processes") || !strings.Contains(c.Fix, "CAP_SYS_PTRACE") {
		t.Errorf("%+v", c)
	}
}
