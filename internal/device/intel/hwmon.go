//go:build linux

package intel

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// hwmon is the directory of a GPU's sensors and its content.
//
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon
type hwmon struct {
	dir      sysfs.Dir // empty: none
	energies []string  // files, the whole card first
	temps    []temp
	fans     []int // numbers, as in fan1_input
}

// temp is one temperature sensor.
type temp struct {
	sensor string
	name   string // file name prefix, as in temp2_input
	slow   bool
	limits []device.TemperatureCap
	value  device.Value
}

// findHwmon returns the sensor directory of a PCI device. i915 creates another one per tile
// (i915_gt0) that holds only a part of the energy.
func findHwmon(dir sysfs.Dir) sysfs.Dir {
	for _, d := range dir.Glob("hwmon/hwmon[0-9]*") {
		if name, err := d.Text("name"); err == nil && slices.Contains(Facts.Modules, name) {
			return d
		}
	}
	return ""
}

// findSensors lists the available sensors, which do not change while the driver is loaded.
func (g *gpu) findSensors() {
	g.hwmon = hwmon{dir: findHwmon(g.dir)}
	if g.hwmon.dir == "" || g.parent != "" {
		g.hwmon.dir = ""
		return
	}
	h := &g.hwmon
	// Channel 1 is the card, including memory, fans and converters; channel 2 is the GPU
	// package alone. A driver without labels has only channel 1, and it is the package.
	for _, d := range h.dir.Glob("energy[0-9]*_input") {
		h.energies = append(h.energies, d.Base())
	}
	for _, d := range h.dir.Glob("fan[0-9]*_input") {
		if n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(d.Base(), "fan"), "_input")); err == nil {
			h.fans = append(h.fans, n)
		}
	}
	for _, d := range h.dir.Glob("temp[0-9]*_input") {
		name := strings.TrimSuffix(d.Base(), "_input")
		label, err := g.text(h.dir, name+"_label")
		if err != nil {
			label = "pkg" // i915 has one sensor, for the package, without a label
		}
		if t, ok := thermometer(name, label); ok {
			h.temps = append(h.temps, t)
		}
	}
	slices.SortStableFunc(h.temps, func(a, b temp) int { return cmp.Compare(rank(a.sensor), rank(b.sensor)) })
}

// thermometer returns the sensor with the driver's label. The per-channel memory sensors
// (vram_ch_0 to 11) are omitted because vram is the hottest of them. All but the first two
// are slow, because the card's controller has to be queried.
func thermometer(name, label string) (temp, bool) {
	switch {
	case label == "pkg":
		return temp{name: name, sensor: "hotspot"}, true
	case label == "vram":
		return temp{name: name, sensor: "memory"}, true
	case label == "mctrl":
		return temp{name: name, sensor: "memory_controller", slow: true}, true
	case strings.HasPrefix(label, "vram_ch_"), label == "":
		return temp{}, false
	}
	return temp{name: name, sensor: label, slow: true}, true
}

// rank sorts the sensors that users ask for first.
func rank(sensor string) int {
	if i := slices.Index([]string{"hotspot", "memory"}, sensor); i >= 0 {
		return i
	}
	return 2
}

const milli, micro = 1e3, 1e6

func (g *gpu) readTemperatures(tier device.Tier) {
	var list []device.Temperature
	for i := range g.hwmon.temps {
		t := &g.hwmon.temps[i]
		if !t.slow || tier >= device.Slow {
			t.value = g.number(g.hwmon.dir, t.name+"_input").Div(milli) // m°C
		}
		if t.value.OK() || len(t.limits) > 0 {
			list = append(list, device.Temperature{Sensor: t.sensor, Value: t.value, Limits: t.limits})
		}
	}
	g.sample.Temperatures = list
}

// readTemperatureLimits ignores tempN_max: a B580 reports 60 °C, which is less than its
// temperature under load, and its effect is not documented.
func (g *gpu) readTemperatureLimits() {
	for i := range g.hwmon.temps {
		t := &g.hwmon.temps[i]
		t.limits = nil
		for _, l := range []struct{ file, event string }{{"_crit", "slowdown"}, {"_emergency", "shutdown"}} {
			if v := g.number(g.hwmon.dir, t.name+l.file).Div(milli); v.OK() { // m°C
				t.limits = append(t.limits, device.TemperatureCap{Event: l.event, Limit: v})
			}
		}
	}
}

func (g *gpu) readFans() {
	var list []device.Fan
	for _, n := range g.hwmon.fans {
		name := "fan" + strconv.Itoa(n)
		rpm := g.number(g.hwmon.dir, name+"_input")
		if rpm.OK() {
			list = append(list, device.Fan{Index: n - 1, RPM: rpm, Speed: rpm.Ratio(g.number(g.hwmon.dir, name+"_max"))})
		}
	}
	g.sample.Fans = list
}

// readElectric reads the GPU's voltage: in1 in xe, in0 in i915. For the current, drivers so
// far provide only the limit (curr1_crit).
func (g *gpu) readElectric() {
	s := &g.sample
	s.Voltages = nil
	volts := g.number(g.hwmon.dir, "in1_input").Or(g.number(g.hwmon.dir, "in0_input")).Div(milli) // mV
	if volts.OK() {
		s.Voltages = []device.Voltage{{Rail: "core", Volts: volts}}
	}
	s.Current = g.number(g.hwmon.dir, "curr1_input").Div(milli) // mA
}

// readPowerLimits reads the power limits over seconds (max, PL1) and over milliseconds
// (cap, PL2), for the card (1) or else the package (2). 0 means no limit. power1_crit, at
// which the voltage regulator intervenes, is not configurable and is omitted.
func (g *gpu) readPowerLimits() {
	above0 := func(name string) device.Value {
		v := g.number(g.hwmon.dir, name).Div(micro) // µW
		if w, _ := v.Get(); w <= 0 {
			return device.Value{}
		}
		return v
	}
	var limits []device.PowerLimit
	add := func(kind string, v device.Value) bool {
		if v.OK() {
			limits = append(limits, device.PowerLimit{Type: kind, Watts: v})
		}
		return v.OK()
	}
	for _, channel := range []string{"power1", "power2"} {
		if add(device.LimitEnforced, lower(above0(channel+"_max"), above0(channel+"_cap"))) {
			break
		}
	}
	_ = add("default", above0("power1_rated_max")) || add("default", above0("power2_rated_max"))
	g.meter.limits = limits
}

// lower returns the lower of two values that may be absent.
func lower(a, b device.Value) device.Value {
	x, ok := a.Get()
	y, also := b.Get()
	if ok && also {
		return device.Of(min(x, y))
	}
	return a.Or(b)
}
