//go:build linux

package nvidia

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// hostRoot is the file system of a machine with one NVIDIA GPU on the bus.
func hostRoot(t *testing.T, driver bool) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"sys/bus/pci/devices/0000:10:00.0/vendor": "0x10de\n",
		"sys/bus/pci/devices/0000:10:00.0/class":  "0x030200\n",
		"sys/bus/pci/devices/0000:11:00.0/vendor": "0x8086\n",
		"sys/bus/pci/devices/0000:11:00.0/class":  "0x020000\n",
		"sys/bus/pci/devices/0000:12:00.0/vendor": "0x10de\n", // a GPU's audio function
		"sys/bus/pci/devices/0000:12:00.0/class":  "0x040300\n",
	}
	if driver {
		files["proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX Open Kernel Module  580.159.04\nGCC version: 12\n"
		files["proc/4242/comm"] = "python3\n"
	}
	for name, data := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// text joins checks to what a user reads.
func text(checks []device.Check) string {
	var b strings.Builder
	for _, c := range checks {
		b.WriteString(string(c.State) + " " + c.Subject + ": " + c.Detail + " -> " + c.Fix + "\n")
	}
	return b.String()
}

func TestDiagnose(t *testing.T) {
	f := func(o Options, wants ...string) {
		t.Helper()
		got := text(Diagnose(t.Context(), o))
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("the diagnosis does not contain %q:\n%s", want, got)
			}
		}
	}
	library := func(script string, without ...string) string { return nvmltest.Without(t, script, without...).Library }

	// A machine without NVIDIA hardware is not a problem.
	f(Options{Root: t.TempDir()}, "absent nvidia hardware: no NVIDIA GPU on the PCI bus", "absent nvidia kernel driver", "absent nvidia library", "looked in")
	// Hardware without a driver is a problem, and so is a driver whose library the
	// container does not have.
	f(Options{Root: hostRoot(t, false)}, "ok nvidia hardware: 1 on the PCI bus: 0000:10:00.0", "failed nvidia kernel driver", "modprobe nvidia", "failed nvidia library", "--nvidia-library")
	f(Options{Root: hostRoot(t, true), Library: library("init 18")}, "versions differ", "reboot")
	f(Options{Root: hostRoot(t, true), Library: library("init 9")}, "modprobe nvidia")
	f(Options{Root: hostRoot(t, true), Library: library("process 0 4242 compute 1 1")},
		"ok nvidia kernel driver: NVRM version: NVIDIA UNIX Open Kernel Module 580.159.04", "shows 1 GPUs", "ok gpu 0: NVIDIA H200 hopper", "ok nvidia functions")
	// The reason for missing profiling is reported.
	f(Options{Root: hostRoot(t, true), Library: library("gpu 0 arch 7\ngpu 0 name A100")}, "limited gpu 0 profiling: none: the driver counts SM, tensor and memory activity only on Hopper and later; this is ampere", "DCGM")
	f(Options{Root: hostRoot(t, true), Library: library("", "nvmlGpm*")}, "limited gpu 0 profiling", "upgrade the driver", "limited nvidia functions: the library does not have nvmlGpm")
	// Processes are in another PID namespace.
	f(Options{Root: hostRoot(t, true), Library: library("process 0 99999 compute 1 1")}, "limited gpu 0 processes", "hostPID")
	f(Options{Root: hostRoot(t, true), Library: library("gpus 2\ngpu 1 lost")}, "failed nvidia devices: GPU 1", "fallen off the bus", "ok gpu 0")
	f(Options{Root: hostRoot(t, true), Library: library("gpu 0 ret nvmlDeviceGetPerformanceState 4")}, "limited gpu 0: nvmlDeviceGetPerformanceState: no permission")
}

func TestCheckLibrary(t *testing.T) {
	if err := CheckLibrary(nvmltest.New(t, "init 9").Library); err != nil {
		t.Errorf("a good library without a driver: %v", err)
	}
	libs, _ := filepath.Glob("/lib/*/libc.so.6")
	if len(libs) == 0 {
		t.Skip("no glibc found")
	}
	if err := CheckLibrary(libs[0]); err == nil || !strings.Contains(err.Error(), "is not NVIDIA's management library") {
		t.Errorf("libc: %v", err)
	}
}
