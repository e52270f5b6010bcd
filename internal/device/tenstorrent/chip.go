//go:build linux

package tenstorrent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/openfiles"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// chip is one ASIC on PCIe. Its dir is /sys/class/tenstorrent/tenstorrent!N.
type chip struct {
	opts   Options
	id     device.ID
	dir    sysfs.Dir
	number int

	read   bool          // static values were read
	sample device.Sample // each tier overwrites its own part
	errs   []error       // errors of this Read
	lost   bool

	slowdown   device.Value // temperature at which the firmware lowers the clocks
	powerLimit device.Value
	heartbeat  device.Value // the last value present
	words      map[string]*counter32
	counted    time.Time // when words were last read
	wormhole   bool
	serial     string // last known value: the firmware does not report it during a reset
	asic       string
	scanned    []uint32 // processes found through their open files
}

// ID implements device.Device.
func (c *chip) ID() device.ID { return c.id }

// Read implements device.Device.
func (c *chip) Read(ctx context.Context, tier device.Tier) (device.Sample, error) {
	void := device.Sample{ID: c.id}
	if err := ctx.Err(); err != nil {
		return void, fmt.Errorf("cannot finish reading: %w", err)
	}
	if !c.read {
		tier = device.Static
	}
	c.errs, c.lost = nil, !c.dir.Join("device").Exists() || tier >= device.Slow && address(c.dir) != c.id.PCI
	if !c.lost {
		if tier >= device.Static {
			c.readStatic()
		}
		if tier >= device.Slow {
			c.readSlow()
		}
		c.readFast(tier)
	}
	if c.lost {
		c.read = false
		return void, fmt.Errorf("the driver no longer lists the chip: %w", device.ErrLost)
	}
	c.read = true
	return c.sample, errors.Join(c.errs...)
}

// fail records err for the end of Read, unless err only means that there is no value now:
// the driver hides the file if the firmware does not have the tag, and a chip in reset
// answers ENODATA.
func (c *chip) fail(err error) {
	switch {
	case err == nil || sysfs.Absent(err) || silent(err):
	case errors.Is(err, unix.ENODEV): // the driver released the chip
		c.lost = true
	default:
		c.errs = append(c.errs, err)
	}
}

// text returns an attribute, or "" if the chip does not have it.
func (c *chip) text(dir sysfs.Dir, name string) string {
	s, err := dir.Text(name)
	c.fail(err)
	return s
}

// value returns an integer attribute, divided by units to convert it.
func (c *chip) value(dir sysfs.Dir, name string, units float64) device.Value {
	s, err := dir.Text(name)
	if err != nil {
		c.fail(err)
		return device.Value{}
	}
	v, err := parseNumber(s)
	if err != nil {
		c.fail(fmt.Errorf("cannot parse %s: %w", dir.Join(name), err))
		return device.Value{}
	}
	return device.Of(v).Div(units)
}

func (c *chip) readStatic() {
	arch := architecture(c.dir)
	c.wormhole = arch == "wormhole"
	module := c.opts.dir("sys/module/tenstorrent")
	info := device.Info{
		Driver:       c.text(module, "version"),
		Architecture: arch,
		NUMA:         c.text(c.dir, "device/numa_node"),
		Firmware:     cmp.Or(c.text(c.dir, "tt_fw_bundle_ver"), c.sample.Info.Firmware),
	}
	if info.NUMA == "-1" { // the machine has no NUMA
		info.NUMA = ""
	}
	// The community's device plugin refers to a chip by its number. The serial number
	// identifies a chip only on boards with one chip.
	number := strconv.Itoa(c.number)
	c.serial, c.asic = cmp.Or(c.text(c.dir, "tt_serial"), c.serial), cmp.Or(c.text(c.dir, "tt_asic_id"), c.asic)
	c.sample.ID, c.sample.Info, c.sample.Aliases = c.id, info, []string{"tenstorrent.com/" + number, "tenstorrent/" + number}
	for _, name := range []string{c.serial, c.asic} {
		if name != "" {
			c.sample.Aliases = append(c.sample.Aliases, name)
		}
	}
}

func (c *chip) readSlow() {
	const milli, micro = 1e3, 1e6
	hwmon := c.hwmon()
	c.slowdown = c.value(hwmon, "temp1_max", milli)    // m°C
	c.powerLimit = c.value(hwmon, "power1_max", micro) // µW
	c.sample.PCIe = device.PCIe{
		Generation:    parseLinkSpeed(c.text(c.dir, "device/current_link_speed")),
		GenerationMax: parseLinkSpeed(c.text(c.dir, "device/max_link_speed")),
		Width:         width(c.value(c.dir, "device/current_link_width", 1)),
		WidthMax:      width(c.value(c.dir, "device/max_link_width", 1)),
	}
	// Thermal shutdowns since the last power cycle, on Blackhole.
	c.sample.Resets = nil
	if trips := c.value(c.dir, "tt_therm_trip_count", 1); trips.OK() {
		c.sample.Resets = []device.ErrorCount{{Type: "thermal_trip", Count: trips}}
	}
}

// width drops what the kernel reports for a link that is down: 0, or 255 and above for
// unknown.
func width(v device.Value) device.Value {
	if n, ok := v.Get(); !ok || n <= 0 || n >= 255 {
		return device.Value{}
	}
	return v
}

// hwmon returns the sensor directory. The kernel renumbers it as drivers load and unload.
func (c *chip) hwmon() sysfs.Dir {
	if found := c.dir.Glob("device/hwmon/hwmon*"); len(found) > 0 {
		return found[0]
	}
	return c.dir.Join("device/hwmon/hwmon") // does not exist
}

func (c *chip) readFast(tier device.Tier) {
	const milli, micro, mega = 1e3, 1e6, 1e6
	s, hwmon := &c.sample, c.hwmon()

	s.Clocks = nil
	for _, clock := range []struct{ file, name string }{{"tt_aiclk", "ai"}, {"tt_axiclk", "axi"}, {"tt_arcclk", "arc"}} {
		if f := c.value(c.dir, clock.file, 1); f.OK() { // MHz
			s.Clocks = append(s.Clocks, device.Clock{Type: clock.name, Frequency: f.Scale(mega)})
		}
	}

	s.Temperatures = nil
	if t := c.value(hwmon, "temp1_input", milli); t.OK() || c.slowdown.OK() { // m°C
		s.Temperatures = []device.Temperature{{Sensor: "edge", Value: t, Limits: c.limits(t)}}
	}

	// µW in steps of 1 W; the power of the ASIC, not of the board.
	s.Powers = nil
	if p := c.value(hwmon, "power1_input", micro); p.OK() || c.powerLimit.OK() {
		power := device.Power{Scope: "gpu", Instant: p}
		if c.powerLimit.OK() {
			power.Limits = []device.PowerLimit{{Type: device.LimitEnforced, Watts: c.powerLimit}}
		}
		s.Powers = []device.Power{power}
	}

	s.Voltages = nil
	if v := c.value(hwmon, "in0_input", milli); v.OK() { // mV
		s.Voltages = []device.Voltage{{Rail: "core", Volts: v}}
	}
	s.Current = c.value(hwmon, "curr1_input", milli) // mA in steps of 1 A

	s.Fans = nil
	const noFan = 0xffffffff // on boards cooled by the chassis
	if rpm := c.value(hwmon, "fan1_input", 1); rpm.OK() && rpm != device.Of(noFan) {
		s.Fans = []device.Fan{{RPM: rpm}}
	}

	c.readHeartbeat()
	c.readTraffic()
	c.readProcesses(tier)
}

func (c *chip) limits(t device.Value) []device.TemperatureCap {
	limit, ok := c.slowdown.Get()
	if !ok {
		return nil
	}
	l := device.TemperatureCap{Event: "slowdown", Limit: c.slowdown}
	if now, ok := t.Get(); ok {
		l.Margin = device.Of(limit - now)
	}
	return []device.TemperatureCap{l}
}

// readHeartbeat reads the counter that the firmware increments ten times a second. If it
// stands still, the firmware hangs; if it decreases, the chip was reset and the PCIe
// counters restarted at 0, too.
func (c *chip) readHeartbeat() {
	now := c.value(c.dir, "tt_heartbeat", 1)
	c.sample.Heartbeat = now
	if !now.OK() {
		return
	}
	a, _ := now.Get()
	if b, ok := c.heartbeat.Get(); ok && a < b {
		c.words, c.counted = nil, time.Time{}
	}
	c.heartbeat = now
}

// The counters of the interface between PCIe and the chip's two networks. They count on the
// network side, as the registers behind them are defined (NIU counters of the PCIe tile):
// as master the interface executes the host's accesses, as slave the chip's. What it sends
// comes from the host, and what it receives goes to the host.
var (
	fromHost = []string{"mst_posted_wr_data_word_sent", "mst_nonposted_wr_data_word_sent", "slv_rd_data_word_sent"}
	toHost   = []string{"slv_posted_wr_data_word_received", "slv_nonposted_wr_data_word_received", "mst_rd_data_word_received"}
)

// wordBytes is one flit of Wormhole's networks. For Blackhole it is 64 bytes according to
// its documentation and 32 according to the driver, so Blackhole's traffic stays absent
// until it is measured.
const wordBytes = 32

// readTraffic runs at most once a second: for each counter Wormhole's driver has to access
// the chip's network, and moves a window to do so.
func (c *chip) readTraffic() {
	now := c.opts.Now()
	if !c.wormhole || !c.counted.IsZero() && now.Sub(c.counted) < time.Second {
		return
	}
	c.counted, c.sample.Interconnects = now, nil
	if c.words == nil {
		c.words = map[string]*counter32{}
	}
	rx, tx := c.bytes(fromHost), c.bytes(toHost)
	if rx.OK() || tx.OK() {
		c.sample.Interconnects = []device.Interconnect{{Type: "pcie", RX: rx, TX: tx}}
	}
}

// bytes returns the sum of the counters over both networks. It is absent if a counter is
// missing, which would make the sum decrease.
func (c *chip) bytes(names []string) device.Value {
	var sum uint64
	whole := true
	for _, name := range names {
		for _, network := range []string{"0", "1"} {
			file := filepath.Join("pcie_perf_counters", name+network)
			now, ok := c.value(c.dir, file, 1).Get()
			if !ok || now < 0 || now > 1<<32-1 {
				whole = false
				continue
			}
			w := c.words[name+network]
			if w == nil {
				w = &counter32{}
				c.words[name+network] = w
			}
			w.add(uint32(now))
			sum += w.total
		}
	}
	if !whole {
		return device.Value{}
	}
	return device.Of(float64(sum) * wordBytes)
}

// readProcesses asks the driver or, if the driver is too old, searches for processes that
// have the device file open.
func (c *chip) readProcesses(tier device.Tier) {
	number := strconv.Itoa(c.number)
	list := string(c.opts.dir("proc/driver/tenstorrent", number, "pids"))
	b, err := os.ReadFile(list)
	var pids []uint32
	found := false
	switch {
	case err == nil:
		if pids, err = parsePIDs(string(b)); err != nil {
			c.fail(fmt.Errorf("cannot parse %s: %w", list, err))
		}
	case !sysfs.Absent(err):
		c.fail(err)
	default:
		if tier >= device.Slow { // scanning /proc is too expensive for every tick
			c.scan("/dev/tenstorrent/" + number)
		}
		pids, found = c.scanned, true
	}
	c.sample.Processes = nil
	for _, pid := range pids {
		name, err := c.opts.dir("proc", strconv.Itoa(int(pid))).Text("comm")
		if err != nil && found {
			continue // exited since it was found
		}
		c.sample.Processes = append(c.sample.Processes, device.Process{PID: pid, Name: name, Type: "compute"})
	}
}

func (c *chip) scan(file string) {
	files, _, err := openfiles.Below(string(c.opts.dir("proc")), file)
	c.fail(err)
	c.scanned = nil
	for _, f := range files {
		if f.Path == file {
			c.scanned = append(c.scanned, f.PID)
		}
	}
	slices.Sort(c.scanned)
	c.scanned = slices.Compact(c.scanned)
}
