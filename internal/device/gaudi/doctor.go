//go:build linux

package gaudi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/vendorlib"
)

// Diagnose reports which Gaudi hardware, driver and library were found, what is missing,
// and how to fix that.
func Diagnose(ctx context.Context, o Options) []device.Check {
	bus := onBus(o)
	type session struct {
		r       *Reader
		devices []device.Device
		err     error
	}
	opened, ok := vendorlib.InTime(patience, func() (s session) {
		if s.r, s.err = Open(ctx, o); s.err == nil {
			s.devices, s.err = s.r.Devices(ctx)
		}
		return s
	})
	if !ok {
		return []device.Check{hungCheck("gaudi library", "looking for accelerators")}
	}
	r, devices, err := opened.r, opened.devices, opened.err
	switch {
	case r == nil && len(bus) == 0:
		return []device.Check{{Subject: "gaudi hardware", State: device.CheckAbsent, Detail: "no Gaudi accelerator on the PCI bus"}}
	case r == nil:
		return []device.Check{{
			Subject: "gaudi kernel driver", State: device.CheckFailed,
			Detail: fmt.Sprintf("not loaded, although there is hardware: %s", strings.Join(bus, " ")),
			Fix:    "install the habanalabs driver, or load it with modprobe habanalabs; in a container, mount the host's /sys",
		}}
	}
	defer func() { _ = r.Close() }() // nothing was changed
	checks := []device.Check{r.libraryCheck()}
	if err != nil {
		checks = append(checks, device.Check{
			Subject: "gaudi devices", State: device.CheckFailed, Detail: err.Error(),
			Fix: "see the kernel log (dmesg | grep habanalabs)",
		})
	}
	for _, d := range devices {
		checks = append(checks, d.(*aip).checks(ctx)...)
	}
	if n := r.current.hidden(); n > 0 {
		checks = append(checks, device.Check{
			Subject: "gaudi processes", State: device.CheckLimited,
			Detail: fmt.Sprintf("the open files of %d processes of other users are not readable", n),
			Fix:    "run as root or with CAP_SYS_PTRACE, in the host's PID namespace",
		})
	}
	return append(checks, r.symbolChecks()...)
}

// patience is how long a diagnosis waits for the driver: a diagnosis is most needed on a
// broken machine, where the driver may hang.
const patience = 8 * time.Second

func hungCheck(subject, call string) device.Check {
	return device.Check{
		Subject: subject, State: device.CheckFailed, Detail: call + " has not returned: the driver hangs",
		Fix: "see the kernel log (dmesg | grep habanalabs); a reset of the accelerator or a reboot may be needed",
	}
}

// onBus returns the addresses of Habana's processing accelerators.
func onBus(o Options) []string {
	var found []string
	for _, d := range o.dir("sys/bus/pci/devices").Glob("*") {
		if id, err := d.Text("vendor"); err == nil && strings.EqualFold(id, Facts.PCI) {
			found = append(found, d.Base())
		}
	}
	return found
}

const withoutLibrary = "utilization, memory, temperature, power, energy, errors and serial numbers are absent"

func (r *Reader) libraryCheck() device.Check {
	c := device.Check{Subject: "gaudi library", State: device.CheckLimited}
	switch {
	case r.open:
		c.State, c.Detail = device.CheckOK, r.lib.Path()
	case errors.Is(r.libErr, device.ErrAbsent):
		c.Detail = fmt.Sprintf("%v; looked at %s; %s", r.libErr, strings.Join(candidates(r.opts.root(), r.opts.LibraryDirs), " "), withoutLibrary)
		c.Fix = "install habanalabs-firmware-tools, or mount the host's /usr/lib/habanalabs into the container"
	case errors.Is(r.libErr, errDriverNotLoaded):
		c.State, c.Detail, c.Fix = device.CheckFailed, r.libErr.Error()+"; "+withoutLibrary, "give the agent /dev/accel, which the library opens"
	default:
		c.State, c.Detail, c.Fix = device.CheckFailed, r.libErr.Error()+"; "+withoutLibrary, "install a library that fits the driver"
	}
	return c
}

// checks reads one accelerator and reports what is unavailable, and why.
func (a *aip) checks(ctx context.Context) []device.Check {
	type answer struct {
		s   device.Sample
		err error
	}
	got, ok := vendorlib.InTime(patience, func() (got answer) {
		got.s, got.err = a.Read(ctx, device.Static)
		return got
	})
	if !ok {
		return []device.Check{hungCheck("gaudi "+a.name, cmp.Or(a.Busy(), "a driver call"))}
	}
	s, err := got.s, got.err
	c := device.Check{Subject: "gaudi " + a.name, State: device.CheckOK, Detail: a.id.Model + " " + a.id.PCI}
	status, _ := s.Status.Get()
	switch {
	case err != nil:
		c.State, c.Detail, c.Fix = device.CheckFailed, err.Error(), "see the kernel log (dmesg | grep habanalabs); a reset or a reboot may be needed"
	case status != operational:
		word, _ := a.dir.Text("status") // best effort: the status code was already read
		c.State, c.Detail, c.Fix = device.CheckFailed, c.Detail+": "+word, "wait for the end of a reset, else see the kernel log (dmesg | grep habanalabs)"
	case a.Handle == 0 && a.r.open:
		c.State, c.Detail, c.Fix = device.CheckLimited, c.Detail+": the library does not list it; "+withoutLibrary, "give the agent all of /dev/accel"
	}
	return []device.Check{c}
}

// symbolChecks lists the functions that this library does not have.
func (r *Reader) symbolChecks() []device.Check {
	if r.lib == nil {
		return nil
	}
	missing := r.lib.Missing()
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return []device.Check{{
		Subject: "gaudi functions", State: device.CheckLimited,
		Detail: "the library does not have " + strings.Join(missing, " ") + "; the values from them are absent",
		Fix:    "a newer library may have them",
	}}
}
