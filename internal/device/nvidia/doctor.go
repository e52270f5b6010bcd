//go:build linux

package nvidia

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/vendorlib"
)

// CheckLibrary returns nil if path is a libnvidia-ml that can be loaded.
func CheckLibrary(path string) error {
	lib, err := nvml.OpenFile(path)
	if err != nil {
		return err
	}
	return lib.Close()
}

// Diagnose reports which NVIDIA hardware and driver parts were found, which are missing,
// and how to fix that.
func Diagnose(ctx context.Context, o Options) []device.Check {
	if o.Root == "" {
		o.Root = "/"
	}
	onBus := pciGPUs(o.Root)
	checks := []device.Check{busCheck(onBus), driverCheck(o.Root, len(onBus))}
	checks = append(checks, nodeChecks(o.Root)...)
	opened, ok := vendorlib.InTime(2*lookPatience, func() (s session) {
		if s.r, s.err = Open(ctx, o); s.err == nil {
			s.devices, s.err = s.r.Devices(ctx)
		}
		return s
	})
	if !ok {
		return append(checks, hungCheck("nvidia library", "initializing the driver's library"))
	}
	r, devices, err := opened.r, opened.devices, opened.err
	if r == nil {
		return append(checks, openCheck(o, err, len(onBus)))
	}
	defer func() { _ = r.Close() }() // nothing was changed
	checks = append(checks, device.Check{
		Subject: "nvidia library", State: device.CheckOK,
		Detail: fmt.Sprintf("%s, driver %s, shows %s", r.lib.Path(), r.driver, count(devices)),
	})
	if err != nil {
		checks = append(checks, device.Check{
			Subject: "nvidia devices", State: device.CheckFailed, Detail: err.Error(),
			Fix: "see the kernel log (dmesg | grep NVRM); a lost GPU needs a reset or a reboot",
		})
	}
	for _, d := range devices {
		checks = append(checks, r.gpuChecks(ctx, d.(*gpu))...)
	}
	return append(checks, symbolCheck(r))
}

type session struct {
	r       *Reader
	devices []device.Device
	err     error
}

func hungCheck(subject, call string) device.Check {
	return device.Check{
		Subject: subject, State: device.CheckFailed, Detail: call + " has not returned: the driver hangs",
		Fix: "see the kernel log (dmesg | grep NVRM); a reset of the GPU or a reboot may be needed",
	}
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
		return fmt.Sprintf("%d GPUs and %d MIG instances", gpus, parts)
	}
	return fmt.Sprintf("%d GPUs", gpus)
}

// pciGPUs returns the addresses of NVIDIA's display and 3D controllers.
func pciGPUs(root string) []string {
	devices, _ := filepath.Glob(filepath.Join(root, "sys/bus/pci/devices/*")) // the only error is a bad pattern
	var found []string
	for _, d := range devices {
		vendor, _ := os.ReadFile(filepath.Join(d, "vendor"))
		class, _ := os.ReadFile(filepath.Join(d, "class"))
		if strings.TrimSpace(string(vendor)) == Facts.PCI && strings.HasPrefix(string(class), "0x03") {
			found = append(found, filepath.Base(d))
		}
	}
	return found
}

func busCheck(onBus []string) device.Check {
	if len(onBus) == 0 {
		return device.Check{Subject: "nvidia hardware", State: device.CheckAbsent, Detail: "no NVIDIA GPU on the PCI bus"}
	}
	return device.Check{
		Subject: "nvidia hardware", State: device.CheckOK,
		Detail: fmt.Sprintf("%d on the PCI bus: %s", len(onBus), strings.Join(onBus, " ")),
	}
}

func driverCheck(root string, onBus int) device.Check {
	const subject = "nvidia kernel driver"
	b, err := os.ReadFile(filepath.Join(root, "proc/driver/nvidia/version"))
	switch {
	case err == nil:
		line, _, _ := strings.Cut(string(b), "\n")
		return device.Check{Subject: subject, State: device.CheckOK, Detail: strings.Join(strings.Fields(line), " ")}
	case onBus == 0:
		return device.Check{Subject: subject, State: device.CheckAbsent, Detail: "not loaded"}
	}
	return device.Check{
		Subject: subject, State: device.CheckFailed, Detail: "not loaded, although there is hardware",
		Fix: "install the NVIDIA driver, or load it with modprobe nvidia",
	}
}

// nodeChecks opens the device files. The driver creates them; a container sees only those
// that were passed to it.
func nodeChecks(root string) []device.Check {
	files, _ := filepath.Glob(filepath.Join(root, "dev/nvidia*")) // the only error is a bad pattern
	var denied []string
	for _, f := range files {
		if st, err := os.Stat(f); err != nil || st.IsDir() {
			continue
		}
		h, err := os.OpenFile(f, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrPermission) {
			denied = append(denied, f)
		}
		if err == nil {
			h.Close()
		}
	}
	if len(denied) == 0 {
		return nil
	}
	return []device.Check{{
		Subject: "nvidia device files", State: device.CheckFailed, Detail: "no permission for " + strings.Join(denied, " "),
		Fix: "give the agent read and write access to them (their group, or the container's device rules)",
	}}
}

func openCheck(o Options, err error, onBus int) device.Check {
	c := device.Check{Subject: "nvidia library", State: device.CheckFailed, Detail: err.Error()}
	switch {
	case errors.Is(err, errDriverNotLoaded):
		c.Fix = "load the kernel driver (modprobe nvidia)"
	case errors.Is(err, errLibVersionMismatch):
		c.Fix = "reboot, or unload and load the nvidia kernel modules"
	case errors.Is(err, errNoPermission):
		c.Fix = "give the agent read and write access to /dev/nvidia*"
	case errors.Is(err, device.ErrAbsent) && onBus == 0:
		c.State = device.CheckAbsent
		c.Detail += "; looked in " + strings.Join(dirs(candidates(o.Root, o.LibraryDirs)), " ")
	case errors.Is(err, device.ErrAbsent):
		c.Detail += "; looked in " + strings.Join(dirs(candidates(o.Root, o.LibraryDirs)), " ")
		c.Fix = "pass the file with --nvidia-library, or mount the host's driver directory into the container (NVIDIA_DRIVER_CAPABILITIES=utility with NVIDIA's runtime)"
	default:
		c.Fix = "pass a usable file with --nvidia-library"
	}
	return c
}

func dirs(files []string) []string {
	list := make([]string, len(files))
	for i, f := range files {
		list[i] = filepath.Dir(f)
	}
	return list
}

// gpuChecks reads one device and reports what is unavailable, and why.
func (r *Reader) gpuChecks(ctx context.Context, g *gpu) []device.Check {
	subject := fmt.Sprintf("gpu %d", g.id.Index)
	if g.id.Parent != "" {
		subject += " mig " + g.id.Profile
	}
	type answer struct {
		s   device.Sample
		err error
	}
	a, ok := vendorlib.InTime(2*lookPatience, func() (a answer) {
		a.s, a.err = g.Read(ctx, device.Static)
		return a
	})
	if !ok {
		return []device.Check{hungCheck(subject, cmp.Or(g.Busy(), "a driver call"))}
	}
	s, err := a.s, a.err
	if err != nil {
		c := device.Check{Subject: subject, State: device.CheckFailed, Detail: err.Error(), Fix: "see the kernel log (dmesg | grep NVRM)"}
		if errors.Is(err, errNoPermission) {
			c.State, c.Fix = device.CheckLimited, "run as root or with the group of /dev/nvidia*; some calls need CAP_SYS_ADMIN"
		}
		return []device.Check{c}
	}
	checks := []device.Check{{Subject: subject, State: device.CheckOK, Detail: strings.TrimSpace(g.id.Model + " " + s.Info.Architecture)}}
	if !g.gpm.supported && g.id.Parent == "" {
		checks = append(checks, profilingCheck(subject, g))
	}
	if unnamed := slices.ContainsFunc(s.Processes, func(p device.Process) bool { return !exists(r.opts.Root, p.PID) }); unnamed {
		checks = append(checks, device.Check{
			Subject: subject + " processes", State: device.CheckLimited, Detail: "the driver names processes that are not in /proc",
			Fix: "run in the host's PID namespace (hostPID: true in Kubernetes)",
		})
	}
	return checks
}

func profilingCheck(subject string, g *gpu) device.Check {
	c := device.Check{Subject: subject + " profiling", State: device.CheckLimited}
	switch {
	case g.arch < archHopper:
		c.Detail = fmt.Sprintf("none: the driver counts SM, tensor and memory activity only on Hopper and later; this is %s", architectures[g.arch])
		c.Fix = "nothing to do here: before Hopper only NVIDIA's DCGM reads these counters"
	case !g.Lib.Get("nvmlGpmSampleGet").Fn.OK():
		c.Detail = "none: the driver's library has no profiling functions"
		c.Fix = "upgrade the driver to R525 or later"
	default:
		c.Detail = "none: the driver does not offer the counters (a virtual GPU, or its administrator turned them off)"
	}
	return c
}

func exists(root string, pid uint32) bool {
	_, err := os.Stat(filepath.Join(root, "proc", fmt.Sprint(pid)))
	return err == nil
}

// symbolCheck lists the functions that this driver's library does not have.
func symbolCheck(r *Reader) device.Check {
	missing := r.lib.Missing()
	slices.Sort(missing)
	if len(missing) == 0 {
		return device.Check{Subject: "nvidia functions", State: device.CheckOK, Detail: "the library has all that are used"}
	}
	return device.Check{
		Subject: "nvidia functions", State: device.CheckLimited,
		Detail: "the library does not have " + strings.Join(missing, " ") + "; the values from them are absent",
		Fix:    "a newer driver may have them",
	}
}
