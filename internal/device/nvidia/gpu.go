//go:build linux

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
)

// gpu is one GPU or one MIG instance. It outlives a library session: bind attaches it to
// the handles of the current one.
type gpu struct {
	caller
	r  *Reader
	id device.ID
	binding
	fresh bool // bound since the last Read: read static values whatever the tier

	sample device.Sample // each tier overwrites its own part
	gpm    gpm

	pcie, nvlink, c2c device.Interconnect
	edgeLimits        []device.TemperatureCap
	memoryLimits      []device.TemperatureCap
	powerLimits       []device.PowerLimit
	clockLimits       [4]device.Value
	smUtil            map[uint32]device.Value // by PID; nil: the driver does not report it
	smRead            time.Time               // when smUtil was read
	smSeen            uint64                  // timestamp in µs of the newest process sample seen
	listed            map[uint32]bool         // processes of the last reading, by PID; nil: there was none
	pcieAsked         time.Time
	links             int
	linkSums          map[linkSum]*device.Sum[int]
	ownTotals         bool // the driver has totals over all links
	arch              uint32
}

// binding is what the current library session knows about a GPU.
type binding struct {
	parent uintptr // handle of the GPU that a MIG instance belongs to; 0: this is a GPU
	gi     uint32  // GPU instance id of a MIG instance
	mig    bool    // this is a GPU in MIG mode
}

// bind attaches g to the result of a discovery. If the result differs, everything learned
// before is discarded: a changed MIG mode or a reloaded driver changes what is supported.
func (g *gpu) bind(s sighting) {
	if g.id == s.id && g.Handle == s.handle && g.binding == s.binding {
		// Features that were unsupported may have become available, such as a link when its
		// fabric came up.
		g.Forget()
		g.gpm.asked = g.gpm.supported
		return
	}
	g.unbind()
	g.id, g.binding = s.id, s.binding
	g.Lib, g.Handle = g.r.lib, s.handle
	g.Forget()
	g.sample, g.fresh, g.listed = device.Sample{}, true, nil
	g.linkSums, g.ownTotals = nil, false
}

// unbind frees what the session holds for g. Read fails until the next bind.
func (g *gpu) unbind() {
	g.gpm.release(g.r.lib)
	g.Handle = 0
}

// ID implements device.Device.
func (g *gpu) ID() device.ID { return g.id }

// Read implements device.Device.
func (g *gpu) Read(ctx context.Context, tier device.Tier) (device.Sample, error) {
	g.r.mu.RLock()
	defer g.r.mu.RUnlock()
	if g.Handle == 0 {
		return device.Sample{ID: g.id}, fmt.Errorf("the driver no longer lists the GPU: %w", device.ErrLost)
	}
	if g.fresh {
		tier = device.Static
	}
	g.Begin()
	for _, step := range g.steps(tier) {
		if err := ctx.Err(); err != nil {
			return device.Sample{ID: g.id}, fmt.Errorf("cannot finish reading: %w", err)
		}
		step()
	}
	if g.Fatal() != nil {
		if errors.Is(g.Fatal(), device.ErrLost) {
			g.r.stale.Store(true)
		}
		return device.Sample{ID: g.id}, g.Fatal()
	}
	g.fresh = false
	s := g.sample
	s.ID = g.id
	return s, g.End()
}

// steps returns the steps of a Read at the given tier, cheapest first, so that a driver
// that hangs in a rare call has already answered the common ones.
func (g *gpu) steps(tier device.Tier) []func() {
	var steps []func()
	processes := func() { g.readProcesses(tier) }
	if tier >= device.Static {
		steps = append(steps, g.readNames)
	}
	if g.parent != 0 {
		return append(steps, g.readMemory, processes, g.readProfile)
	}
	if tier >= device.Static {
		steps = append(steps, g.readInfo, g.readStaticLimits)
	}
	steps = append(steps, g.readUtilization, g.readMemory, g.readClocks, g.readThrottle)
	if tier >= device.Slow {
		steps = append(steps, g.readModes, g.readLimits, g.readThermalMargins, g.readFans, g.readEnergy,
			g.readThrottleTimes, g.readPCIe, g.readNVLink, g.readC2C, g.readECC, g.readRepairs, g.readFabric,
			g.readBAR1, g.readPeaks)
	}
	// These come after the slow steps because they combine fast values with slow ones.
	return append(steps, g.readTemperature, g.readPower, processes, g.readProfile, g.joinInterconnects)
}

func (g *gpu) readInfo() {
	info := device.Info{
		Driver:   g.r.driver,
		VBIOS:    g.Text("nvmlDeviceGetVbiosVersion"),
		Firmware: g.Text("nvmlDeviceGetGspFirmwareVersion"),
		NUMA:     g.numaNode(),
	}
	if a, ok := g.U32("nvmlDeviceGetArchitecture").Get(); ok {
		g.arch = uint32(a)
		info.Architecture = architectures[g.arch]
	}
	g.sample.Info = info
	n, _ := g.fieldOf(91, 0).Get()
	g.links = min(int(n), maxLinks)
}

// numaNode asks the driver, then the PCI device. The kernel reports -1 on a machine without
// NUMA.
func (g *gpu) numaNode() string {
	if n, ok := g.U32("nvmlDeviceGetNumaNodeId").Get(); ok {
		return fmt.Sprint(int(n))
	}
	b, err := os.ReadFile(filepath.Join(g.r.opts.Root, "sys/bus/pci/devices", g.id.PCI, "numa_node"))
	if s := strings.TrimSpace(string(b)); err == nil && s != "-1" {
		return s
	}
	return ""
}

func (g *gpu) readModes() {
	m := &g.sample.Modes
	var current, pending uint32
	m.ECC = device.Value{}
	if g.Do("nvmlDeviceGetEccMode", 0, g.Handle, uintptr(unsafe.Pointer(&current)), uintptr(unsafe.Pointer(&pending))) {
		m.ECC = device.Of(float64(current))
	}
	m.MIG = device.Value{}
	if g.Do("nvmlDeviceGetMigMode", 0, g.Handle, uintptr(unsafe.Pointer(&current)), uintptr(unsafe.Pointer(&pending))) {
		m.MIG = device.Of(float64(current))
	}
	m.Persistence = g.U32("nvmlDeviceGetPersistenceMode")
	m.Compute = g.U32("nvmlDeviceGetComputeMode")
}

func (g *gpu) readMemory() {
	v2 := memoryV2{version: version(unsafe.Sizeof(memoryV2{}), 2)}
	m := &g.sample.Memory
	if g.Do("nvmlDeviceGetMemoryInfo_v2", 0, g.Handle, uintptr(unsafe.Pointer(&v2))) {
		m.Total, m.Reserved = device.Of(float64(v2.total)), device.Of(float64(v2.reserved))
		m.Free, m.Used = device.Of(float64(v2.free)), device.Of(float64(v2.used))
		return
	}
	m.Total, m.Reserved, m.Free, m.Used = device.Value{}, device.Value{}, device.Value{}, device.Value{}
	// Version 1 counts memory reserved by the driver as used, which is a different
	// quantity. Its used value is omitted rather than mixed in.
	var v1 memoryV1
	if g.Do("nvmlDeviceGetMemoryInfo", 0, g.Handle, uintptr(unsafe.Pointer(&v1))) {
		m.Total, m.Free = device.Of(float64(v1.total)), device.Of(float64(v1.free))
	}
}

func (g *gpu) readBAR1() {
	var b bar1
	m := &g.sample.Memory
	m.BAR1Used, m.BAR1Total = device.Value{}, device.Value{}
	if g.Do("nvmlDeviceGetBAR1MemoryInfo", 0, g.Handle, uintptr(unsafe.Pointer(&b))) {
		m.BAR1Used, m.BAR1Total = device.Of(float64(b.used)), device.Of(float64(b.total))
	}
}
