//go:build linux

package intel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

const kernelLog = "see the kernel log (dmesg | grep -e xe -e i915)"

// Diagnose says what was found of Intel's GPUs, what is missing, and what would mend it.
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

// busChecks looks at the PCI bus, where a GPU shows whether a driver has it or not.
func busChecks(sys sysfs.Dir) []device.Check {
	const subject = "intel hardware"
	var found []string
	var checks []device.Check
	integrated := 0
	for _, dir := range sys.Glob("bus/pci/devices/*") {
		text, err := dir.Text("uevent")
		env := parseUevent(text)
		vendor, chip, _ := strings.Cut(env["PCI_ID"], ":")
		// The class has no leading zeros here: 30000 is a VGA, 38000 another display controller.
		if class := env["PCI_CLASS"]; err != nil || vendor != "8086" || len(class) != 5 || class[0] != '3' {
			continue
		}
		var n uint16
		_, _ = fmt.Sscanf(chip, "%x", &n)
		if !discrete(n, findHwmon(dir) != "") {
			integrated++
			continue
		}
		found = append(found, dir.Base())
		if driver := env["DRIVER"]; driver != "xe" && driver != "i915" {
			checks = append(checks, undriven(dir.Base(), model(n), driver))
		}
	}
	if len(found) == 0 {
		detail := "no discrete Intel GPU on the PCI bus"
		if integrated > 0 {
			detail += fmt.Sprintf("; integrated ones are left out (%d)", integrated)
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
		c.State, c.Detail = device.CheckLimited, fmt.Sprintf("%s is with the driver %s", model, driver)
		c.Fix = "nothing to do if it was given to a virtual machine: its values are in there"
	}
	return c
}

// check reads one GPU and says what it cannot tell, and why.
func (g *gpu) check(ctx context.Context) []device.Check {
	subject := fmt.Sprintf("intel gpu %d", g.id.Index)
	if g.id.Parent != "" {
		subject += " vf " + g.id.PCI
	}
	s, err := g.Read(ctx, device.Static)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return []device.Check{{Subject: subject, State: device.CheckLimited, Detail: err.Error(), Fix: "mount /sys of the host readable"}}
	case err != nil:
		return []device.Check{{Subject: subject, State: device.CheckFailed, Detail: err.Error(), Fix: kernelLog}}
	case s.Status == device.Of(1):
		return []device.Check{{
			Subject: subject, State: device.CheckFailed, Detail: g.id.Model + " is in survivability mode and takes nothing but new firmware",
			Fix: "flash its firmware (fwupdmgr or igsc); " + kernelLog,
		}}
	}
	detail := fmt.Sprintf("%s, %s, driver %s", g.id.Model, g.card.Base(), s.Info.Driver)
	if g.due > device.Fast {
		detail += "; it sleeps, and its sensors are not read until work wakes it"
	}
	checks := []device.Check{{Subject: subject, State: device.CheckOK, Detail: detail}}
	switch {
	case g.id.Parent != "": // its sensors are those of the GPU
	case g.hwmon.dir == "":
		checks = append(checks, device.Check{
			Subject: subject + " sensors", State: device.CheckLimited, Detail: "none: the driver shows no energy, temperature or fan",
			Fix: "nothing to do in a virtual machine; else Linux 6.2 (i915) or 6.7 (xe) or later has them",
		})
	case len(g.hwmon.energies) == 0:
		checks = append(checks, device.Check{
			Subject: subject + " power", State: device.CheckLimited, Detail: "none: the driver counts no energy for this GPU", Fix: "a newer kernel may have it",
		})
	}
	return checks
}

// processCheck says whether the users of the GPUs can be seen, of which their use depends.
func (r *Reader) processCheck(ctx context.Context) device.Check {
	c := device.Check{Subject: "intel processes", State: device.CheckLimited}
	found, err := r.scan.find(ctx)
	switch {
	case err != nil:
		c.State, c.Detail = device.CheckFailed, err.Error()
	case found.err != nil:
		c.State, c.Detail, c.Fix = device.CheckFailed, found.err.Error(), "mount /proc of the host readable"
	case !found.host:
		c.Detail = "only the processes of this PID namespace are visible, so that the use of the GPU and its memory is not known"
		c.Fix = "run in the host's PID namespace (hostPID: true in Kubernetes)"
	case found.denied > 0:
		c.Detail = fmt.Sprintf("%d processes of other users cannot be looked at, so that the use of the GPU and its memory is not known", found.denied)
		c.Fix = "run as root or with CAP_SYS_PTRACE"
	default:
		c.State, c.Detail = device.CheckOK, "all can be seen"
	}
	return c
}
