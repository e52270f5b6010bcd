//go:build linux

package amd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

const (
	milli = 1e3
	micro = 1e6
	mega  = 1e6
)

// sensors are the temperatures by their names in the table, in degrees Celsius. Where
// the table has several, they are numbered.
var sensors = []struct{ column, sensor string }{
	{"temperature_edge", "edge"},
	{"temperature_hotspot", "hotspot"},
	{"temperature_mem", "memory"},
	{"temperature_vrgfx", "vr_gfx"},
	{"temperature_vrsoc", "vr_soc"},
	{"temperature_vrmem", "vr_mem"},
	{"temperature_hbm", "hbm"},
	{"temperature_aid", "aid"},
	{"temperature_xcd", "xcd"},
}

// hwmonSensors are the names of hwmon's labels.
var hwmonSensors = map[string]string{"edge": "edge", "junction": "hotspot", "mem": "memory"}

// hwmonTemperatures is how many sensors amdgpu has there at most.
const hwmonTemperatures = 3

// readTemperatures reads the sensors of the table, and those of hwmon that are not in it.
func (g *gpu) readTemperatures() {
	var list []device.Temperature
	seen := map[string]bool{}
	add := func(sensor string, v device.Value) {
		if v.OK() && !seen[sensor] {
			seen[sensor] = true
			list = append(list, device.Temperature{Sensor: sensor, Value: v, Limits: g.limits[sensor]})
		}
	}
	if g.m != nil && g.m.version.format == 1 { // the unit of the others differs
		for _, s := range sensors {
			n := g.m.count(s.column)
			for i := range n {
				sensor := s.sensor
				if n > 1 {
					sensor += strconv.Itoa(i)
				}
				if v := g.m.at(s.column, 0, i); v != device.Of(0) || !strings.HasPrefix(sensor, "vr_") {
					add(sensor, v) // a regulator without a sensor says 0
				}
			}
		}
	}
	for _, s := range g.temps {
		if !seen[s.sensor] {
			add(s.sensor, g.number(g.hwmon, fmt.Sprintf("temp%d_input", s.number), milli))
		}
	}
	g.sample.Temperatures = slices.Concat(list, g.boards)
}

// hwmonSensor is a sensor of hwmon by its number.
type hwmonSensor struct {
	sensor string
	number int
}

// findSensors returns hwmon's sensors, in order.
func (g *gpu) findSensors() []hwmonSensor {
	var list []hwmonSensor
	if g.hwmon == "" {
		return nil
	}
	for i := 1; i <= hwmonTemperatures; i++ {
		label, err := g.hwmon.Text(g.at(g.hwmon, fmt.Sprintf("temp%d_label", i)))
		if i == 1 && absent(err) && g.hwmon.Join("temp1_input").Exists() {
			label = "edge" // drivers before 5.4 have one sensor and no label
		}
		if err != nil {
			g.fail(err)
		}
		if sensor := hwmonSensors[label]; sensor != "" {
			list = append(list, hwmonSensor{sensor, i})
		}
	}
	return list
}

// readStaticLimits reads the temperatures at which the GPU slows down and shuts down, and
// the highest level of each clock.
func (g *gpu) readStaticLimits() {
	g.temps, g.limits = g.findSensors(), map[string][]device.TemperatureCap{}
	for _, s := range g.temps {
		for _, l := range []struct{ file, event string }{{"crit", "slowdown"}, {"emergency", "shutdown"}} {
			v := g.number(g.hwmon, fmt.Sprintf("temp%d_%s", s.number, l.file), milli)
			if c, ok := v.Get(); ok && c > 0 { // absolute zero is how the driver writes none
				g.limits[s.sensor] = append(g.limits[s.sensor], device.TemperatureCap{Event: l.event, Limit: v})
			}
		}
	}
	g.clockLimit = map[string]device.Value{}
	for _, c := range clocks {
		if c.levels == "" {
			continue
		}
		g.clockLimit[c.kind] = parseLevels(g.text(g.dir, c.levels))
	}
}

// parseLevels returns the highest level of lines such as "1: 1500Mhz *", in hertz.
func parseLevels(text string) device.Value {
	var highest device.Value
	for line := range strings.Lines(text) {
		_, level, ok := strings.Cut(line, ":")
		digits := strings.TrimLeft(level, " ")
		end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' })
		if !ok || end <= 0 || !strings.HasPrefix(strings.ToLower(digits[end:]), "mhz") {
			continue
		}
		v, err := strconv.ParseUint(digits[:end], 10, 32)
		if f, _ := highest.Get(); err == nil && float64(v)*mega > f {
			highest = device.Of(float64(v) * mega)
		}
	}
	return highest
}

// clocks are the clock domains, in MHz, by their names in the tables from the newest to
// the oldest, the file of hwmon in Hz, and the file of their levels.
var clocks = []struct {
	kind    string
	columns []string
	hwmon   string
	levels  string
}{
	{"graphics", []string{"current_gfxclk", "average_gfxclk_frequency"}, "freq1_input", "pp_dpm_sclk"},
	{"memory", []string{"current_uclk", "average_uclk_frequency"}, "freq2_input", "pp_dpm_mclk"},
	{"soc", []string{"current_socclk", "average_socclk_frequency"}, "", "pp_dpm_socclk"},
	{"fabric", []string{"current_fclk", "average_fclk_frequency"}, "", "pp_dpm_fclk"},
	{"video", []string{"current_vclk0", "current_vclk", "average_vclk_frequency"}, "", "pp_dpm_vclk"},
}

// readClocks reads the clocks. A GPU of several dies has one for each: theirs is the mean.
func (g *gpu) readClocks() {
	var list []device.Clock
	for _, c := range clocks {
		var v device.Value
		for _, name := range c.columns {
			v = v.Or(g.m.all(name).Scale(mega))
		}
		if !v.OK() && c.hwmon != "" {
			v = g.number(g.hwmon, c.hwmon, 1)
		}
		if v.OK() {
			list = append(list, device.Clock{Type: c.kind, Frequency: v, Limit: g.clockLimit[c.kind]})
		}
	}
	g.sample.Clocks = list
}

// readPower reads what the whole package draws, and its energy.
func (g *gpu) readPower() {
	p := device.Power{Scope: "gpu", Limits: g.powerLimit}
	if g.m != nil && g.m.version.format == 1 { // W; in the tables of APUs W or mW
		p.Instant, p.Average = g.m.get("curr_socket_power"), g.m.get("average_socket_power")
	}
	if !p.Draw().OK() {
		p.Instant = g.number(g.hwmon, "power1_input", micro)
		p.Average = g.number(g.hwmon, "power1_average", micro)
	}
	g.sample.Powers = nil
	if p.Draw().OK() || p.Limits != nil {
		g.sample.Powers = []device.Power{p}
	}
	g.readEnergy()
}

// readEnergy reads the energy counter, whose unit is 2^-16 J on Instinct. Radeon's is 0,
// or counts something else.
func (g *gpu) readEnergy() {
	const unit = 1 << 16
	const instinct = 9 // major number of the architecture: gfx908, gfx90a, gfx942, gfx950
	g.sample.Energy = device.Value{}
	raw, ok := g.m.raw("energy_accumulator", 0, 0)
	if !ok || raw == 0 || !g.m.version.since(4) && g.gfx/10000 != instinct {
		return
	}
	g.sample.Energy = device.Of(float64(g.energy.add(raw, g.m.columns["energy_accumulator"].kind))).Div(unit)
}

// powerLimits are hwmon's files, in µW.
var powerLimits = []struct{ file, kind string }{
	{"power1_cap", device.LimitEnforced},
	{"power1_cap_default", "default"},
	{"power1_cap_min", "min"},
	{"power1_cap_max", "max"},
}

func (g *gpu) readPowerLimits() {
	g.powerLimit = nil
	for _, l := range powerLimits {
		v := g.number(g.hwmon, l.file, micro)
		if w, ok := v.Get(); ok && (w > 0 || l.kind == "min") { // virtual functions say 0 W
			g.powerLimit = append(g.powerLimit, device.PowerLimit{Type: l.kind, Watts: v})
		}
	}
}

// readVoltages reads the rails, in mV.
func (g *gpu) readVoltages() {
	var list []device.Voltage
	add := func(rail string, v device.Value) {
		if v.OK() {
			list = append(list, device.Voltage{Rail: rail, Volts: v})
		}
	}
	core := g.m.get("voltage_gfx").Div(milli)
	if !core.OK() {
		core = g.number(g.hwmon, "in0_input", milli)
	}
	add("core", core)
	add("soc", g.m.get("voltage_soc").Div(milli))
	add("memory", g.m.get("voltage_mem").Div(milli))
	if g.m == nil || g.m.version.format != 1 {
		add("nb", g.number(g.hwmon, "in1_input", milli)) // of APUs
	}
	g.sample.Voltages = list
}

// readFans reads the fans, which all turn alike. Instinct has none.
func (g *gpu) readFans() {
	const full = 255
	f := device.Fan{RPM: g.number(g.hwmon, "fan1_input", 1), Speed: g.number(g.hwmon, "pwm1", full)}
	g.sample.Fans = nil
	if f.RPM.OK() || f.Speed.OK() {
		g.sample.Fans = []device.Fan{f}
	}
}
