//go:build linux

package amd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// Diagnose reports which AMD hardware and driver parts were found, which are missing, and
// how to fix that.
func Diagnose(ctx context.Context, o Options) []device.Check {
	o = o.filled()
	onBus := pciGPUs(o.sys())
	r, err := Open(ctx, o)
	if err != nil && len(onBus) == 0 {
		return []device.Check{{Subject: "amd hardware", State: device.CheckAbsent, Detail: "no AMD GPU on the PCI bus"}}
	}
	if len(onBus) == 0 { // a container may see the class and not the bus
		for _, c := range cards(o.sys()) {
			onBus = append(onBus, c.Base())
		}
	}
	checks := []device.Check{{
		Subject: "amd hardware", State: device.CheckOK,
		Detail: fmt.Sprintf("%d found: %s", len(onBus), strings.Join(onBus, " ")),
	}}
	if err != nil {
		return append(checks, driverCheck(o))
	}
	devices, err := r.Devices(ctx)
	checks = append(checks, device.Check{
		Subject: "amd driver", State: device.CheckOK,
		Detail: fmt.Sprintf("amdgpu %s shows %s", cmp.Or(driverVersion(o), "of an unknown version"), count(devices)),
	})
	if err != nil {
		checks = append(checks, failed("amd devices", err))
	}
	checks = append(checks, kfdCheck(o)...)
	checks = append(checks, logCheck(o)...)
	for _, d := range devices {
		checks = append(checks, d.(*gpu).check(ctx)...)
	}
	return checks
}

// pciGPUs returns the addresses of AMD's display controllers and accelerators.
func pciGPUs(sys sysfs.Dir) []string {
	var found []string
	for _, d := range sys.Glob("bus/pci/devices/*") {
		vendor, _ := d.Text("vendor")
		class, _ := d.Text("class")
		if vendor == Facts.PCI && (strings.HasPrefix(class, "0x03") || strings.HasPrefix(class, "0x12")) {
			found = append(found, d.Base())
		}
	}
	return found
}

func driverCheck(o Options) device.Check {
	c := device.Check{Subject: "amd driver", State: device.CheckFailed}
	if o.sys().Join("module/amdgpu").Exists() {
		c.Detail = "amdgpu is loaded but not bound to any GPU"
		c.Fix = "see the kernel log (dmesg | grep amdgpu); another driver, such as vfio-pci, may be bound to them"
		return c
	}
	c.Detail, c.Fix = "not loaded, although there is hardware", "load the driver with modprobe amdgpu"
	return c
}

func count(devices []device.Device) string {
	gpus, parts := 0, 0
	for _, d := range devices {
		if d.ID().Parent == "" {
			gpus++
		} else {
			parts++
		}
	}
	if parts > 0 {
		return fmt.Sprintf("%d GPUs and %d partitions", gpus, parts)
	}
	return fmt.Sprintf("%d GPUs", gpus)
}

// kfdCheck checks for the compute driver, which provides partitions and processes.
func kfdCheck(o Options) []device.Check {
	const subject = "amd compute driver"
	if !o.sys().Join(kfdDir, "topology").Exists() {
		return []device.Check{{
			Subject: subject, State: device.CheckLimited, Detail: "KFD is missing: processes and partitions are unknown",
			Fix: "use a kernel with CONFIG_HSA_AMD, and mount the host's /sys into the container",
		}}
	}
	entries, err := os.ReadDir(string(o.sys().Join(kfdDir, "proc")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return []device.Check{failed(subject, err)}
	}
	for _, e := range entries {
		if pid, ok := parsePID(e.Name()); ok && !o.proc().Join(fmt.Sprint(pid)).Exists() {
			return []device.Check{{
				Subject: subject, State: device.CheckLimited, Detail: "KFD names processes that are not in /proc",
				Fix: "run in the host's PID namespace (hostPID: true in Kubernetes)",
			}}
		}
	}
	return nil
}

// logCheck checks whether the kernel log, the source of reset and hardware error events, is
// readable.
func logCheck(o Options) []device.Check {
	f, err := os.Open(filepath.Join(o.Root, "dev/kmsg"))
	if err == nil {
		f.Close()
		return nil
	}
	return []device.Check{{
		Subject: "amd events", State: device.CheckLimited, Detail: fmt.Sprintf("no events of resets, hangs and RAS errors: %v", err),
		Fix: "make /dev/kmsg readable (CAP_SYSLOG, and the file in the container)",
	}}
}

// check reads one device and reports what is unavailable, and why.
func (g *gpu) check(ctx context.Context) []device.Check {
	subject := fmt.Sprintf("amd gpu %d", g.id.Index)
	if g.part() {
		subject += fmt.Sprintf(" partition %d %s", g.k, g.id.Profile)
	}
	subject = strings.TrimSpace(subject)
	type answer struct {
		s   device.Sample
		err error
	}
	done := make(chan answer, 1)
	asleep := g.asleep()
	go func() { // if the GPU hangs, the goroutine is abandoned
		s, err := g.Read(ctx, device.Static)
		done <- answer{s, err}
	}()
	var a answer
	select {
	case a = <-done:
	case <-time.After(5 * time.Second):
		return []device.Check{{
			Subject: subject, State: device.CheckFailed, Detail: cmp.Or(g.Busy(), "a read") + " has not returned: the driver hangs",
			Fix: "see the kernel log (dmesg | grep amdgpu); a reset of the GPU or a reboot may be needed",
		}}
	}
	switch {
	case a.err != nil:
		return []device.Check{failed(subject, a.err)}
	case asleep:
		return []device.Check{{
			Subject: subject, State: device.CheckLimited,
			Detail: g.id.Model + " is asleep: reading its sensors would wake it",
			Fix:    "nothing to do: the GPU is read while something uses it",
		}}
	}
	ok := device.Check{Subject: subject, State: device.CheckOK, Detail: strings.TrimSpace(g.id.Model + " " + a.s.Info.Architecture)}
	if !g.part() && g.m == nil {
		ok.State = device.CheckLimited
		ok.Detail += ": no gpu_metrics, so throttling, energy and link counters are absent"
		ok.Fix = "use a newer driver; GPUs before Vega 20 and some virtual functions do not have it"
	} else if g.m != nil {
		ok.Detail += fmt.Sprintf(", gpu_metrics %s", g.m.version)
	}
	return []device.Check{ok}
}

func failed(subject string, err error) device.Check {
	c := device.Check{
		Subject: subject, State: device.CheckFailed, Detail: strings.ReplaceAll(err.Error(), "\n", "; "),
		Fix: "see the kernel log (dmesg | grep amdgpu)",
	}
	switch {
	case errors.Is(err, errUnknown):
		c.State, c.Fix = device.CheckLimited, "this driver is newer than gpumeter: upgrade gpumeter"
	case errors.Is(err, fs.ErrPermission):
		c.State, c.Fix = device.CheckLimited, "run as root, or give the container the GPUs' files in /dev/dri; a GPU that is being reset denies all reads"
	}
	return c
}
