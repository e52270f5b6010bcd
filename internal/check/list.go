//go:build linux

package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

var (
	always   = []string{Prolog, Epilog, Periodic}
	periodic = []string{Periodic}
)

// Limits of checks. Those of devices end with the reading of them.
const (
	quick     = 5 * time.Second
	ofDevices = 15 * time.Second
)

// All returns every check, in the order in which they are shown.
func All() []Check {
	return []Check{
		{"manifest", "the manifest of expected hardware can be used", always, quick, manifestUsable},
		{"gpu.driver", "each driver that is there answers", always, ofDevices, driverAnswers},
		{"gpu.count", "as many devices, of the models, as there should be", always, ofDevices, deviceCount},
		{"gpu.answers", "each device answers, and needs no reset", always, ofDevices, devicesAnswer},
		{"gpu.xid", "no error of the hardware class in the kernel's log (XID, SXid)", always, ofDevices, xids},
		{"gpu.ecc", "no memory errors that were not corrected, or rise", always, ofDevices, ecc},
		{"gpu.remap", "no bad memory that waits for, or has no, replacement", always, ofDevices, remap},
		{"gpu.pcie", "PCI Express has its width, and its speed under load", always, ofDevices, pcie},
		{"gpu.links", "NVLink, XGMI and the switch fabric are whole", always, ofDevices, links},
		{"gpu.zombie", "no memory is held without a process", always, ofDevices, zombies},
		{"gpu.persistence", "NVIDIA's persistence mode is on", periodic, ofDevices, persistence},
		{"gpu.fabricmanager", "NVIDIA's fabric manager runs where there are NVSwitches", always, quick, fabricManager},
		{"gpu.health", "all other findings of the health rules", always, ofDevices, otherFindings},
		{"process.stuck", "no process that cannot be interrupted does not move", always, ofDevices, stuckProcesses},
		{"ib.ports", "InfiniBand and RoCE: adapters, ports, rates", always, quick, ibPorts},
		{"ib.errors", "InfiniBand and RoCE: errors of the links", periodic, quick, ibErrors},
		{"net.links", "network interfaces of the manifest are up, at their speed", always, quick, netLinks},
		{"disk.space", "local file systems have space and inodes left", always, quick, diskSpace},
		{"disk.mounts", "what fstab and the manifest name is mounted, and answers", always, quick, mounted},
		{"disk.smart", "what NVMe and SATA disks say of their health", periodic, quick, smart},
		{"memory", "the memory that there should be, and some of it free", always, quick, memory},
		{"sensors", "memory errors (EDAC) and alarms of the board (hwmon)", periodic, quick, sensors},
		{"bmc", "faults and serious events that the board's controller (IPMI) knows of", periodic, quick, bmc},
		{"cpu.governor", "processors do not run at their lowest clock", periodic, quick, governor},
		{"clock.source", "the kernel has a fast clock", periodic, quick, clockSource},
		{"clock.sync", "the clock is synchronised", periodic, quick, clockSync},
		{"kernel.log", "errors of memory, disks, buses, file servers and links in the kernel's log", always, quick, kernelMessages},
		{"services", "services of the manifest run", always, quick, services},
	}
}

// Select returns the checks of a profile, only those named if any are, without those to be
// skipped. A name that ends in a dot means all that begin with it.
func Select(profile string, only, without []string) ([]Check, error) {
	if !slices.Contains(always, profile) {
		return nil, fmt.Errorf("unknown profile %q, known are %s", profile, strings.Join(always, ", "))
	}
	all := All()
	named := func(list []string) func(Check) bool {
		return func(c Check) bool {
			return slices.ContainsFunc(list, func(n string) bool { return c.ID == n || strings.HasSuffix(n, ".") && strings.HasPrefix(c.ID, n) })
		}
	}
	for _, n := range slices.Concat(only, without) {
		if !slices.ContainsFunc(all, named([]string{n})) {
			return nil, fmt.Errorf("unknown check %q: --list names them", n)
		}
	}
	var out []Check
	for _, c := range all {
		wanted := slices.Contains(c.Profiles, profile)
		if len(only) > 0 {
			wanted = named(only)(c)
		}
		if wanted && !named(without)(c) {
			out = append(out, c)
		}
	}
	return out, nil
}

func manifestUsable(_ context.Context, h *host) outcome {
	switch {
	case h.ManifestErr != nil:
		return unknown(h.ManifestErr, "Mend the file, or write a new one on a healthy machine with gpumeter check --write-manifest.")
	case h.Manifest == nil:
		return skip("none was given")
	}
	return fine("read")
}
