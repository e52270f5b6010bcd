//go:build linux

package nvidia

import (
	"math"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/vendorlib"
)

// The profiling metrics that are read, as NVML ids. The first thirteen are percentages, the
// others MiB/s.
const (
	gpmEngine      = 1
	gpmSMActive    = 2
	gpmSMOccupancy = 3
	gpmInteger     = 4
	gpmTensor      = 5
	gpmDFMA        = 6
	gpmHMMA        = 7
	gpmDMMA        = 8
	gpmIMMA        = 9
	gpmDRAM        = 10
	gpmFP64        = 11
	gpmFP32        = 12
	gpmFP16        = 13
	gpmPCIeTX      = 20
	gpmPCIeRX      = 21
	gpmNVLinkRX    = 60
	gpmNVLinkTX    = 61
)

var gpmIDs = []uint32{
	gpmEngine, gpmSMActive, gpmSMOccupancy, gpmInteger, gpmTensor, gpmDFMA, gpmHMMA, gpmDMMA, gpmIMMA, gpmDRAM,
	gpmFP64, gpmFP32, gpmFP16, gpmPCIeTX, gpmPCIeRX, gpmNVLinkRX, gpmNVLinkTX,
}

// maxGPM is the length of the metrics array. NVML's own length differs between versions of
// its header; the library touches only as many elements as were requested.
const maxGPM = 32

// minGPM is the shortest interval over which the driver can compute a metric.
const minGPM = 100 * time.Millisecond

// gpm holds two of the driver's counter snapshots. A metric is the difference between the
// older and the newer one; they swap at each Read.
type gpm struct {
	supported    bool
	asked        bool
	older, newer uintptr
	taken        time.Time // when older was taken; zero: older is empty
	values       map[uint32]float64
}

// rate returns a metric in MiB/s as bytes per second.
func (p *gpm) rate(id uint32) device.Value { return p.value(id).Scale(mebi) }

func (p *gpm) value(id uint32) device.Value {
	v, ok := p.values[id]
	if !ok {
		return device.Value{}
	}
	return device.Of(v)
}

// release frees the snapshots and resets p.
func (p *gpm) release(lib *vendorlib.Library) {
	free := lib.Get("nvmlGpmSampleFree").Fn
	for _, s := range []uintptr{p.older, p.newer} {
		if s != 0 && free.OK() {
			free.Call(s)
		}
	}
	*p = gpm{}
}

// readProfile reads the profiling counters, which exist on Hopper and later.
func (g *gpu) readProfile() {
	if !g.gpm.asked {
		g.gpm.asked = true
		g.gpm.supported = g.openProfile()
	}
	if !g.gpm.supported {
		return
	}
	now := g.r.opts.Now()
	if !g.gpm.taken.IsZero() && now.Sub(g.gpm.taken) < minGPM {
		return // keep the last values
	}
	g.gpm.values = nil
	g.sample.Profile = device.Profile{}
	if !g.snapshot(g.gpm.newer) {
		g.gpm.taken = time.Time{}
		return
	}
	if !g.gpm.taken.IsZero() {
		g.gpm.values = g.difference()
		g.sample.Profile = g.gpm.profile()
	}
	g.gpm.older, g.gpm.newer, g.gpm.taken = g.gpm.newer, g.gpm.older, now
}

// openProfile allocates the snapshots and reports whether the device has profiling
// counters.
func (g *gpu) openProfile() bool {
	gpu := g.Handle
	if g.parent != 0 {
		gpu = g.parent
	}
	s := gpmSupport{version: 1}
	return g.Do("nvmlGpmQueryDeviceSupport", 0, gpu, uintptr(unsafe.Pointer(&s))) && s.supported != 0 &&
		g.Do("nvmlGpmSampleAlloc", 0, uintptr(unsafe.Pointer(&g.gpm.older))) &&
		g.Do("nvmlGpmSampleAlloc", 0, uintptr(unsafe.Pointer(&g.gpm.newer)))
}

func (g *gpu) snapshot(into uintptr) bool {
	if g.parent != 0 {
		return g.Do("nvmlGpmMigSampleGet", 0, g.parent, uintptr(g.gi), into)
	}
	return g.Do("nvmlGpmSampleGet", 0, g.Handle, into)
}

// difference returns the metrics between the two snapshots, as far as the device has them.
func (g *gpu) difference() map[uint32]float64 {
	get := gpmMetricsGet{version: 1, sample1: g.gpm.older, sample2: g.gpm.newer, count: uint32(len(gpmIDs))}
	for i, id := range gpmIDs {
		get.metrics[i].id, get.metrics[i].ret = id, errUnknown
	}
	if !g.Do("nvmlGpmMetricsGet", 0, uintptr(unsafe.Pointer(&get))) {
		return nil
	}
	values := map[uint32]float64{}
	for _, m := range get.metrics[:len(gpmIDs)] {
		// Two snapshots taken too close together give NaN with a success code.
		if m.ret == success && !math.IsNaN(m.value) {
			values[m.id] = m.value
		}
	}
	return values
}

func (p *gpm) profile() device.Profile {
	ratio := func(id uint32) device.Value { return p.value(id).Div(percent) }
	pipes := func(list ...device.Pipe) (present []device.Pipe) {
		for _, pipe := range list {
			if pipe.Active.OK() {
				present = append(present, pipe)
			}
		}
		return present
	}
	return device.Profile{
		EngineActive: ratio(gpmEngine),
		SMActive:     ratio(gpmSMActive),
		SMOccupancy:  ratio(gpmSMOccupancy),
		DRAMActive:   ratio(gpmDRAM),
		Pipes: pipes(
			device.Pipe{Name: "tensor", Active: ratio(gpmTensor)},
			device.Pipe{Name: "fp64", Active: ratio(gpmFP64)},
			device.Pipe{Name: "fp32", Active: ratio(gpmFP32)},
			device.Pipe{Name: "fp16", Active: ratio(gpmFP16)},
		),
		PipeDetail: pipes(
			device.Pipe{Name: "hmma", Active: ratio(gpmHMMA)},
			device.Pipe{Name: "imma", Active: ratio(gpmIMMA)},
			device.Pipe{Name: "dmma", Active: ratio(gpmDMMA)},
			device.Pipe{Name: "dfma", Active: ratio(gpmDFMA)},
			device.Pipe{Name: "int", Active: ratio(gpmInteger)},
		),
	}
}
