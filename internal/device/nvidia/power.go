//go:build linux

package nvidia

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
)

const milli = 1000

// Field ids of power and temperature readings.
const (
	fiMemoryTemp   = 82
	fiPowerAverage = 185
	fiPowerInstant = 186
	fiShutdownTLim = 193
	fiSlowdownTLim = 194
	fiGPUMaxTLim   = 196
)

// powerScopes are the scope ids of the power fields. Only boards with a host CPU or a
// separate memory meter report more than the first.
var powerScopes = [3]string{"gpu", "module", "memory"}

// readStaticLimits reads the limits of the hardware itself.
func (g *gpu) readStaticLimits() {
	for i := range g.clockLimits {
		g.clockLimits[i] = g.U32Of("nvmlDeviceGetMaxClockInfo", uint32(i))
	}
	g.sample.PCIe.GenerationMax = g.U32("nvmlDeviceGetMaxPcieLinkGeneration")
	g.sample.PCIe.WidthMax = g.U32("nvmlDeviceGetMaxPcieLinkWidth")
}

// readLimits reads the power limits, which an administrator may change.
func (g *gpu) readLimits() {
	var least, most uint32
	list := []device.PowerLimit{
		{Type: device.LimitEnforced, Watts: g.U32("nvmlDeviceGetEnforcedPowerLimit").Div(milli)},
		{Type: "requested", Watts: g.U32("nvmlDeviceGetPowerManagementLimit").Div(milli)},
		{Type: "default", Watts: g.U32("nvmlDeviceGetPowerManagementDefaultLimit").Div(milli)},
	}
	if g.Do("nvmlDeviceGetPowerManagementLimitConstraints", 0, g.Handle, uintptr(unsafe.Pointer(&least)), uintptr(unsafe.Pointer(&most))) {
		list = append(list,
			device.PowerLimit{Type: "min", Watts: device.Of(float64(least) / milli)},
			device.PowerLimit{Type: "max", Watts: device.Of(float64(most) / milli)})
	}
	g.powerLimits = list
}

func (g *gpu) readPower() {
	ask := make([]field, 0, 2*len(powerScopes))
	for scope := range uint32(len(powerScopes)) {
		ask = append(ask, field{fiPowerInstant, scope}, field{fiPowerAverage, scope})
	}
	got := g.fields(ask...)
	var list []device.Power
	for i, name := range powerScopes {
		p := device.Power{
			Scope:   name,
			Instant: got[field{fiPowerInstant, uint32(i)}].Div(milli),
			Average: got[field{fiPowerAverage, uint32(i)}].Div(milli),
		}
		if i == 0 {
			if !p.Draw().OK() {
				g.oldPower(&p)
			}
			p.Limits = g.powerLimits
		}
		if p.Draw().OK() || len(p.Limits) > 0 {
			list = append(list, p)
		}
	}
	g.sample.Powers = list
}

// oldPower reads power on drivers without the power fields. The result is the current power
// up to GA100, and the one-second average on other Ampere and later GPUs.
func (g *gpu) oldPower(p *device.Power) {
	const ampere = 7
	w := g.U32("nvmlDeviceGetPowerUsage").Div(milli)
	ga100 := strings.Contains(g.id.Model, "A100") || strings.Contains(g.id.Model, "A30") || strings.Contains(g.id.Model, "A800")
	if g.arch < ampere || ga100 {
		p.Instant = w
	} else {
		p.Average = w
	}
}

func (g *gpu) readEnergy() {
	g.sample.Energy = device.Value{}
	if mJ, ok := g.U64("nvmlDeviceGetTotalEnergyConsumption"); ok {
		g.sample.Energy = device.Of(float64(mJ) / milli)
	}
}

func (g *gpu) readTemperature() {
	edge := g.U32Of("nvmlDeviceGetTemperature", 0)
	list := []device.Temperature{{Sensor: "edge", Value: edge, Limits: withMargins(g.edgeLimits, edge)}}
	// Boards without a memory sensor may answer 0.
	memory := g.fieldOf(fiMemoryTemp, 0)
	if v, _ := memory.Get(); v == 0 {
		memory = device.Value{}
	}
	if memory.OK() || len(g.memoryLimits) > 0 {
		list = append(list, device.Temperature{Sensor: "memory", Value: memory, Limits: withMargins(g.memoryLimits, memory)})
	}
	g.sample.Temperatures = list
}

// withMargins returns limits with the missing margins computed from the current
// temperature.
func withMargins(limits []device.TemperatureCap, now device.Value) []device.TemperatureCap {
	list := slices.Clone(limits)
	for i, c := range list {
		limit, ok1 := c.Limit.Get()
		t, ok2 := now.Get()
		if !c.Margin.OK() && ok1 && ok2 {
			list[i].Margin = device.Of(limit - t)
		}
	}
	return list
}

// readThermalMargins reads how hot the GPU may get: absolute limits, which NVIDIA no longer
// guarantees from Ada on, and on newer drivers the degrees left until the end of the
// operating range. Other events are offsets to that point: shutdown at -8 is 8 degrees
// further.
func (g *gpu) readThermalMargins() {
	events := []struct {
		name      string
		threshold uint32 // NVML's nvmlTemperatureThresholds_t
		offset    uint32 // field id
	}{{"operating", 3, fiGPUMaxTLim}, {"slowdown", 1, fiSlowdownTLim}, {"shutdown", 0, fiShutdownTLim}}

	const symThreshold = "nvmlDeviceGetTemperatureThreshold"
	m := margin{version: version(unsafe.Sizeof(margin{}), 1)}
	var offsets map[field]device.Value
	if g.Do("nvmlDeviceGetMarginTemperature", 0, g.Handle, uintptr(unsafe.Pointer(&m))) {
		offsets = g.fields(field{fiShutdownTLim, 0}, field{fiSlowdownTLim, 0}, field{fiGPUMaxTLim, 0})
	}
	g.edgeLimits = nil
	for _, e := range events {
		c := device.TemperatureCap{Event: e.name, Limit: g.U32Of(symThreshold, e.threshold)}
		if off, ok := offsets[field{e.offset, 0}].Get(); ok {
			c.Margin = device.Of(float64(m.celsius) - off)
		}
		if c.Limit.OK() || c.Margin.OK() {
			g.edgeLimits = append(g.edgeLimits, c)
		}
	}
	g.memoryLimits = nil
	const memoryMax = 2
	if v := g.U32Of(symThreshold, memoryMax); v.OK() {
		g.memoryLimits = []device.TemperatureCap{{Event: "operating", Limit: v}}
	}
}

// maxFans exceeds the number of fans on any board.
const maxFans = 16

func (g *gpu) readFans() {
	n, _ := g.U32("nvmlDeviceGetNumFans").Get()
	g.sample.Fans = nil
	for i := range min(uint32(n), maxFans) {
		rpm := fanSpeedRPM{version: version(unsafe.Sizeof(fanSpeedRPM{}), 1), fan: i}
		f := device.Fan{Index: int(i), Speed: g.U32Of("nvmlDeviceGetFanSpeed_v2", i).Div(percent)}
		if g.Do("nvmlDeviceGetFanSpeedRPM", uint64(i), g.Handle, uintptr(unsafe.Pointer(&rpm))) {
			f.RPM = device.Of(float64(rpm.rpm))
		}
		if f.Speed.OK() || f.RPM.OK() {
			g.sample.Fans = append(g.sample.Fans, f)
		}
	}
}
