//go:build linux

package nvidia

import (
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
)

// ECC counter dimensions, in the order of NVML's enums.
var (
	eccTypes     = [2]string{"corrected", "uncorrected"}
	eccLifetimes = [2]string{"volatile", "aggregate"}
	eccLocations = [8]string{"l1", "l2", "dram", "register_file", "texture", "shared_memory", "cbu", "sram"}
)

func (g *gpu) readECC() {
	var list []device.ECC
	for t, kind := range eccTypes {
		for l, lifetime := range eccLifetimes {
			var n uint64
			if g.Do("nvmlDeviceGetTotalEccErrors", uint64(t<<1|l),
				g.Handle, uintptr(t), uintptr(l), uintptr(unsafe.Pointer(&n))) {
				list = append(list, device.ECC{Type: kind, Lifetime: lifetime, Count: device.Of(float64(n))})
			}
			for i, location := range eccLocations {
				if g.Do("nvmlDeviceGetMemoryErrorCounter", uint64(i<<2|t<<1|l),
					g.Handle, uintptr(t), uintptr(l), uintptr(i), uintptr(unsafe.Pointer(&n))) {
					list = append(list, device.ECC{Type: kind, Lifetime: lifetime, Location: location, Count: device.Of(float64(n))})
				}
			}
		}
	}
	g.sample.ECC = list
	g.sample.SRAMThreshold = device.Value{}
	s := sramStatus{version: version(unsafe.Sizeof(sramStatus{}), 1)}
	if g.Do("nvmlDeviceGetSramEccErrorStatus", 0, g.Handle, uintptr(unsafe.Pointer(&s))) {
		g.sample.SRAMThreshold = device.Flag(s.thresholdExceeded != 0)
	}
}

// readRepairs reads how the GPU repaired faulty memory, and which recovery action it
// requests.
func (g *gpu) readRepairs() {
	var corrected, uncorrected, pending, failed uint32
	r := device.RowRemap{}
	if g.Do("nvmlDeviceGetRemappedRows", 0, g.Handle, uintptr(unsafe.Pointer(&corrected)),
		uintptr(unsafe.Pointer(&uncorrected)), uintptr(unsafe.Pointer(&pending)), uintptr(unsafe.Pointer(&failed))) {
		r.Corrected, r.Uncorrected = device.Of(float64(corrected)), device.Of(float64(uncorrected))
		r.Pending, r.Failure = device.Flag(pending != 0), device.Flag(failed != 0)
	}
	var h rowHistogram
	if g.Do("nvmlDeviceGetRowRemapperHistogram", 0, g.Handle, uintptr(unsafe.Pointer(&h))) {
		r.Banks = []device.RowRemapBanks{
			{Spare: "max", Banks: device.Of(float64(h.max))},
			{Spare: "high", Banks: device.Of(float64(h.high))},
			{Spare: "partial", Banks: device.Of(float64(h.partial))},
			{Spare: "low", Banks: device.Of(float64(h.low))},
			{Spare: "none", Banks: device.Of(float64(h.none))},
		}
	}
	g.sample.RowRemap = r

	const single, double, waiting, recovery = 29, 30, 31, 230
	got := g.fields(field{single, 0}, field{double, 0}, field{waiting, 0}, field{recovery, 0})
	g.sample.PageRetirement = device.PageRetirement{
		Corrected: got[field{single, 0}], Uncorrected: got[field{double, 0}], Pending: got[field{waiting, 0}],
	}
	g.sample.RecoveryAction = got[field{recovery, 0}]
}

func (g *gpu) readFabric() {
	const sym = "nvmlDeviceGetGpuFabricInfoV"
	g.sample.Fabric = device.Fabric{}
	var f fabricV3
	f.version = version(unsafe.Sizeof(f), 3)
	if !g.Do(sym, 3, g.Handle, uintptr(unsafe.Pointer(&f))) {
		f = fabricV3{}
		f.version = version(unsafe.Sizeof(f.fabricV2), 2)
		if !g.Do(sym, 2, g.Handle, uintptr(unsafe.Pointer(&f.fabricV2))) {
			return
		}
	}
	if f.state == 0 {
		return // the GPU is not attached to a fabric
	}
	g.sample.Fabric.State = device.Of(float64(f.state))
	if h := f.healthSummary; h != 0 {
		g.sample.Fabric.Health = device.Of(float64(h))
	} else if f.healthMask != 0 {
		g.sample.Fabric.Health = device.Of(fabricHealth(f.healthMask))
	}
}

// fabricHealth derives the summary that older drivers do not provide (1 healthy, 2
// unhealthy, 3 limited) from the mask of conditions (each 0 unknown, 1 true, 2 false).
func fabricHealth(mask uint32) float64 {
	const healthy, unhealthy, limited = 1, 2, 3
	is := func(shift uint32) bool { return mask>>shift&3 == 1 }
	const degradedBandwidth, routeRecovery, routeUnhealthy, timeoutRecovery = 0, 2, 4, 6
	configuration := mask >> 8 & 0xf // 1 correct; higher values say what is wrong
	switch {
	case is(routeUnhealthy) || configuration > 1:
		return unhealthy
	case is(degradedBandwidth) || is(routeRecovery) || is(timeoutRecovery):
		return limited
	}
	return healthy
}
