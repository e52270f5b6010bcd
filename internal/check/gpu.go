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

var errHangs = errors.New("the devices were not read in time")

// read returns what was read of the devices. It gives up a little before ctx does, so that
// a check can still say what that means.
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
		return Machine{}, fmt.Errorf("%w, which is %s", errHangs, time.Since(begin).Round(100*time.Millisecond))
	}
}

// physical returns the physical devices that are asked about.
func (h *host) physical(ctx context.Context) (m Machine, list []health.Device, o *outcome) {
	m, err := h.read(ctx)
	if err != nil {
		bad := unknown(err, "See gpu.driver.")
		return m, nil, &bad
	}
	list = slices.DeleteFunc(physicalOf(m.Devices), func(d health.Device) bool { return h.Mine != nil && !h.Mine(&d.Sample) })
	if len(list) == 0 {
		none := skip("no device to look at")
		return m, nil, &none
	}
	return m, list, nil
}

// physicalOf returns the devices without their partitions, in a list of its own.
func physicalOf(all []health.Device) []health.Device {
	return slices.DeleteFunc(slices.Clone(all), func(d health.Device) bool { return d.ID.Parent != "" })
}

func name(id device.ID) string { return fmt.Sprintf("GPU %d", id.Index) }

// driverAnswers: no driver is no problem, unless devices are expected; one that hangs or
// fails is.
func driverAnswers(ctx context.Context, h *host) outcome {
	m, err := h.read(ctx)
	if err != nil {
		return found([]Problem{{Critical, "", err.Error(), "The driver hangs or is broken: look at the kernel's log, end what uses the devices, and reboot the machine."}}, "")
	}
	var bad []Problem
	var words []string
	severe := Critical
	if h.want() > 0 && len(physicalOf(m.Devices)) >= h.want() {
		severe = Warning // nothing is missing that should be there
	}
	for _, d := range m.Drivers {
		switch d.State {
		case "open":
			words = append(words, d.Name)
		case "failed":
			bad = append(bad, Problem{severe, d.Name, d.Problem, "gpumeter doctor says what would mend it."})
		case "opening":
			bad = append(bad, Problem{Critical, d.Name, "its driver has not answered yet", "The driver hangs: look at the kernel's log, end what uses the devices, and reboot the machine."})
		}
	}
	if versions := versionsOf(m.Devices); h.Manifest != nil && h.Manifest.GPUs.Driver != "" && len(versions) > 0 && !slices.Equal(versions, []string{h.Manifest.GPUs.Driver}) {
		bad = append(bad, Problem{Warning, "", fmt.Sprintf("the driver is %s, the manifest says %s", strings.Join(versions, " and "), h.Manifest.GPUs.Driver), "Install that driver, or write the manifest anew."})
	}
	if len(words) == 0 && len(bad) == 0 {
		if h.want() > 0 {
			return found([]Problem{{Critical, "", fmt.Sprintf("no driver of an accelerator is loaded, %d devices are expected", h.want()), "Load the driver; gpumeter doctor says what is missing."}}, "")
		}
		return skip("no driver of an accelerator on this machine")
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

// want returns how many devices there should be, 0 if nobody said.
func (h *host) want() int {
	if h.Expect > 0 {
		return h.Expect
	}
	if h.Manifest == nil {
		return 0
	}
	return h.Manifest.GPUs.Count
}

// deviceCount counts all devices, whichever are asked about. One that is down is there:
// gpu.answers tells of it.
func deviceCount(ctx context.Context, h *host) outcome {
	if h.want() == 0 && (h.Manifest == nil || len(h.Manifest.GPUs.Models) == 0) {
		return skip("nobody said how many there should be: --expect or --manifest")
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
	const action = "Look at the kernel's log for devices that fell off the bus, and at their power and seats; reboot the machine."
	var bad []Problem
	if want := h.want(); n < want {
		bad = append(bad, Problem{Critical, "", fmt.Sprintf("the machine has %d devices, %d are expected", n, want), action})
	} else if want > 0 && n > want {
		bad = append(bad, Problem{Warning, "", fmt.Sprintf("the machine has %d devices, only %d are expected", n, want), "Mend --expect or the manifest."})
	}
	if h.Manifest != nil && h.Expect == 0 {
		for _, model := range sortedKeys(h.Manifest.GPUs.Models) {
			if want := h.Manifest.GPUs.Models[model]; models[model] != want {
				bad = append(bad, Problem{Critical, model, fmt.Sprintf("there are %d, the manifest says %d", models[model], want), action})
			}
		}
	}
	return found(bad, "%d devices, as expected", n)
}

// devicesAnswer: the caller has looked again at those that did not answer at once.
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
			bad = append(bad, Problem{Critical, name(d.ID), "the driver refuses it until it is reset", "Take work off the device and reset it; if that fails, reboot the machine."})
		default:
			bad = append(bad, Problem{Critical, name(d.ID), strings.TrimPrefix("it does not answer: "+d.Problem, ": "), "Drain the node and reboot it. If the device does not come back, look at its power and seat."})
		}
	}
	return found(bad, "%d devices answer", len(list))
}

// ruleOwners are the checks that tell the findings of a rule, by the beginning of its
// name. The rest is gpu.health's.
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

// findings returns what the health rules say that is for one check. What is only worth
// knowing is no problem.
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

// ruled is a check of findings only.
func ruled(ctx context.Context, h *host, id, text string) outcome {
	m, list, o := h.physical(ctx)
	if o != nil {
		return *o
	}
	return found(h.findings(m, id), "%d devices: %s", len(list), text)
}

func ecc(ctx context.Context, h *host) outcome {
	return ruled(ctx, h, "gpu.ecc", "no errors that were not corrected")
}

func remap(ctx context.Context, h *host) outcome {
	return ruled(ctx, h, "gpu.remap", "no bad memory waits for replacement")
}

func otherFindings(ctx context.Context, h *host) outcome {
	return ruled(ctx, h, "gpu.health", "no findings")
}

// zombies: memory that no process has. What a driver keeps for itself is below
// orphanedBytes. Memory of a process that ends is given back within seconds, in which the
// caller looked again; a device that works has a process, listed or not.
const orphanedBytes = 1 << 30

// Orphaned reports whether memory of d is in use and no process has it. Vendors says whose
// drivers list every process.
func Orphaned(d *health.Device, vendors device.Vendors) bool {
	if !vendors.ByName(d.ID.Vendor).ListsProcesses || d.ID.Parent != "" || !d.Up {
		return false
	}
	used, ok := d.Memory.Used.Get()
	util, has := d.Utilization.Compute.Get()
	mig, _ := d.Modes.MIG.Get() // partitions have the processes
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
				Warning, name(d.ID), fmt.Sprintf("%.1f GiB of its memory are in use and no process has them", used/(1<<30)),
				"Look for processes that cannot end (process.stuck). If there are none, reset the device.",
			})
		}
	}
	return found(bad, "no memory without a process on %d devices", len(list))
}

// persistence: without it the driver lets go of a GPU that nobody uses, and the next job
// waits seconds for it. Other vendors' drivers always stay.
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
			bad = append(bad, Problem{Warning, name(list[i].ID), "persistence mode is off", "Start nvidia-persistenced: jobs wait for the driver else, and counters are lost."})
		}
	}
	if known == 0 {
		return skip("no device has such a mode")
	}
	return found(bad, "on, on %d devices", known)
}

// fabricManager looks for its process where NVSwitches are on the PCI bus. Without it CUDA
// does not start.
func fabricManager(_ context.Context, h *host) outcome {
	switches := 0
	for _, d := range h.sys("bus/pci/devices").Glob("*") {
		vendor, _ := d.Text("vendor")
		class, _ := d.Text("class")
		if vendor == "0x10de" && class == "0x068000" { // a bridge of no other kind
			switches++
		}
	}
	if switches == 0 {
		return skip("no NVSwitch")
	}
	for _, p := range h.processes() {
		if c, _ := p.Text("comm"); c == "nv-fabricmanage" || c == "nvidia-fabricma" { // the kernel keeps 15 letters
			return fine("runs, for %d NVSwitches", switches)
		}
	}
	return found([]Problem{{
		Critical, "", fmt.Sprintf("the machine has %d NVSwitches and the fabric manager does not run", switches),
		"Start nvidia-fabricmanager, of the version of the driver; CUDA does not start without it.",
	}}, "")
}
