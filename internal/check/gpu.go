//go:build linux

package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
)

var errHangs = errors.New("reading the devices timed out")

// read returns the device samples. It gives up slightly before ctx does, so that the check
// can still report the timeout.
func (h *host) read(ctx context.Context) (Machine, error) {
	begin, wait := time.Now(), ctx
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		wait, cancel = context.WithDeadline(ctx, end.Add(-time.Until(end)/10))
		defer cancel()
	}
	select {
	case <-h.devices():
		return h.machine, h.err
	case <-wait.Done():
		return Machine{}, fmt.Errorf("%w after %s", errHangs, time.Since(begin).Round(100*time.Millisecond))
	}
}

// physical returns the physical devices in question.
func (h *host) physical(ctx context.Context) (m Machine, list []health.Device, o *outcome) {
	m, err := h.read(ctx)
	if err != nil {
		bad := unknown(err, "See gpu.driver.")
		return m, nil, &bad
	}
	list = slices.DeleteFunc(physicalOf(m.Devices), func(d health.Device) bool { return h.Mine != nil && !h.Mine(&d.Sample) })
	if len(list) == 0 {
		none := skip("no device to examine")
		return m, nil, &none
	}
	return m, list, nil
}

// physicalOf returns a new list of the devices without partitions.
func physicalOf(all []health.Device) []health.Device {
	return slices.DeleteFunc(slices.Clone(all), func(d health.Device) bool { return d.ID.Parent != "" })
}

func name(id device.ID) string { return fmt.Sprintf("GPU %d", id.Index) }

// driverAnswers reports drivers that hang or fail. A missing driver is a problem only if
// devices are expected.
func driverAnswers(ctx context.Context, h *host) outcome {
	m, err := h.read(ctx)
	if err != nil {
		return found([]Problem{{Critical, "", err.Error(), "The driver hangs or is broken: check the kernel log, stop everything that uses the devices, and reboot the machine."}}, "")
	}
	var bad []Problem
	var words []string
	severe := Critical
	if h.want() > 0 && len(physicalOf(m.Devices)) >= h.want() {
		severe = Warning // no expected device is missing
	}
	for _, d := range m.Drivers {
		switch d.State {
		case "open":
			words = append(words, d.Name)
		case "failed":
			bad = append(bad, Problem{severe, d.Name, d.Problem, "Run gpumeter doctor for a diagnosis."})
		case "opening":
			bad = append(bad, Problem{Critical, d.Name, "the driver has not answered yet", "The driver hangs: check the kernel log, stop everything that uses the devices, and reboot the machine."})
		}
	}
	if versions := versionsOf(m.Devices); h.Manifest != nil && h.Manifest.GPUs.Driver != "" && len(versions) > 0 && !slices.Equal(versions, []string{h.Manifest.GPUs.Driver}) {
		bad = append(bad, Problem{Warning, "", fmt.Sprintf("the driver is %s, the manifest says %s", strings.Join(versions, " and "), h.Manifest.GPUs.Driver), "Install that driver, or update the manifest."})
	}
	if len(words) == 0 && len(bad) == 0 {
		if h.want() > 0 {
			return found([]Problem{{Critical, "", fmt.Sprintf("no accelerator driver is loaded, %d devices expected", h.want()), "Load the driver; gpumeter doctor reports what is missing."}}, "")
		}
		return skip("no accelerator driver on this machine")
	}
	return found(bad, "%s", strings.Join(words, ", "))
}

func versionsOf(list []health.Device) (out []string) {
	for i := range list {
		if v := list[i].Info.Driver; v != "" && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// want returns the expected number of devices, 0 if unknown.
func (h *host) want() int {
	if h.Expect > 0 {
		return h.Expect
	}
	if h.Manifest == nil {
		return 0
	}
	return h.Manifest.GPUs.Count
}

// deviceCount counts all devices, whichever job they belong to. A device that is down counts
// as present; gpu.answers reports it.
func deviceCount(ctx context.Context, h *host) outcome {
	if h.want() == 0 && (h.Manifest == nil || len(h.Manifest.GPUs.Models) == 0) {
		return skip("expected count unknown: set --expect or --manifest")
	}
	m, err := h.read(ctx)
	if err != nil {
		return unknown(err, "See gpu.driver.")
	}
	list, models := physicalOf(m.Devices), map[string]int{}
	n := len(list)
	for i := range list {
		models[list[i].ID.Model]++
	}
	const action = "Check the kernel log for devices that fell off the bus, and check their power and seating; reboot the machine."
	var bad []Problem
	if want := h.want(); n < want {
		bad = append(bad, Problem{Critical, "", fmt.Sprintf("%d devices found, %d expected", n, want), action})
	} else if want > 0 && n > want {
		bad = append(bad, Problem{Warning, "", fmt.Sprintf("%d devices found, only %d expected", n, want), "Correct --expect or the manifest."})
	}
	if h.Manifest != nil && h.Expect == 0 {
		for _, model := range sortedKeys(h.Manifest.GPUs.Models) {
			if want := h.Manifest.GPUs.Models[model]; models[model] != want {
				bad = append(bad, Problem{Critical, model, fmt.Sprintf("%d found, the manifest says %d", models[model], want), action})
			}
		}
	}
	return found(bad, "%d devices, as expected", n)
}

// devicesAnswer relies on the caller having retried devices that did not answer at once.
func devicesAnswer(ctx context.Context, h *host) outcome {
	_, list, o := h.physical(ctx)
	if o != nil {
		return *o
	}
	var bad []Problem
	for i := range list {
		d := &list[i]
		switch {
		case d.Up:
		case d.Reset:
			bad = append(bad, Problem{Critical, name(d.ID), "the driver refuses access until the device is reset", "Drain and reset the device; if that fails, reboot the machine."})
		default:
			bad = append(bad, Problem{Critical, name(d.ID), strings.TrimPrefix("no answer: "+d.Problem, ": "), "Drain the node and reboot it. If the device does not come back, check its power and seating."})
		}
	}
	return found(bad, "%d devices answer", len(list))
}

// ruleOwners maps checks to the prefixes of the health rules whose findings they report.
// gpu.health reports the rest.
var ruleOwners = map[string][]string{
	"gpu.answers": {"gpu.lost", "gpu.needs_reset", "gpu.missing"},
	"gpu.xid":     {"gpu.xid", "nvswitch.sxid"},
	"gpu.ecc":     {"gpu.ecc."},
	"gpu.remap":   {"gpu.row_remap.", "gpu.page_retirement."},
	"gpu.pcie":    {"gpu.pcie."},
	"gpu.links":   {"gpu.interconnect.", "gpu.fabric."},
	"gpu.zombie":  {"gpu.memory.orphaned"},
}

func ownerOf(rule string) string {
	for id, list := range ruleOwners {
		if slices.ContainsFunc(list, func(p string) bool { return strings.HasPrefix(rule, p) }) {
			return id
		}
	}
	return "gpu.health"
}

// findings returns the health findings that belong to one check. Informational findings are
// not problems.
func (h *host) findings(m Machine, id string) []Problem {
	var out []Problem
	for _, f := range m.Findings {
		status := map[health.Severity]Status{health.Warning: Warning, health.Critical: Critical}[f.Severity]
		if status == "" || ownerOf(f.Rule) != id {
			continue
		}
		subject := ""
		if f.Device.UUID != "" {
			if !slices.ContainsFunc(m.Devices, func(d health.Device) bool {
				return d.ID.UUID == f.Device.UUID && (h.Mine == nil || h.Mine(&d.Sample))
			}) {
				continue
			}
			subject = name(f.Device)
		}
		out = append(out, Problem{status, subject, f.Reason, f.Action})
	}
	return capped(out)
}

// ruled is a check that only reports findings of the health rules.
func ruled(ctx context.Context, h *host, id, text string) outcome {
	m, list, o := h.physical(ctx)
	if o != nil {
		return *o
	}
	return found(h.findings(m, id), "%d devices: %s", len(list), text)
}

func ecc(ctx context.Context, h *host) outcome {
	return ruled(ctx, h, "gpu.ecc", "no uncorrected errors")
}

func remap(ctx context.Context, h *host) outcome {
	return ruled(ctx, h, "gpu.remap", "no pending or failed remapping")
}

func otherFindings(ctx context.Context, h *host) outcome {
	return ruled(ctx, h, "gpu.health", "no findings")
}

// zombies reports memory that no process holds. A driver keeps less than orphanedBytes for
// itself. The memory of an exiting process is freed within seconds, during which the caller
// read again. A busy device has a process, listed or not.
const orphanedBytes = 1 << 30

// Orphaned reports whether memory of d is in use without a process. It is false for vendors
// whose drivers do not list every process.
func Orphaned(d *health.Device, vendors device.Vendors) bool {
	if !vendors.ByName(d.ID.Vendor).ListsProcesses || d.ID.Parent != "" || !d.Up {
		return false
	}
	used, ok := d.Memory.Used.Get()
	util, has := d.Utilization.Compute.Get()
	mig, _ := d.Modes.MIG.Get() // processes are listed on the partitions
	return ok && used >= orphanedBytes && len(d.Processes) == 0 && has && util == 0 && mig == 0
}

func zombies(ctx context.Context, h *host) outcome {
	m, list, o := h.physical(ctx)
	if o != nil {
		return *o
	}
	bad := h.findings(m, "gpu.zombie")
	for i := range list {
		d := &list[i]
		if Orphaned(d, h.Vendors) && !slices.ContainsFunc(bad, func(p Problem) bool { return p.Subject == name(d.ID) }) {
			used, _ := d.Memory.Used.Get()
			bad = append(bad, Problem{
				Warning, name(d.ID), fmt.Sprintf("%.1f GiB of device memory in use without a process", used/(1<<30)),
				"Look for unkillable processes (process.stuck). If there are none, reset the device.",
			})
		}
	}
	return found(bad, "no memory without a process on %d devices", len(list))
}

// persistence reports GPUs without persistence mode: the driver releases an unused GPU, and
// the next job waits seconds for its initialization. Other vendors' drivers stay loaded.
func persistence(ctx context.Context, h *host) outcome {
	_, list, o := h.physical(ctx)
	if o != nil {
		return *o
	}
	var bad []Problem
	known := 0
	for i := range list {
		v, ok := list[i].Modes.Persistence.Get()
		if ok {
			known++
		}
		if ok && v == 0 {
			bad = append(bad, Problem{Warning, name(list[i].ID), "persistence mode is off", "Start nvidia-persistenced: otherwise jobs wait for the driver, and counters are lost."})
		}
	}
	if known == 0 {
		return skip("no device has a persistence mode")
	}
	return found(bad, "enabled on %d devices", known)
}

// fabricManager looks for the fabric manager's process if there are NVSwitches on the PCI
// bus. Without it CUDA does not start.
func fabricManager(_ context.Context, h *host) outcome {
	switches := 0
	for _, d := range h.sys("bus/pci/devices").Glob("*") {
		vendor, _ := d.Text("vendor")
		class, _ := d.Text("class")
		if vendor == "0x10de" && class == "0x068000" { // "other bridge"
			switches++
		}
	}
	if switches == 0 {
		return skip("no NVSwitch")
	}
	for _, p := range h.processes() {
		if c, _ := p.Text("comm"); c == "nv-fabricmanage" || c == "nvidia-fabricma" { // the kernel truncates names to 15 characters
			return fine("running for %d NVSwitches", switches)
		}
	}
	return found([]Problem{{
		Critical, "", fmt.Sprintf("%d NVSwitches, but the fabric manager is not running", switches),
		"Start nvidia-fabricmanager in the driver's version; CUDA does not start without it.",
	}}, "")
}
