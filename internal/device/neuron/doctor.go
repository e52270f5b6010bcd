//go:build linux

package neuron

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// onBus are the PCI device ids of Amazon's Neuron devices.
var onBus = map[uint64]string{
	0x7064: "Inferentia", 0x7065: "Inferentia", 0x7066: "Inferentia", 0x7067: "Inferentia",
	0x7164: "Trainium", 0x7264: "Inferentia2", 0x7364: "Trainium2",
}

// countOnBus returns the number of Neuron devices on the PCI bus.
func countOnBus(root string) int {
	n := 0
	for _, d := range sysfs.Dir(root).Join("sys/bus/pci/devices").Glob("*") {
		if v, err := d.Text("vendor"); err != nil || v != Facts.PCI {
			continue
		}
		if id, err := d.Uint("device"); err == nil && onBus[id] != "" {
			n++
		}
	}
	return n
}

// Diagnose reports which Neuron devices and driver were found, what is missing, and how to
// fix that.
func Diagnose(ctx context.Context, o Options) []device.Check {
	o = o.withDefaults()
	hardware := countOnBus(o.Root)
	r, err := Open(ctx, o)
	if err != nil {
		if hardware == 0 {
			return []device.Check{{Subject: "neuron hardware", State: device.CheckAbsent, Detail: "no Inferentia or Trainium on the PCI bus"}}
		}
		return []device.Check{{
			Subject: "neuron driver", State: device.CheckFailed, Detail: fmt.Sprintf("not loaded, although there are %d devices on the PCI bus", hardware),
			Fix: "install aws-neuronx-dkms, or load it with modprobe neuron",
		}}
	}
	defer func() { _ = r.Close() }() // nothing was changed
	list, err := r.Devices(ctx)
	checks := []device.Check{r.countCheck(list)}
	for _, d := range list {
		_, failed := d.Read(ctx, device.Static)
		if h := r.hear(ctx); h.err != nil { // reported by monitorCheck
			failed = without(failed, h.err)
		}
		err = errors.Join(err, without(failed, r.look(ctx, device.Fast).err))
	}
	if err != nil {
		c := device.Check{Subject: "neuron values", State: device.CheckLimited, Detail: err.Error()}
		if errors.Is(err, fs.ErrPermission) {
			c.Fix = "run as root: on some images only root may read the driver's files"
		}
		checks = append(checks, c)
	}
	checks = append(checks, userCheck(r.look(ctx, device.Fast)))
	return append(checks, r.monitorCheck(ctx))
}

// without returns the errors in err except known.
func without(err, known error) error {
	var many interface{ Unwrap() []error }
	if known == nil || !errors.As(err, &many) {
		return err
	}
	var rest []error
	for _, e := range many.Unwrap() {
		if e.Error() != known.Error() {
			rest = append(rest, e)
		}
	}
	return errors.Join(rest...)
}

func (r *Reader) countCheck(list []device.Device) device.Check {
	devices, driver := 0, ""
	for _, d := range list {
		if c, ok := d.(*chip); ok {
			devices++
			driver = c.info.Driver
		}
	}
	c := device.Check{
		Subject: "neuron devices", State: device.CheckOK,
		Detail: fmt.Sprintf("%d with %d cores, driver %s", devices, len(list)-devices, orUnknown(driver)),
	}
	if !slices.ContainsFunc(list, hasValues) {
		c.State = device.CheckLimited
		c.Detail += ": no core values found in the known places; drivers from 2.31 on moved some of them"
		c.Fix = "use a driver before 2.31, or a newer release of gpumeter"
	}
	return c
}

// hasValues reports whether the driver provides any value for a core.
func hasValues(d device.Device) bool {
	p, ok := d.(*core)
	return ok && len(p.files.memory)+len(p.files.statuses) > 0
}

func orUnknown(s string) string {
	if s == "" {
		return "of unknown version"
	}
	return s
}

func userCheck(u users) device.Check {
	pids := map[uint32]bool{}
	for _, files := range u.files {
		for _, f := range files {
			pids[f.PID] = true
		}
	}
	c := device.Check{Subject: "neuron processes", State: device.CheckOK, Detail: fmt.Sprintf("%d processes have a device open", len(pids))}
	const fix = "run in the host's PID namespace with CAP_SYS_PTRACE"
	switch {
	case u.err != nil:
		c.State, c.Detail, c.Fix = device.CheckFailed, u.err.Error(), fix
	case u.denied > 0:
		c.State, c.Fix = device.CheckLimited, fix
		c.Detail += fmt.Sprintf("; the files of %d processes are not readable", u.denied)
	}
	return c
}

func (r *Reader) monitorCheck(ctx context.Context) device.Check {
	c := device.Check{Subject: "neuron monitor", State: device.CheckLimited}
	const fix = "run neuron-monitor and write its output to the configured file or unix socket"
	if r.monitor == nil {
		c.Detail, c.Fix = "not configured: the utilization of the cores is unknown", fix
		return c
	}
	h := r.hear(ctx)
	if h.report != nil {
		c.Detail = fmt.Sprintf("%d processes use the devices", len(h.report.runtimes))
		if h.err == nil {
			c.State = device.CheckOK
			return c
		}
		c.Detail += "; "
	}
	c.Detail += h.err.Error()
	if h.report == nil {
		c.Fix = fix
	}
	return c
}
