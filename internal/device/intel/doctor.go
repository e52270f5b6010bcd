//go:build linux

package intel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

const kernelLog = "see the kernel log (dmesg | grep -e xe -e i915)"

// Diagnose reports which Intel GPUs were found, what is missing, and how to fix that.
func Diagnose(ctx context.Context, o Options) []device.Check {
	r := newReader(o)
	checks := busChecks(r.sys)
	devices, err := r.Devices(ctx)
	if err != nil {
		checks = append(checks, device.Check{Subject: "intel devices", State: device.CheckFailed, Detail: err.Error(), Fix: kernelLog})
	}
	if len(devices) == 0 {
		return checks
	}
	for _, d := range devices {
		checks = append(checks, d.(*gpu).check(ctx)...)
	}
	return append(checks, r.processCheck(ctx))
}

// busChecks examines the PCI bus, which lists GPUs with and without a driver.
func busChecks(sys sysfs.Dir) []device.Check {
	const subject = "intel hardware"
	var found []string
	var checks []device.Check
	integrated := 0
	for _, dir := range sys.Glob("bus/pci/devices/*") {
		text, err := dir.Text("uevent")
		env := parseUevent(text)
		vendor, chip, _ := strings.Cut(env["PCI_ID"], ":")
		// The class has no leading zeros here: 30000 is a VGA controller, 38000 another
		// display controller.
		if class := env["PCI_CLASS"]; err != nil || "0x"+vendor != Facts.PCI || len(class) != 5 || class[0] != '3' {
			continue
		}
		var n uint16
		_, _ = fmt.Sscanf(chip, "%x", &n)
		if !discrete(n, findHwmon(dir) != "") {
			integrated++
			continue
		}
		found = append(found, dir.Base())
		if driver := env["DRIVER"]; !slices.Contains(Facts.Modules, driver) {
			checks = append(checks, undriven(dir.Base(), model(n), driver))
		}
	}
	if len(found) == 0 {
		detail := "no discrete Intel GPU on the PCI bus"
		if integrated > 0 {
			detail += fmt.Sprintf("; integrated GPUs are not supported (%d found)", integrated)
		}
		return []device.Check{{Subject: subject, State: device.CheckAbsent, Detail: detail}}
	}
	return append([]device.Check{{
		Subject: subject, State: device.CheckOK,
		Detail: fmt.Sprintf("%d on the PCI bus: %s", len(found), strings.Join(found, " ")),
	}}, checks...)
}

func undriven(address, model, driver string) device.Check {
	c := device.Check{Subject: "intel " + address, State: device.CheckFailed, Detail: model + " has no driver", Fix: "load the kernel's driver (modprobe xe or i915); " + kernelLog}
	if driver != "" {
		c.State, c.Detail = device.CheckLimited, fmt.Sprintf("%s is bound to the driver %s", model, driver)
		c.Fix = "nothing to do if the GPU was passed to a virtual machine: run the agent there"
	}
	return c
}

// check reads one GPU and reports what is unavailable, and why.
func (g *gpu) check(ctx context.Context) []device.Check {
	subject := fmt.Sprintf("intel gpu %d", g.id.Index)
	if g.id.Parent != "" {
		subject += " vf " + g.id.PCI
	}
	s, err := g.Read(ctx, device.Static)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return []device.Check{{Subject: subject, State: device.CheckLimited, Detail: err.Error(), Fix: "mount the host's /sys readable"}}
	case err != nil:
		return []device.Check{{Subject: subject, State: device.CheckFailed, Detail: err.Error(), Fix: kernelLog}}
	case s.Status == device.Of(1):
		return []device.Check{{
			Subject: subject, State: device.CheckFailed, Detail: g.id.Model + " is in survivability mode and accepts nothing but new firmware",
			Fix: "flash its firmware (fwupdmgr or igsc); " + kernelLog,
		}}
	}
	detail := fmt.Sprintf("%s, %s, driver %s", g.id.Model, g.card.Base(), s.Info.Driver)
	if g.due > device.Fast {
		detail += "; asleep: its sensors are not read until work wakes the GPU"
	}
	checks := []device.Check{{Subject: subject, State: device.CheckOK, Detail: detail}}
	switch {
	case g.id.Parent != "": // a virtual function has no sensors of its own
	case g.hwmon.dir == "":
		checks = append(checks, device.Check{
			Subject: subject + " sensors", State: device.CheckLimited, Detail: "none: the driver provides no energy, temperature or fan sensor",
			Fix: "nothing to do in a virtual machine; otherwise use Linux 6.2 (i915) or 6.7 (xe) or later",
		})
	case len(g.hwmon.energies) == 0:
		checks = append(checks, device.Check{
			Subject: subject + " power", State: device.CheckLimited, Detail: "none: the driver counts no energy for this GPU", Fix: "a newer kernel may have it",
		})
	}
	return checks
}

// processCheck reports whether all users of the GPUs are visible, which their utilization
// depends on.
func (r *Reader) processCheck(ctx context.Context) device.Check {
	c := device.Check{Subject: "intel processes", State: device.CheckLimited}
	found, err := r.scan.find(ctx)
	switch {
	case err != nil:
		c.State, c.Detail = device.CheckFailed, err.Error()
	case found.err != nil:
		c.State, c.Detail, c.Fix = device.CheckFailed, found.err.Error(), "mount the host's /proc readable"
	case !found.host:
		c.Detail = "only the processes of this PID namespace are visible: utilization and memory use of the GPU are unknown"
		c.Fix = "run in the host's PID namespace (hostPID: true in Kubernetes)"
	case found.denied > 0:
		c.Detail = fmt.Sprintf("%d processes of other users cannot be inspected: utilization and memory use of the GPU are unknown", found.denied)
		c.Fix = "run as root or with CAP_SYS_PTRACE"
	default:
		c.State, c.Detail = device.CheckOK, "all processes are visible"
	}
	return c
}
