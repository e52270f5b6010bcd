//go:build linux

package tpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Diagnose reports which TPUs, processes and metric services were found, what is missing,
// and how to fix that.
func Diagnose(ctx context.Context, o Options) []device.Check {
	o = o.withDefaults()
	found, err := find(o.Root, o.Machine)
	if len(found) == 0 && err == nil {
		return []device.Check{{Subject: "tpu hardware", State: device.CheckAbsent, Detail: "no TPU on the PCI bus"}}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	checks := []device.Check{hardwareCheck(found)}
	if err != nil {
		checks = append(checks, device.Check{
			Subject: "tpu devices", State: device.CheckFailed, Detail: err.Error(), Fix: "mount the host's /sys, readable for the agent",
		})
	}
	chips := make([]*chip, len(found))
	for i, s := range found {
		chips[i] = &chip{sighting: s}
	}
	m := findHolders(o.Root, chips)
	checks = append(checks, processCheck(m))
	answered := len(m.holders) > 0
	for _, h := range m.holders {
		c := holderCheck(ctx, h)
		answered = answered && c.State == device.CheckOK
		checks = append(checks, c)
	}
	if o.Exporter != NoExporter && (!answered || o.Exporter != "") {
		checks = append(checks, exporterCheck(ctx, o, chips))
	}
	return checks
}

func hardwareCheck(found []sighting) device.Check {
	if len(found) == 0 {
		return device.Check{Subject: "tpu hardware", State: device.CheckAbsent, Detail: "no TPU could be identified"}
	}
	var models, where []string
	lost := 0
	for _, s := range found {
		models = append(models, s.id.Model)
		where = append(where, s.id.PCI)
		if len(s.nodes) == 0 {
			lost++
		}
	}
	slices.Sort(models)
	c := device.Check{
		Subject: "tpu hardware", State: device.CheckOK,
		Detail: fmt.Sprintf("%d on the PCI bus (%s): %s", len(found), strings.Join(slices.Compact(models), ", "), strings.Join(where, " ")),
	}
	if lost > 0 {
		c.State = device.CheckLimited
		c.Detail += fmt.Sprintf("; %d without a device file: their processes are unknown", lost)
		c.Fix = "bind them to vfio-pci, with the IOMMU on"
	}
	return c
}

func processCheck(m machine) device.Check {
	c := device.Check{Subject: "tpu processes", State: device.CheckOK, Detail: fmt.Sprintf("%d processes have a TPU open", len(m.holders))}
	const fix = "run in the host's PID namespace with CAP_SYS_PTRACE"
	switch {
	case m.err != nil:
		c.State, c.Detail, c.Fix = device.CheckFailed, m.err.Error(), fix
	case m.denied > 0:
		c.State, c.Fix = device.CheckLimited, fix
		c.Detail += fmt.Sprintf("; the files of %d processes are not readable", m.denied)
	case len(m.holders) == 0:
		c.State, c.Detail = device.CheckAbsent, "no process has a TPU open: duty cycle and memory are known only while a process runs"
		c.Fix = "if a process has, run the agent in the host's PID namespace"
	}
	return c
}

func holderCheck(ctx context.Context, h holder) device.Check {
	c := device.Check{
		Subject: "tpu runtime", State: device.CheckLimited,
		Detail: fmt.Sprintf("process %d (%s), %d chips: ", h.pid, h.name, len(h.chips)),
	}
	if h.service == nil {
		c.Detail += h.problem.Error()
		if errors.Is(h.problem, errNotListening) {
			c.Fix = "use libtpu from 2024 or later, which serves metrics at port 8431 or at the ports in " + portsVariable
		} else {
			c.Fix = "run with CAP_SYS_PTRACE"
		}
		return c
	}
	asker := h.service.dial()
	defer asker.close()
	limited, cancel := context.WithTimeout(ctx, pollLimit)
	defer cancel()
	rep, err := asker.fetch(limited)
	if err != nil {
		c.Detail += err.Error()
		if strings.Contains(err.Error(), errNotPermitted.Error()) {
			c.Fix = "give the agent CAP_SYS_ADMIN, or run the workload with the host's network"
		}
	}
	if !isEmpty(err) {
		if err == nil {
			c.State = device.CheckOK
		} else {
			c.Detail += "; "
		}
		c.Detail += fmt.Sprintf("%d metrics at port %d", rep.asked, h.service.key.port)
		if n := len(rep.unknown); n > 0 {
			c.Detail += fmt.Sprintf("; %d more are not used: %s", n, strings.Join(rep.unknown[:min(n, 20)], " "))
		}
	}
	return c
}

func exporterCheck(ctx context.Context, o Options, chips []*chip) device.Check {
	e := newExporter(cmp.Or(o.Exporter, DefaultExporter))
	c := device.Check{Subject: "tpu exporter", State: device.CheckOK}
	where := "GKE's device plugin"
	if u, err := url.Parse(e.url); err == nil {
		where += " at " + u.Redacted()
	}
	defer e.close()
	limited, cancel := context.WithTimeout(ctx, pollLimit)
	defer cancel()
	all, err := e.get(limited)
	if err != nil {
		c.State, c.Detail = device.CheckAbsent, where+": "+err.Error()
		if o.Exporter != "" {
			c.State, c.Fix = device.CheckFailed, "check the address; from a pod without the host's network use the node's address"
		}
		return c
	}
	c.Detail = fmt.Sprintf("%s shows %d accelerators", where, len(all))
	if len(chips) > 0 {
		if _, err := pick(all, len(chips), chips[0].gen.perChip, 0); err != nil {
			c.State = device.CheckLimited
			c.Detail += ": " + err.Error()
		}
	}
	return c
}
