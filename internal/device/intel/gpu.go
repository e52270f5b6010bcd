//go:build linux

package intel

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

// gpu is one GPU or one virtual function.
type gpu struct {
	sighting
	r      *Reader
	minors []uint32 // of its DRM nodes

	sample device.Sample // each tier overwrites its own part
	fresh  bool          // never read
	due    device.Tier   // tier that is due because the GPU slept
	errs   []error       // errors of the Read in progress
	gone   bool

	hwmon   hwmon
	meter   meter
	gts     []gt
	causes  []cause
	link    sysfs.Dir // PCI device with the link to the host; empty: unknown
	virtual bool      // the GPU has virtual functions, whose users are not visible here
	aer     map[string]*device.Sum[sysfs.Dir]
	clients map[uint64]client

	reading atomic.Pointer[string] // the file being read, for Busy
}

func newGPU(r *Reader, s sighting) *gpu {
	g := &gpu{sighting: s, r: r, fresh: true, due: device.Static}
	for _, node := range []string{s.card.Base(), s.render} {
		if n, ok := minor(node); ok {
			g.minors = append(g.minors, n)
		}
	}
	return g
}

// minor returns the number in a DRM node's name, which is its minor device number.
func minor(node string) (uint32, bool) {
	digits := strings.TrimLeft(node, "abcdefghijklmnopqrstuvwxyzD")
	n, err := strconv.ParseUint(digits, 10, 20)
	return uint32(n), err == nil
}

// ID implements device.Device.
func (g *gpu) ID() device.ID { return g.id }

// Busy implements device.Busy.
func (g *gpu) Busy() string {
	if file := g.reading.Load(); file != nil {
		return "reading " + *file
	}
	return ""
}

// Read implements device.Device.
func (g *gpu) Read(ctx context.Context, tier device.Tier) (device.Sample, error) {
	defer g.reading.Store(nil)
	g.errs, g.gone = nil, false
	if err := g.present(); err != nil {
		g.forget()
		return device.Sample{ID: g.id}, err
	}
	if g.fresh {
		tier = device.Static
	}
	for _, step := range g.steps(tier) {
		if err := ctx.Err(); err != nil {
			return device.Sample{ID: g.id}, fmt.Errorf("cannot finish reading: %w", err)
		}
		step(ctx)
		if g.gone {
			g.forget()
			return device.Sample{ID: g.id}, fmt.Errorf("%w: %w", device.ErrLost, errors.Join(g.errs...))
		}
	}
	g.fresh = false
	s := g.sample
	s.ID = g.id
	return s, errors.Join(g.errs...)
}

// forget discards state that a driver restart invalidates. The energy counter restarts with
// the driver, and its decrease shows that.
func (g *gpu) forget() {
	g.fresh, g.due, g.clients = true, device.Static, nil
	g.meter.pause()
}

// present checks that the discovered GPU still exists and that its driver was not
// restarted, which would rename its files.
func (g *gpu) present() error {
	text, err := g.dir.Text("uevent")
	switch {
	case sysfs.Absent(err) || errors.Is(err, unix.ENODEV):
		return fmt.Errorf("the kernel no longer lists the GPU: %w", device.ErrLost)
	case err != nil:
		return fmt.Errorf("%w: %w", device.ErrLost, err)
	case parseUevent(text)["DRIVER"] != g.driver:
		return fmt.Errorf("the GPU is no longer bound to the %s driver: %w", g.driver, device.ErrLost)
	case g.card != "" && !g.card.Exists(), !g.fresh && g.hwmon.dir != "" && !g.hwmon.dir.Exists():
		return fmt.Errorf("the %s driver was restarted: %w", g.driver, device.ErrLost)
	}
	return nil
}

// steps returns the steps of a Read at the given tier. For a sleeping GPU they include only
// what the kernel knows without waking it.
func (g *gpu) steps(tier device.Tier) []func(context.Context) {
	var steps []func(context.Context)
	plain := func(list ...func()) {
		for _, f := range list {
			steps = append(steps, func(context.Context) { f() })
		}
	}
	if tier >= device.Static {
		plain(g.readInfo, g.readNames, g.findSensors)
	}
	plain(g.readStatus)
	if g.card == "" {
		return steps // the GPU accepts nothing but new firmware
	}
	if tier >= device.Slow {
		plain(g.readVirtual)
	}
	if g.asleep() {
		g.due = max(g.due, tier, device.Slow)
		plain(g.sleep)
		return append(steps, g.keepClients)
	}
	tier = max(tier, g.due)
	if g.parent == "" { // a virtual function has no sensors of its own
		if tier >= device.Static {
			plain(g.findGTs, g.findLink, g.readMemoryTotal, g.readTemperatureLimits, g.readClockLimits)
		}
		if tier >= device.Slow {
			plain(g.readPowerLimits, g.readFans, g.readElectric, g.readLink, g.readErrors)
		}
		plain(g.readEnergy, g.readClocks, g.readThrottles, func() { g.readTemperatures(tier) })
	}
	steps = append(steps, g.readClients)
	plain(func() { g.due = device.Fast })
	return steps
}

// asleep reports whether the kernel has suspended the GPU.
func (g *gpu) asleep() bool {
	status, err := g.text(g.dir, "power/runtime_status")
	return err == nil && strings.HasPrefix(status, "suspend")
}

// sleep removes readings that are not taken while the GPU sleeps. Its counters stay, and
// its clocks are 0.
func (g *gpu) sleep() {
	s := &g.sample
	s.Temperatures, s.Voltages, s.Fans, s.Throttles = nil, nil, nil, nil
	s.Current = device.Value{}
	s.PCIe.Generation, s.PCIe.Width = device.Value{}, device.Value{}
	s.Powers = g.power(device.Value{})
	g.meter.pause()
	var clocks []device.Clock
	for _, c := range s.Clocks {
		c.Frequency = device.Of(0)
		clocks = append(clocks, c)
	}
	s.Clocks = clocks
}

func (g *gpu) readInfo() {
	driver := g.driver
	version, err := g.text(g.r.sys.Join("module", g.driver), "version") // exists only for a driver built outside the kernel
	if err != nil {
		version, _ = g.text(g.r.proc.Join("sys/kernel"), "osrelease")
	}
	if version != "" {
		driver += " " + version
	}
	info := device.Info{Driver: driver, Architecture: architecture(g.chip)}
	if node, err := g.text(g.dir, "numa_node"); err == nil && node != "-1" {
		info.NUMA = node
	}
	g.sample.Info = info
}

// readNames collects the names that schedulers use for the GPU: its DRM nodes (device
// plugin, Slurm) and the name in Intel's resource driver, such as 0000-03-00-0-0x56c0.
func (g *gpu) readNames() {
	var names []string
	for _, n := range []string{string(g.card), g.render} {
		if n != "" {
			names = append(names, sysfs.Dir(n).Base())
		}
	}
	dashed := strings.NewReplacer(":", "-", ".", "-").Replace(g.id.PCI)
	names = append(names, fmt.Sprintf("%s-0x%04x", dashed, g.chip))
	g.sample.Slice = device.Slice{}
	if g.id.Parent != "" {
		names = append(names, g.id.PCI) // the PCI address in a partition's ID is not used for matching
		if n, err := g.dir.Join("physfn").Uint("sriov_numvfs"); err == nil && n > 0 && n <= 64 {
			g.sample.Slice = device.Slice{Held: 1, Of: int(n)} // the driver divides the GPU equally
		}
	}
	g.sample.Aliases = names
}

// readStatus reads whether the GPU is in survivability mode: it failed to start (and has no
// DRM device) or broke down, and accepts nothing but new firmware. Only root may read the
// file, but its existence is enough. i915 has no such mode.
func (g *gpu) readStatus() {
	g.sample.Status = device.Value{}
	if g.driver == "xe" {
		g.sample.Status = device.Flag(g.dir.Join("survivability_mode").Exists())
	}
}

func (g *gpu) readVirtual() {
	n, _ := g.number(g.dir, "sriov_numvfs").Get()
	g.virtual = n > 0
}

// readMemoryTotal reads the memory size from the drivers that provide it: those that Intel
// ships for its data center GPUs. The in-kernel drivers provide it only through an ioctl,
// and the size of the window (BAR) is not that of the memory behind it.
func (g *gpu) readMemoryTotal() {
	total := g.number(g.card, "lmem_total_bytes")
	for _, tile := range g.dir.Glob("tile[0-9]*") {
		if v, ok := g.number(tile, "physical_vram_size_bytes").Get(); ok {
			sum, _ := total.Get()
			total = device.Of(sum + v)
		}
	}
	g.sample.Memory.Total = total
}

// text returns an attribute and records which file is being read, for Busy.
func (g *gpu) text(d sysfs.Dir, name string) (string, error) {
	file := string(d.Join(name))
	g.reading.Store(&file)
	return d.Text(name)
}

// number returns a numeric attribute, or absent if the GPU does not have it. A failure to
// read becomes an error of this Read.
func (g *gpu) number(d sysfs.Dir, name string) device.Value {
	if d == "" {
		return device.Value{}
	}
	file := string(d.Join(name))
	g.reading.Store(&file)
	v, err := d.Float(name)
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
		err = fmt.Errorf("cannot parse %s: %v is not a number", file, v)
	}
	if err != nil {
		g.fail(err)
		return device.Value{}
	}
	return device.Of(v)
}

// fail records why a value could not be read, unless the GPU does not have the value.
func (g *gpu) fail(err error) {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		g.gone = true
	}
	if !sysfs.Absent(err) {
		g.errs = append(g.errs, err)
	}
}
