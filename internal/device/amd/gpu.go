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

// gpu is one GPU or one partition of one.
type gpu struct {
	sighting
	opts   Options
	hwmon  sysfs.Dir // empty: it has none
	sample device.Sample
	fresh  bool // no Read was whole yet, or it slept: static values are due whatever the tier
	errs   []error
	busy   atomic.Pointer[string]

	m          *metrics // of this Read; nil: none
	residency  residency
	energy     counter
	naks       [len(pcieCounters)]counter
	temps      []hwmonSensor
	limits     map[string][]device.TemperatureCap // by sensor
	clockLimit map[string]device.Value            // by type
	powerLimit []device.PowerLimit
	boards     []device.Temperature
	aer        []device.ErrorCount
	queued     map[sysfs.Dir]bool // folders of processes with a queue here
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

// finish returns the Sample of a Read, by what went wrong in it.
func (g *gpu) finish(tier device.Tier) (device.Sample, error) {
	for _, err := range g.errs {
		if errors.Is(err, unix.ENODEV) {
			g.fresh = true
			return device.Sample{ID: g.id}, fmt.Errorf("%w: %w", device.ErrLost, err)
		}
		if errors.Is(err, unix.EPERM) && g.asleep() { // it fell asleep meanwhile
			g.errs = nil
			return g.readAsleep(tier)
		}
	}
	g.fresh = false
	s := g.sample
	s.ID = g.id
	return s, join(g.errs)
}

// gone returns device.ErrLost if the driver no longer shows the GPU or the partition.
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

// asleep reports whether the GPU is powered down while nobody uses it, as Radeon of
// laptops and workstations is. Reading a sensor would wake it.
func (g *gpu) asleep() bool {
	status, _ := g.dir.Text("power/runtime_status")
	return strings.HasPrefix(status, "suspend") // suspended, suspending
}

// readAsleep returns what the driver answers by itself.
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

// steps returns what a Read of the tier does.
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

// readInfo reads what the driver knows without asking the GPU.
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

// driverVersion returns the driver's own version, or that of the kernel it came with.
func driverVersion(o Options) string {
	if v, err := o.sys().Text("module/amdgpu/version"); err == nil && v != "" {
		return v
	}
	v, _ := o.proc().Text("sys/kernel/osrelease") // not of every test or container
	return v
}

// readMetrics reads the table that has almost everything, in one read.
func (g *gpu) readMetrics() {
	g.m = g.table(g.dir, "gpu_metrics", gpuLayouts, gpuPacked)
}

// table reads one of the firmware's tables. The driver writes as many bytes as it has, at
// most a page.
func (g *gpu) table(d sysfs.Dir, name string, known layouts, packed version) *metrics {
	const most = 8192 // so that a larger one is seen
	b, err := d.Bytes(g.at(d, name), most)
	if err != nil {
		g.fail(err)
		return nil
	}
	if len(b) == 0 {
		return nil // how the driver says that this GPU has none
	}
	m, err := decode(b, known, packed)
	if err != nil {
		g.fail(fmt.Errorf("cannot decode %s: %w", d.Join(name), err))
	}
	return m
}

// readMemory reads device memory, in bytes. The driver does not tell what it reserved.
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

// readUtilization reads how busy the engines are. In the tables of APUs the unit differs
// from part to part, so theirs come from the files.
func (g *gpu) readUtilization() {
	var u device.Engines
	if g.m != nil && g.m.version.format == 1 {
		u.Compute = ratio(g.m.get("average_gfx_activity"))
		u.Memory = ratio(g.m.get("average_umc_activity"))
		// One engine decodes and, on Radeon, encodes; Instinct's only decodes.
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

// ratio converts per cent. More than all of the time is no answer: some firmware has
// another unit.
func ratio(v device.Value) device.Value {
	if f, ok := v.Get(); !ok || f < 0 || f > percent {
		return device.Value{}
	}
	return v.Div(percent)
}

// readPartition reads what a partition has of its own: by its own table where the driver
// has one, else by its row in the table of the GPU.
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

// at notes what is being read, and returns its name.
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
		err = fmt.Errorf("cannot parse %s: %v is no reading", d.Join(name), v)
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

// fail keeps an error, unless it says that the GPU does not have the attribute.
func (g *gpu) fail(err error) {
	if !absent(err) {
		g.errs = append(g.errs, err)
	}
}

// absent reports whether a GPU does not have an attribute. Older amdgpu says EINVAL then.
func absent(err error) bool { return sysfs.Absent(err) || errors.Is(err, unix.EINVAL) }
