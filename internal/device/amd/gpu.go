//go:build linux

package amd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// gpu is one GPU or one partition.
type gpu struct {
	sighting
	opts   Options
	hwmon  sysfs.Dir // empty: none
	sample device.Sample
	fresh  bool // no Read has completed yet, or the GPU slept: read static values whatever the tier
	errs   []error
	busy   atomic.Pointer[string]

	m          *metrics // of this Read; nil: none
	residency  residency
	energy     counter
	naks       [len(pcieCounters)]counter
	eccSums    [len(eccTypes)]device.Sum[string]
	temps      []hwmonSensor
	limits     map[string][]device.TemperatureCap // by sensor
	clockLimit map[string]device.Value            // by type
	powerLimit []device.PowerLimit
	boards     []device.Temperature
	aer        []device.ErrorCount
	xgmiTX     device.Sum[int]
	xgmiRX     device.Sum[int]
	queued     map[sysfs.Dir]bool // directories of processes with a queue on this device
	contexts   map[sysfs.Dir][]sysfs.Dir
}

func newGPU(o Options, s sighting) *gpu { return &gpu{sighting: s, opts: o, fresh: true} }

// ID implements device.Device.
func (g *gpu) ID() device.ID { return g.id }

// Busy implements device.Busy.
func (g *gpu) Busy() string {
	if file := g.busy.Load(); file != nil {
		return "reading " + *file
	}
	return ""
}

// Read implements device.Device.
func (g *gpu) Read(ctx context.Context, tier device.Tier) (device.Sample, error) {
	g.errs = nil
	defer g.busy.Store(nil)
	if err := g.gone(); err != nil {
		return device.Sample{ID: g.id}, err
	}
	if g.fresh {
		tier = device.Static
	}
	if g.asleep() {
		return g.readAsleep(tier)
	}
	for _, step := range g.steps(tier) {
		if err := ctx.Err(); err != nil {
			return device.Sample{ID: g.id}, fmt.Errorf("cannot finish reading: %w", err)
		}
		step()
	}
	return g.finish(tier)
}

// finish returns the Sample of a Read, taking its errors into account.
func (g *gpu) finish(tier device.Tier) (device.Sample, error) {
	for _, err := range g.errs {
		if errors.Is(err, unix.ENODEV) {
			g.fresh = true
			return device.Sample{ID: g.id}, fmt.Errorf("%w: %w", device.ErrLost, err)
		}
		if errors.Is(err, unix.EPERM) && g.asleep() { // the GPU fell asleep meanwhile
			g.errs = nil
			return g.readAsleep(tier)
		}
	}
	g.fresh = false
	s := g.sample
	s.ID = g.id
	return s, join(g.errs)
}

// gone returns device.ErrLost if the driver no longer lists the GPU or the partition.
func (g *gpu) gone() error {
	if !g.dir.Join("uevent").Exists() {
		return fmt.Errorf("%s is gone: %w", g.id.PCI, device.ErrLost)
	}
	if !g.part() || g.gpuID == 0 {
		return nil
	}
	if id, err := g.node.Uint("gpu_id"); err != nil || id != g.gpuID {
		return fmt.Errorf("partition %d of %s is gone: %w", g.k, g.id.PCI, device.ErrLost)
	}
	return nil
}

// asleep reports whether the GPU is powered down because it is unused, as Radeon GPUs in
// laptops and workstations are. Reading a sensor would wake the GPU.
func (g *gpu) asleep() bool {
	status, _ := g.dir.Text("power/runtime_status")
	return strings.HasPrefix(status, "suspend") // suspended, suspending
}

// readAsleep returns the values that the driver provides without waking the GPU.
func (g *gpu) readAsleep(tier device.Tier) (device.Sample, error) {
	old := g.sample
	g.sample = device.Sample{Info: old.Info, Aliases: old.Aliases, Slice: old.Slice}
	g.m, g.residency.seen = nil, false
	if tier >= device.Static {
		g.readInfo()
	}
	if !g.part() {
		g.readMemory()
	}
	g.fresh = true
	s := g.sample
	s.ID = g.id
	return s, join(g.errs)
}

// steps returns the steps of a Read at the given tier.
func (g *gpu) steps(tier device.Tier) []func() {
	var steps []func()
	if tier >= device.Static {
		steps = append(steps, g.readInfo)
	}
	if tier >= device.Slow {
		steps = append(steps, g.readQueues)
	}
	if g.part() {
		return append(steps, g.readPartition, g.readProcesses)
	}
	if tier >= device.Static {
		steps = append(steps, g.readStaticLimits)
	}
	steps = append(steps, g.readMetrics, g.readUtilization, g.readMemory)
	if tier >= device.Slow {
		steps = append(steps, g.readPowerLimits, g.readWindow, g.readFans, g.readAER, g.readPCIe,
			g.readBoards, g.readRAS, g.readBadPages)
	}
	return append(steps, g.readTemperatures, g.readPower, g.readClocks, g.readVoltages, g.readThrottle,
		g.readXGMI, g.readProcesses)
}

// readInfo reads what the driver knows without accessing the GPU.
func (g *gpu) readInfo() {
	g.sample.Aliases = g.aliases()
	if g.part() {
		g.sample.Slice = device.Slice{Held: 1, Of: g.n}
		return
	}
	g.sample.Info = device.Info{
		Driver:       driverVersion(g.opts),
		Architecture: architecture(g.gfx),
		VBIOS:        g.text(g.dir, "vbios_version"),
		Firmware:     g.text(g.dir, "fw_version/smc_fw_version"),
	}
	if numa, err := strconv.Atoi(g.text(g.dir, "numa_node")); err == nil && numa >= 0 {
		g.sample.Info.NUMA = strconv.Itoa(numa)
	}
	g.hwmon = ""
	for _, d := range g.dir.Glob("hwmon/hwmon*") {
		g.hwmon = d
		break
	}
}

// driverVersion returns the driver's own version, or else that of its kernel.
func driverVersion(o Options) string {
	if v, err := o.sys().Text("module/amdgpu/version"); err == nil && v != "" {
		return v
	}
	v, _ := o.proc().Text("sys/kernel/osrelease") // may be missing in tests and containers
	return v
}

// readMetrics reads the firmware table that holds almost all values.
func (g *gpu) readMetrics() {
	g.m = g.table(g.dir, "gpu_metrics", gpuLayouts, gpuPacked)
}

// table reads one of the firmware's tables. The driver returns as many bytes as the table
// has, at most a page.
func (g *gpu) table(d sysfs.Dir, name string, known layouts, packed version) *metrics {
	const most = 8192 // large enough to detect an oversized table
	b, err := d.Bytes(g.at(d, name), most)
	if err != nil {
		g.fail(err)
		return nil
	}
	if len(b) == 0 {
		return nil // the GPU does not have this table
	}
	m, err := decode(b, known, packed)
	if err != nil {
		g.fail(fmt.Errorf("cannot decode %s: %w", d.Join(name), err))
	}
	return m
}

// readMemory reads device memory, in bytes. The driver does not report reserved memory.
func (g *gpu) readMemory() {
	m := &g.sample.Memory
	m.Total = g.number(g.dir, "mem_info_vram_total", 1)
	m.Used = g.number(g.dir, "mem_info_vram_used", 1)
	m.Free = left(m.Total, m.Used)
}

// readWindow reads the part of the memory that the host can map.
func (g *gpu) readWindow() {
	g.sample.Memory.BAR1Total = g.number(g.dir, "mem_info_vis_vram_total", 1)
	g.sample.Memory.BAR1Used = g.number(g.dir, "mem_info_vis_vram_used", 1)
}

func left(total, used device.Value) device.Value {
	t, ok1 := total.Get()
	u, ok2 := used.Get()
	if !ok1 || !ok2 || u > t {
		return device.Value{}
	}
	return device.Of(t - u)
}

const percent = 100

// readUtilization reads how busy the engines are. In APU tables the unit varies between
// parts, so APU values come from the files instead.
func (g *gpu) readUtilization() {
	var u device.Engines
	if g.m != nil && g.m.version.format == 1 {
		u.Compute = ratio(g.m.get("average_gfx_activity"))
		u.Memory = ratio(g.m.get("average_umc_activity"))
		// One engine decodes and, on Radeon, also encodes; on Instinct it only decodes.
		u.Decoder = ratio(g.m.all("vcn_activity", "vcn_busy").Or(g.m.get("average_mm_activity")))
		u.JPEG = ratio(g.m.all("jpeg_activity", "jpeg_busy"))
	}
	if !u.Compute.OK() {
		u.Compute = ratio(g.number(g.dir, "gpu_busy_percent", 1))
	}
	if !u.Memory.OK() {
		u.Memory = ratio(g.number(g.dir, "mem_busy_percent", 1))
	}
	if !u.Decoder.OK() {
		u.Decoder = ratio(g.number(g.dir, "vcn_busy_percent", 1))
	}
	g.sample.Utilization = u
}

// ratio converts percent. A value above 100 is dropped: some firmware uses a different
// unit.
func ratio(v device.Value) device.Value {
	if f, ok := v.Get(); !ok || f < 0 || f > percent {
		return device.Value{}
	}
	return v.Div(percent)
}

// readPartition reads a partition's own values, from its own table if the driver has one,
// else from its row in the GPU's table.
func (g *gpu) readPartition() {
	m, k, n := (*metrics)(nil), 0, 1
	if g.xcp != "" {
		m = g.table(g.xcp, "xcp_metrics", partitionLayouts, partitionPacked)
	}
	if m == nil {
		g.readMetrics()
		m, k, n = g.m, g.k, g.n
	}
	busy := ratio(m.partition("gfx_busy_inst", k, n))
	g.sample.Utilization = device.Engines{
		Compute: busy,
		Decoder: ratio(m.partition("vcn_busy", k, n)),
		JPEG:    ratio(m.partition("jpeg_busy", k, n)),
	}
	g.sample.Profile.EngineActive = busy
	g.sample.Memory = device.Memory{}
	g.busy.Store(new(string(g.node)))
	size, err := memorySize(g.node)
	if err != nil {
		g.fail(err)
	} else if size > 0 {
		g.sample.Memory.Total = device.Of(float64(size))
	}
}

// at records which file is being read, for Busy, and returns name.
func (g *gpu) at(d sysfs.Dir, name string) string {
	g.busy.Store(new(string(d.Join(name))))
	return name
}

// number returns an attribute divided by div, absent if the GPU does not have it.
func (g *gpu) number(d sysfs.Dir, name string, div float64) device.Value {
	if d == "" {
		return device.Value{}
	}
	v, err := d.Float(g.at(d, name))
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
		err = fmt.Errorf("cannot parse %s: %v is not a reading", d.Join(name), v)
	}
	if err != nil {
		g.fail(err)
		return device.Value{}
	}
	return device.Of(v).Div(div)
}

// text returns an attribute, empty if the GPU does not have it.
func (g *gpu) text(d sysfs.Dir, name string) string {
	s, err := d.Text(g.at(d, name))
	if err != nil {
		g.fail(err)
	}
	return s
}

// fail records an error, unless it means that the GPU does not have the attribute.
func (g *gpu) fail(err error) {
	if !absent(err) {
		g.errs = append(g.errs, err)
	}
}

// absent reports whether err means that the GPU does not have an attribute. Older amdgpu
// returns EINVAL for it.
func absent(err error) bool { return sysfs.Absent(err) || errors.Is(err, unix.EINVAL) }
