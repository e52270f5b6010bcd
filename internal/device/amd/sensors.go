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

// sensors are the temperature columns of the table, in degrees Celsius. A column with
// several values is numbered.
var sensors = []struct{ column, sensor string }{
	{"temperature_edge", "edge"},
	{"temperature_hotspot", "hotspot"},
	{"temperature_mem", "memory"},
	{"temperature_vrgfx", "vr_gfx"},
	{"temperature_vrsoc", "vr_soc"},
	{"temperature_vrmem", "vr_mem"},
	{"temperature_hbm", "hbm"},
	{"temperature_mid", "mid"},
	{"temperature_aid", "aid"},
	{"temperature_xcd", "xcd"},
}

// hwmonSensors maps hwmon labels to sensor names.
var hwmonSensors = map[string]string{"edge": "edge", "junction": "hotspot", "mem": "memory"}

// hwmonTemperatures is the highest number of sensors that amdgpu provides in hwmon.
const hwmonTemperatures = 3

// readTemperatures reads the sensors in the table, and those in hwmon that the table does
// not have. A sensor that a board lacks reads 0; every board has the edge sensor.
func (g *gpu) readTemperatures() {
	var list []device.Temperature
	seen := map[string]bool{}
	add := func(sensor string, v device.Value) {
		if v.OK() && (v != device.Of(0) || sensor == "edge") && !seen[sensor] {
			seen[sensor] = true
			list = append(list, device.Temperature{Sensor: sensor, Value: v, Limits: g.limits[sensor]})
		}
	}
	if g.m != nil && g.m.version.format == 1 { // the unit differs in the other formats
		for _, s := range sensors {
			n := g.m.count(s.column)
			for i := range n {
				sensor := s.sensor
				if n > 1 {
					sensor += strconv.Itoa(i)
				}
				add(sensor, g.m.at(s.column, 0, i))
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

// hwmonSensor is a sensor in hwmon, by number.
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
			if c, ok := v.Get(); ok && c > 0 { // the driver reports a missing limit as absolute zero
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

// parseLevels returns the highest level in lines such as "1: 1500Mhz *", in hertz.
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

// clocks are the clock domains: the columns in the tables (MHz), newest name first, the
// hwmon file (Hz), and the file with the levels.
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

// readClocks reads the clocks. A GPU with several dies has one clock per die; the mean is
// reported.
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

// readPower reads the power draw of the whole package, and its energy. The second die of a
// package reports 0, whatever it does.
func (g *gpu) readPower() {
	p := device.Power{Scope: "gpu", Limits: g.powerLimit}
	measured := func(v device.Value) device.Value { return v }
	if g.die {
		p.Scope, measured = "module", positive
	}
	if g.m != nil && g.m.version.format == 1 { // W; APU tables use W or mW
		p.Instant, p.Average = measured(g.m.get("curr_socket_power")), measured(g.m.get("average_socket_power"))
	}
	if !p.Draw().OK() {
		p.Instant = measured(g.number(g.hwmon, "power1_input", micro))
		p.Average = measured(g.number(g.hwmon, "power1_average", micro))
	}
	g.sample.Powers = nil
	if p.Draw().OK() || p.Limits != nil {
		g.sample.Powers = []device.Power{p}
	}
	g.readEnergy()
}

// positive returns v, or absent if there is nothing to measure.
func positive(v device.Value) device.Value {
	if f, _ := v.Get(); f > 0 {
		return v
	}
	return device.Value{}
}

// readEnergy reads the energy counter, whose unit is 2^-16 J on Instinct. On Radeon the
// counter is 0 or counts something else.
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

// powerLimits are the hwmon files, in µW.
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
		if w, ok := v.Get(); ok && (w > 0 || l.kind == "min") { // virtual functions report 0 W
			g.powerLimit = append(g.powerLimit, device.PowerLimit{Type: l.kind, Watts: v})
		}
	}
}

// readVoltages reads the voltage rails, in mV. A rail without a sensor reads 0.
func (g *gpu) readVoltages() {
	var list []device.Voltage
	add := func(rail string, v device.Value) {
		if v = positive(v); v.OK() {
			list = append(list, device.Voltage{Rail: rail, Volts: v})
		}
	}
	core := positive(g.m.get("voltage_gfx").Div(milli))
	if !core.OK() {
		core = g.number(g.hwmon, "in0_input", milli)
	}
	add("core", core)
	add("soc", g.m.get("voltage_soc").Div(milli))
	add("memory", g.m.get("voltage_mem").Div(milli))
	if g.m == nil || g.m.version.format != 1 {
		add("nb", g.number(g.hwmon, "in1_input", milli)) // APUs only
	}
	g.sample.Voltages = list
}

// readFans reads the fans, which all run at the same speed. Instinct has none.
func (g *gpu) readFans() {
	const full = 255
	f := device.Fan{RPM: g.number(g.hwmon, "fan1_input", 1), Speed: g.number(g.hwmon, "pwm1", full)}
	g.sample.Fans = nil
	if f.RPM.OK() || f.Speed.OK() {
		g.sample.Fans = []device.Fan{f}
	}
}
