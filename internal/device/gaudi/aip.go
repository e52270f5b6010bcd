//go:build linux

package gaudi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/vendorlib"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// aip is one accelerator (an AI processor in Habana's terms). It outlives a library
// session, which gives it a handle.
type aip struct {
	vendorlib.Caller
	r *Reader
	node
	id     device.ID
	serial string
	gone   atomic.Bool // the accelerator was lost: the next discovery identifies it again
	read   bool        // everything was read since the handle was bound
	slept  bool        // the firmware could not be queried at the last Read

	sample  device.Sample // each tier overwrites its own part
	energy  energy
	draw    device.Value // current power
	limit   device.Value // power limit in force
	limits  []device.PowerLimit
	edge    []device.TemperatureCap
	hbm     []device.TemperatureCap
	clocks  [len(clockTypes)]device.Value // highest frequencies
	holders []uint32
}

// bind attaches a to a handle of a library session, or detaches it.
func (a *aip) bind(lib *vendorlib.Library, handle uintptr) {
	a.Lib, a.Handle = lib, handle
	a.Forget()
	a.sample, a.energy, a.read = device.Sample{}, energy{}, false
	a.draw, a.limit = device.Value{}, device.Value{}
	a.limits, a.edge, a.hbm = nil, nil, nil
	a.clocks = [len(clockTypes)]device.Value{}
}

// ID implements device.Device.
func (a *aip) ID() device.ID { return a.id }

// Read implements device.Device.
func (a *aip) Read(ctx context.Context, tier device.Tier) (device.Sample, error) {
	a.r.mu.RLock()
	defer a.r.mu.RUnlock()
	void := device.Sample{ID: a.id}
	if !a.dir.Exists() || tier >= device.Slow && a.address() != a.id.PCI {
		a.gone.Store(true)
		return void, fmt.Errorf("the driver no longer lists the accelerator: %w", device.ErrLost)
	}
	a.Begin()
	a.sample.ID = a.id
	a.readStatus()
	if a.sample.Status == device.Of(needsReset) {
		a.slept = true
		return void, fmt.Errorf("the driver reports the status: %w", device.ErrNeedsReset)
	}
	if !a.read || a.slept && a.awake() {
		tier = device.Static
	}
	for _, step := range a.steps(tier) {
		if err := ctx.Err(); err != nil {
			return void, fmt.Errorf("cannot finish reading: %w", err)
		}
		step()
	}
	if a.Fatal() != nil {
		a.r.stale.Store(true)
		a.gone.Store(true)
		return void, a.Fatal()
	}
	s := a.sample
	if !a.awake() {
		// Values from before the reset say nothing about the current state.
		s = device.Sample{
			ID: s.ID, Info: s.Info, Status: s.Status, Resets: s.Resets, PCIe: s.PCIe, Processes: s.Processes, Aliases: s.Aliases,
		}
	}
	a.read, a.slept = true, !a.awake()
	return s, a.End()
}

// awake reports whether the firmware can be queried.
func (a *aip) awake() bool {
	code, ok := a.sample.Status.Get()
	return !ok || answers(code)
}

// steps returns the steps of a Read at the given tier, cheapest first, so that a driver
// that hangs in a rare call has already answered the common ones. A firmware call takes
// some milliseconds, so only values that change quickly are read at every tick.
func (a *aip) steps(tier device.Tier) []func() {
	var steps []func()
	if tier >= device.Static {
		steps = append(steps, a.readStatic)
	}
	if a.awake() && a.Handle != 0 {
		if tier >= device.Static {
			steps = append(steps, a.readLimits)
		}
		steps = append(steps, a.readUtilization, a.readMemory, a.readThrottle, a.readPower)
	}
	if tier >= device.Slow {
		steps = append(steps, a.readLink, a.readResets)
		if a.awake() {
			steps = append(steps, a.readPowerLimit, a.readClocks)
		}
		if a.awake() && a.Handle != 0 {
			steps = append(steps, a.readTemperature, a.readEnergy, a.readECC, a.readRows, a.readPorts)
		}
	}
	return append(steps, a.joinPower, func() { a.readProcesses(tier) })
}

// value returns an integer attribute, divided by units to convert it. The driver answers
// ENODEV for attributes that need the firmware while the firmware cannot be queried.
func (a *aip) value(dir sysfs.Dir, name string, units float64) device.Value {
	s, err := dir.Text(name)
	if err != nil {
		a.fail(err)
		return device.Value{}
	}
	v, err := parseNumber(s)
	if err != nil {
		a.fail(fmt.Errorf("cannot parse %s: %w", dir.Join(name), err))
		return device.Value{}
	}
	return device.Of(v).Div(units)
}

// attribute returns a text attribute, or "" if the accelerator does not have it.
func (a *aip) attribute(dir sysfs.Dir, name string) string {
	s, err := dir.Text(name)
	a.fail(err)
	return s
}

// fail records err for the end of Read, unless it only means that there is no value now.
func (a *aip) fail(err error) {
	if err != nil && !sysfs.Absent(err) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EAGAIN) {
		a.Fail(err)
	}
}

func (a *aip) readStatus() {
	a.sample.Status = device.Value{}
	if s := a.attribute(a.dir, "status"); s != "" {
		a.sample.Status = device.Of(parseStatus(s))
	}
}

func (a *aip) readStatic() {
	pciID := strings.ToLower(a.attribute(a.pci, "device"))
	info := device.Info{
		Driver:       a.attribute(a.r.opts.dir("sys/module/habanalabs"), "version"),
		Architecture: family(pciID, a.attribute(a.dir, "device_type")),
		NUMA:         a.attribute(a.pci, "numa_node"),
		VBIOS:        a.attribute(a.dir, "preboot_btl_ver"),
		Firmware:     a.attribute(a.dir, "fw_os_ver"),
	}
	if info.NUMA == "-1" { // the machine has no NUMA
		info.NUMA = ""
	}
	a.sample.Info = info
	// Intel's device plugin uses the serial number, its DRA driver the PCI address and id,
	// and Slurm the device file.
	a.sample.Aliases = []string{a.name}
	if a.serial != "" {
		a.sample.Aliases = append(a.sample.Aliases, a.serial)
	}
	if pciID != "" {
		dashed := strings.NewReplacer(":", "-", ".", "-").Replace(a.id.PCI)
		a.sample.Aliases = append(a.sample.Aliases, dashed+"-"+pciID)
	}
}

// clockTypes are HLML's clocks, by number.
var clockTypes = [...]string{"soc", "ic", "mme", "tpc"}

func (a *aip) readLimits() {
	const mega, milli = 1e6, 1e3
	for i := range clockTypes {
		a.clocks[i] = a.U32Of("hlml_device_get_max_clock_info", uint32(i)).Scale(mega) // MHz
	}
	threshold := func(what uint32, event string) []device.TemperatureCap {
		t := a.U32Of("hlml_device_get_temperature_threshold", what) // °C
		if v, ok := t.Get(); !ok || v == 0 {                        // 0: no threshold
			return nil
		}
		return []device.TemperatureCap{{Event: event, Limit: t}}
	}
	a.edge = append(append(threshold(3, "operating"), threshold(1, "slowdown")...), threshold(0, "shutdown")...)
	a.hbm = threshold(2, "operating")
	a.limits = nil
	if w := a.U32("hlml_device_get_power_management_default_limit"); w.OK() { // mW
		a.limits = []device.PowerLimit{{Type: "default", Watts: w.Div(milli)}}
	}
}

// readUtilization reads how much of the last second the accelerator was busy. A
// first-generation Gaudi reports a few percent when idle.
func (a *aip) readUtilization() {
	const percent = 100
	var u utilization
	a.sample.Utilization.Compute = device.Value{}
	if a.Do("hlml_device_get_utilization_rates", 0, a.Handle, uintptr(unsafe.Pointer(&u))) {
		a.sample.Utilization.Compute = device.Of(float64(u.aip) / percent)
	}
}

// readMemory reads memory in bytes. Used includes memory reserved by the driver: some 700
// MiB on an idle accelerator.
func (a *aip) readMemory() {
	var m memory
	a.sample.Memory = device.Memory{}
	if a.Do("hlml_device_get_memory_info", 0, a.Handle, uintptr(unsafe.Pointer(&m))) {
		a.sample.Memory = device.Memory{Used: device.Of(float64(m.used)), Free: device.Of(float64(m.free)), Total: device.Of(float64(m.total))}
	}
}

// readThrottle reads why the clocks are reduced now. The duration is not available: the
// driver counts only the last time, and HLML's header states no unit.
func (a *aip) readThrottle() {
	a.sample.Throttles = nil
	if mask, ok := a.U64("hlml_device_get_current_clocks_throttle_reasons"); ok {
		a.sample.Throttles = throttles(mask)
	}
}

func (a *aip) readPower() {
	const milli = 1e3
	a.draw = a.U32("hlml_device_get_power_usage").Div(milli) // mW
}

// readPowerLimit reads the limit in force, which an administrator may change.
func (a *aip) readPowerLimit() {
	const milli = 1e3
	a.limit = a.value(a.dir, "max_power", milli) // mW
}

// joinPower combines power readings that were taken at different tiers.
func (a *aip) joinPower() {
	p := device.Power{Scope: "gpu", Instant: a.draw}
	if a.limit.OK() {
		p.Limits = []device.PowerLimit{{Type: device.LimitEnforced, Watts: a.limit}}
	}
	p.Limits = append(p.Limits, a.limits...)
	a.sample.Powers = nil
	if p.Instant.OK() || p.Limits != nil {
		a.sample.Powers = []device.Power{p}
	}
}

// energy checks the plausibility of an energy counter.
type energy struct {
	first   float64 // J
	since   time.Time
	judged  bool
	refused bool
}

// plausible reports whether the counter advances about as fast as power suggests. HLML's
// header states no unit; Intel's Python binding says mJ. A wrong unit is off by a factor of
// 1000, which power variation cannot explain.
func (e *energy) plausible(joules, watts float64, now time.Time) bool {
	const shortest, factor = 10 * time.Second, 30
	switch elapsed := now.Sub(e.since); {
	case e.since.IsZero() || joules < e.first:
		*e = energy{first: joules, since: now, judged: e.judged, refused: e.refused}
	case !e.judged && elapsed >= shortest && watts > 0:
		seen := (joules - e.first) / elapsed.Seconds()
		e.judged, e.refused = true, seen < watts/factor || seen > watts*factor
	}
	return e.judged && !e.refused
}

func (a *aip) readEnergy() {
	const milli = 1e3
	a.sample.Energy = device.Value{}
	mj, ok := a.U64("hlml_device_get_total_energy_consumption")
	watts, known := a.draw.Get()
	if joules := float64(mj) / milli; ok && known && a.energy.plausible(joules, watts, a.r.opts.Now()) {
		a.sample.Energy = device.Of(joules)
	}
}
