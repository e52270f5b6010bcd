//go:build linux

package tenstorrent

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Diagnose reports which Tenstorrent hardware and driver parts were found, which are
// missing, and how to fix that.
func Diagnose(ctx context.Context, o Options) []device.Check {
	onBus := onBus(o)
	r, err := Open(ctx, o)
	switch {
	case err != nil && len(onBus) == 0:
		return []device.Check{{Subject: "tenstorrent hardware", State: device.CheckAbsent, Detail: "no Tenstorrent chip on the PCI bus"}}
	case err != nil:
		return []device.Check{{
			Subject: "tenstorrent kernel driver", State: device.CheckFailed,
			Detail: fmt.Sprintf("not loaded, although there is hardware: %s", strings.Join(onBus, " ")),
			Fix:    "install the driver (tt-kmd), or load it with modprobe tenstorrent; in a container, mount the host's /sys",
		}}
	}
	defer func() { _ = r.Close() }() // the reader holds no resources
	var checks []device.Check
	devices, err := r.Devices(ctx)
	if err != nil {
		checks = append(checks, device.Check{
			Subject: "tenstorrent devices", State: device.CheckFailed, Detail: err.Error(),
			Fix: "see the kernel log (dmesg | grep tenstorrent); a chip that stays in reset needs tt-smi -r or a reboot",
		})
	}
	for _, d := range devices {
		checks = append(checks, chipChecks(ctx, d.(*chip))...)
	}
	return checks
}

// onBus returns the addresses of Tenstorrent's PCI devices.
func onBus(o Options) []string {
	var found []string
	for _, d := range o.dir("sys/bus/pci/devices").Glob("*") {
		if id, err := d.Text("vendor"); err == nil && strings.EqualFold(id, Facts.PCI) {
			found = append(found, d.Base())
		}
	}
	return found
}

func chipChecks(ctx context.Context, c *chip) []device.Check {
	subject := fmt.Sprintf("tenstorrent %d", c.number)
	s, err := c.Read(ctx, device.Static)
	if err != nil {
		return []device.Check{{Subject: subject, State: device.CheckFailed, Detail: err.Error(), Fix: "see the kernel log (dmesg | grep tenstorrent)"}}
	}
	checks := []device.Check{{Subject: subject, State: device.CheckOK, Detail: strings.TrimSpace(c.id.Model + " " + c.id.PCI)}}
	if !s.Heartbeat.OK() {
		checks = append(checks, device.Check{
			Subject: subject + " telemetry", State: device.CheckLimited, Detail: "the driver provides no heartbeat and no clocks",
			Fix: "upgrade the firmware (bundle 18.4 or later for Wormhole) and tt-kmd (2.7 or later); after a reset the values return",
		})
	}
	if len(s.Powers) == 0 || !s.Powers[0].Instant.OK() {
		checks = append(checks, device.Check{
			Subject: subject + " power", State: device.CheckLimited, Detail: "the driver provides no hwmon: no power, energy and temperature",
			Fix: "upgrade the firmware and tt-kmd, and give the agent all of /sys",
		})
	}
	if !c.opts.dir("proc/driver/tenstorrent").Exists() {
		checks = append(checks, device.Check{
			Subject: subject + " processes", State: device.CheckLimited,
			Detail: "/proc/driver/tenstorrent is missing: processes are found by their open files, every slow interval, as far as permissions allow",
			Fix:    "upgrade tt-kmd, or give the agent the host's /proc; CAP_SYS_PTRACE shows the files of other users",
		})
	}
	return checks
}
