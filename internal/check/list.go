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

// Time limits. The limit for device checks covers reading the devices.
const (
	quick     = 5 * time.Second
	ofDevices = 15 * time.Second
)

// All returns every check, in display order.
func All() []Check {
	return []Check{
		{"manifest", "the manifest of expected hardware is usable", always, quick, manifestUsable},
		{"gpu.driver", "every installed driver answers", always, ofDevices, driverAnswers},
		{"gpu.count", "number and models of devices are as expected", always, ofDevices, deviceCount},
		{"gpu.answers", "every device answers and needs no reset", always, ofDevices, devicesAnswer},
		{"gpu.xid", "no hardware errors in the kernel log (XID, SXid)", always, ofDevices, xids},
		{"gpu.ecc", "no uncorrected or rapidly rising memory errors", always, ofDevices, ecc},
		{"gpu.remap", "no pending or failed memory remapping", always, ofDevices, remap},
		{"gpu.pcie", "PCI Express runs at full width, and at full speed under load", always, ofDevices, pcie},
		{"gpu.links", "NVLink, XGMI and the NVLink fabric are intact", always, ofDevices, links},
		{"gpu.zombie", "no device memory in use without a process", always, ofDevices, zombies},
		{"gpu.persistence", "NVIDIA's persistence mode is enabled", periodic, ofDevices, persistence},
		{"gpu.fabricmanager", "NVIDIA's fabric manager runs if there are NVSwitches", always, quick, fabricManager},
		{"gpu.health", "all other findings of the health rules", always, ofDevices, otherFindings},
		{"process.stuck", "no process is stuck in uninterruptible sleep", always, ofDevices, stuckProcesses},
		{"ib.ports", "InfiniBand and RoCE: adapters, ports, rates", always, quick, ibPorts},
		{"ib.errors", "InfiniBand and RoCE: link errors", periodic, quick, ibErrors},
		{"net.links", "network interfaces of the manifest are up at full speed", always, quick, netLinks},
		{"disk.space", "local file systems have free space and inodes", always, quick, diskSpace},
		{"disk.mounts", "mounts of fstab and the manifest are present and answer", always, quick, mounted},
		{"disk.smart", "health reported by NVMe and SATA disks", periodic, quick, smart},
		{"memory", "memory size is as expected, and some memory is free", always, quick, memory},
		{"sensors", "memory errors (EDAC) and board alarms (hwmon)", periodic, quick, sensors},
		{"bmc", "faults and serious events recorded by the BMC (IPMI)", periodic, quick, bmc},
		{"cpu.governor", "processors are not held at their lowest clock", periodic, quick, governor},
		{"clock.source", "the kernel uses a fast clock source", periodic, quick, clockSource},
		{"clock.sync", "the clock is synchronized", periodic, quick, clockSync},
		{"kernel.log", "memory, disk, bus, file server and link errors in the kernel log", always, quick, kernelMessages},
		{"services", "services of the manifest are running", always, quick, services},
	}
}

// Select returns the checks of a profile: only the named ones if any are named, and without
// the skipped ones. A name that ends in a dot selects all checks with that prefix.
func Select(profile string, only, without []string) ([]Check, error) {
	if !slices.Contains(always, profile) {
		return nil, fmt.Errorf("unknown profile %q, want one of %s", profile, strings.Join(always, ", "))
	}
	all := All()
	named := func(list []string) func(Check) bool {
		return func(c Check) bool {
			return slices.ContainsFunc(list, func(n string) bool { return c.ID == n || strings.HasSuffix(n, ".") && strings.HasPrefix(c.ID, n) })
		}
	}
	for _, n := range slices.Concat(only, without) {
		if !slices.ContainsFunc(all, named([]string{n})) {
			return nil, fmt.Errorf("unknown check %q: see --list", n)
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
		return unknown(h.ManifestErr, "Correct the file, or write a new one on a healthy machine with gpumeter check --write-manifest.")
	case h.Manifest == nil:
		return skip("no manifest given")
	}
	return fine("read")
}
