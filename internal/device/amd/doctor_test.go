//go:build linux

package amd

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// diagnose returns a diagnosis as lines. It checks that every problem, and nothing else,
// comes with a fix.
func diagnose(t *testing.T, tr tree) []string {
	t.Helper()
	var lines []string
	for _, c := range Diagnose(t.Context(), tr.options()) {
		line := fmt.Sprintf("%s: %s: %s", c.Subject, c.State, strings.ReplaceAll(c.Detail, tr.root, ""))
		if (c.Fix == "") == (c.State == device.CheckLimited || c.State == device.CheckFailed) {
			t.Errorf("%s: fix %q", line, c.Fix)
		}
		lines = append(lines, line)
	}
	return lines
}

// Every failure comes with a fix.
func TestFailed(t *testing.T) {
	f := func(err error, state device.CheckState, fix string) {
		t.Helper()
		if c := failed("gpu 0", fmt.Errorf("a\n%w", err)); c.State != state || !strings.Contains(c.Fix, fix) || strings.Contains(c.Detail, "\n") {
			t.Errorf("%v: %+v", err, c)
		}
	}
	f(errUnknown, device.CheckLimited, "upgrade gpumeter")
	f(os.ErrPermission, device.CheckLimited, "run as root")
	f(device.ErrLost, device.CheckFailed, "dmesg")
}

func TestDiagnose(t *testing.T) {
	f := func(tr tree, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, diagnose(t, tr)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	f(newTree(t), "amd hardware: absent: no AMD GPU on the PCI bus")

	onBus := func() tree {
		tr := newTree(t)
		tr.write("sys/bus/pci/devices/0000:05:00.0/vendor", "0x1002\n")
		tr.write("sys/bus/pci/devices/0000:05:00.0/class", "0x120000\n")
		tr.write("sys/bus/pci/devices/0000:05:00.1/vendor", "0x1002\n") // the GPU's audio function
		tr.write("sys/bus/pci/devices/0000:05:00.1/class", "0x040300\n")
		tr.write("sys/bus/pci/devices/0000:06:00.0/vendor", "0x10de\n")
		tr.write("sys/bus/pci/devices/0000:06:00.0/class", "0x030000\n")
		return tr
	}
	const hardware = "amd hardware: ok: 1 found: 0000:05:00.0"
	tr := onBus()
	f(tr, hardware, "amd driver: failed: not loaded, although there is hardware")
	tr.write("sys/module/amdgpu/version", "6.12.12\n")
	f(tr, hardware, "amd driver: failed: amdgpu is loaded but not bound to any GPU")

	tr = onBus()
	tr.card(0, "0000:05:00.0", nil)
	tr.write("dev/kmsg", "")
	f(tr, hardware, "amd driver: ok: amdgpu of an unknown version shows 1 GPUs",
		"amd compute driver: limited: KFD is missing: processes and partitions are unknown",
		"amd gpu 0: limited: AMD Instinct MI300X: no gpu_metrics, so throttling, energy and link counters are absent")
	tr.write("sys/class/drm/card0/device/gpu_metrics", "\x08\x00\x01\x63....")
	tr.write("sys/class/kfd/kfd/topology/generation_id", "1\n")
	tr.write("sys/class/kfd/kfd/proc/77/vram_1", "1\n")
	f(tr, hardware, "amd driver: ok: amdgpu of an unknown version shows 1 GPUs",
		"amd compute driver: limited: KFD names processes that are not in /proc",
		"amd gpu 0: limited: cannot decode /sys/class/drm/card0/device/gpu_metrics: v1.99: unknown layout (8 bytes)")
	tr.folder("sys/class/drm/card0/device/gpu_metrics")
	tr.write("proc/77/comm", "x\n")
	f(tr, hardware, "amd driver: ok: amdgpu of an unknown version shows 1 GPUs",
		"amd gpu 0: failed: read /sys/class/drm/card0/device/gpu_metrics: is a directory")

	tr.folder("sys/class/kfd/kfd/topology/nodes/1/properties")
	tr.remove("sys/class/drm/card0/device/gpu_metrics")
	f(tr, hardware, "amd driver: ok: amdgpu of an unknown version shows 1 GPUs",
		"amd devices: failed: cannot read the topology of KFD: read /sys/class/kfd/kfd/topology/nodes/1/properties: is a directory",
		"amd gpu 0: limited: AMD Instinct MI300X: no gpu_metrics, so throttling, energy and link counters are absent")

	tr = machine(t)
	tr.write("proc/600/comm", "x\n")
	f(tr, "amd hardware: ok: 4 found: card1 card10 card12 card13",
		"amd driver: ok: amdgpu 6.12.12 shows 4 GPUs and 2 partitions",
		"amd events: limited: no events of resets, hangs and RAS errors: open /dev/kmsg: no such file or directory",
		"amd gpu 0: ok: AMD Instinct MI300X OAM gfx942, gpu_metrics v1.8",
		"amd gpu 0 partition 0 dpx_nps1: ok: AMD Instinct MI300X OAM, gpu_metrics v1.8",
		"amd gpu 0 partition 1 dpx_nps1: ok: AMD Instinct MI300X OAM",
		"amd gpu 1: ok: AMD Instinct MI210 gfx90a, gpu_metrics v1.3",
		"amd gpu 2: limited: AMD Radeon RX 7600 is asleep: reading its sensors would wake it",
		"amd gpu 3: limited: AMD GPU 1002:1234: no gpu_metrics, so throttling, energy and link counters are absent")
}
