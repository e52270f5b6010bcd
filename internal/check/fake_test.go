//go:build linux

package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/check/ata"
	"github.com/gpumeter/gpumeter/internal/check/nvme"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/amd"
	"github.com/gpumeter/gpumeter/internal/device/nvidia"
	"github.com/gpumeter/gpumeter/internal/health"
)

const day = 24 * time.Hour

// files are the content of a fake root, by path.
type files map[string]string

// node returns a healthy machine with more files in its root, or others. A file whose
// content is "-" is not there.
func node(t *testing.T, more files) Env {
	t.Helper()
	all := files{
		"proc/uptime":  "864000.00 1000.00\n", // ten days
		"proc/meminfo": "MemTotal:       2000000 kB\nMemFree:         500000 kB\nMemAvailable:   1000000 kB\n",
		"proc/1/mountinfo": "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n" +
			"30 22 0:50 / /home rw - nfs4 server:/home rw\n",
		"etc/fstab": "# comment\nUUID=1 / ext4 defaults 0 1\nserver:/home /home nfs4 _netdev 0 0\n",
		"dev/kmsg":  "6,1,863900000000,-;all is well\n",
		"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
	}
	root := t.TempDir()
	for path, text := range all {
		if _, ok := more[path]; !ok {
			put(t, root, path, text)
		}
	}
	for path, text := range more {
		if text != "-" {
			put(t, root, path, text)
		}
	}
	return Env{
		Root: root, Window: 15 * time.Minute, StuckFor: 20 * time.Millisecond, Vendors: device.Vendors{nvidia.Facts, amd.Facts},
		Statfs: func(string) (unix.Statfs_t, error) { return space(50, 50), nil },
		Clock:  func() (int, unix.Timex, error) { return unix.TIME_OK, unix.Timex{Maxerror: 1000}, nil },
		NVMe: func(string) (nvme.Health, error) {
			return nvme.Health{Celsius: 40, Spare: 100, SpareThreshold: 10}, nil
		},
		ATA: func(string) (ata.Health, error) { return ata.Health{}, nil },
	}
}

func put(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// space is a file system of 100 blocks of a GiB, with so many percent of blocks and of
// inodes in use.
func space(used, inodes uint64) unix.Statfs_t {
	return unix.Statfs_t{Bsize: 1 << 30, Blocks: 100, Bfree: 100 - used, Bavail: 100 - used, Files: 1000, Ffree: 1000 - 10*inodes}
}

// gpu is a healthy device.
func gpu(index int, change ...func(*health.Device)) health.Device {
	d := health.Device{Up: true, Sample: device.Sample{
		ID:   device.ID{Vendor: "nvidia", UUID: fmt.Sprintf("GPU-%d", index), Index: index, Model: "NVIDIA H200", PCI: fmt.Sprintf("0000:%02x:00.0", 16+index)},
		Info: device.Info{Driver: "580.1"}, Modes: device.Modes{Persistence: device.Of(1), MIG: device.Of(0)},
		Utilization: device.Engines{Compute: device.Of(0)}, Memory: device.Memory{Used: device.Of(5 << 20)},
		PCIe:   device.PCIe{Generation: device.Of(1), GenerationMax: device.Of(5), Width: device.Of(16), WidthMax: device.Of(16)},
		Fabric: device.Fabric{State: device.Of(3), Health: device.Of(1)},
		Interconnects: []device.Interconnect{{Type: "nvlink", Links: []device.Link{
			{Index: 0, Up: device.Of(1)}, {Index: 1, Up: device.Of(1)}, {Index: 2, Up: device.Of(1)},
		}}},
	}}
	for _, f := range change {
		f(&d)
	}
	return d
}

// with returns a machine of these devices whose driver answers.
func with(list ...health.Device) func(context.Context) (Machine, error) {
	return func(context.Context) (Machine, error) {
		return Machine{Devices: list, Drivers: []Driver{{Name: "nvidia", State: "open"}}}, nil
	}
}

// one runs one check, which has all the time of a slow machine.
func one(t *testing.T, env Env, id string) (r Result) {
	t.Helper()
	list, err := Select(Periodic, []string{id}, nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { r = Run(t.Context(), env, list, 10*time.Second)[0] })
	return r
}

// expect runs a check and compares its status, and a part of what it says.
func expect(t *testing.T, env Env, id string, want Status, words ...string) {
	t.Helper()
	r := one(t, env, id)
	text := fmt.Sprintf("%s %v", r.Reason, r.Problems)
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s says %q, want %q in it", id, text, w)
		}
	}
	if r.Status != want {
		t.Errorf("%s is %s (%s), want %s", id, r.Status, r.Reason, want)
	}
	if (r.Status == Warning || r.Status == Critical) && r.Action == "" {
		t.Errorf("%s does not say what to do", id)
	}
}
