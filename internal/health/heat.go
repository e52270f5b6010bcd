package health

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// thermal and braked are the causes of slowing down that mean trouble. A power cap at full
// load is how a device works: it is none.
func thermal(d *Device) []string {
	return causes(d, func(t device.Throttle) bool { return t.Buckets&device.BucketThermal != 0 })
}

func braked(d *Device) []string {
	return causes(d, func(t device.Throttle) bool { return brakes[t.Cause] })
}

// brakes are the causes that come from outside of the board, by a wire. Limits of the
// package or its regulators are power and hardware, too, and are reached by working hard.
var brakes = map[string]bool{"hw_power_brake_slowdown": true, "psys_crit": true}

func causes(d *Device, is func(device.Throttle) bool) []string {
	var out []string
	for _, t := range d.Throttles {
		if t.Active && is(t) {
			out = append(out, t.Cause)
		}
	}
	return out
}

// A device that is slowed down for less is at the edge of its cooling under a burst.
const slowedFor = time.Minute

func throttled(t trail) []Finding {
	var out []Finding
	if since, ok := t.throughout(slowedFor, func(d *Device) bool { return len(thermal(d)) > 0 }); ok {
		out = append(out, Finding{
			Rule: "gpu.throttle.thermal", Severity: Warning, Since: since, Evidence: thermal(t.last),
			Reason: fmt.Sprintf("its clocks have been held down by heat for %s%s", span(t.now.Sub(since)), degrees(t.last)),
			Action: "Look at fans, filters, the temperature of the room and the flow of coolant, and at the neighbours of the device.",
		})
	}
	if since, ok := t.throughout(slowedFor, func(d *Device) bool { return len(braked(d)) > 0 }); ok {
		out = append(out, Finding{
			Rule: "gpu.throttle.power_brake", Severity: Warning, Since: since, Evidence: braked(t.last),
			Reason: "the machine has told the device by wire to draw less power for " + span(t.now.Sub(since)),
			Action: "Look at the power supplies of the machine and its rack.",
		})
	}
	return out
}

// hottest returns the sensor with the highest temperature.
func hottest(s *device.Sample) (device.Temperature, bool) {
	var out device.Temperature
	found := false
	best := 0.0
	for _, t := range s.Temperatures {
		if v, ok := t.Value.Get(); ok && (!found || v > best) {
			out, best, found = t, v, true
		}
	}
	return out, found
}

func degrees(d *Device) string {
	t, ok := hottest(&d.Sample)
	if !ok {
		return ""
	}
	v, _ := t.Value.Get()
	return fmt.Sprintf(", %s is at %.0f °C", t.Sensor, v)
}

// hot: a sensor at its limit to operate, for a minute. Limits are the board's own.
func hot(t trail) []Finding {
	over := func(d *Device) string {
		for _, s := range d.Temperatures {
			v, ok := s.Value.Get()
			if !ok {
				continue
			}
			for _, l := range s.Limits {
				limit, ok := l.Limit.Get()
				if !ok {
					m, has := l.Margin.Get()
					limit, ok = v+m, has
				}
				if ok && l.Event != "shutdown" && v >= limit {
					return fmt.Sprintf("%s is at %.0f °C, its limit (%s) is %.0f °C", s.Sensor, v, l.Event, limit)
				}
			}
		}
		return ""
	}
	since, ok := t.throughout(slowedFor, func(d *Device) bool { return over(d) != "" })
	return one(Finding{
		Rule: "gpu.temperature.limit", Severity: Warning, Since: since, Reason: over(t.last),
		Action: "Look at fans, filters, the temperature of the room and the flow of coolant.",
	}, ok)
}

// A ramp is a rise of rampBy degrees over rampIn, at a power that moved by less than
// rampPower of itself: more work makes a device hotter, and is no fault. A heat sink takes
// settleIn and more to follow a change of power, more slowly all the time: it is a ramp if
// the device still gets hotter by stillBy in stillIn. Below rampFrom nothing is at risk.
const (
	rampBy    = 10
	rampIn    = 5 * time.Minute
	rampPower = 0.05
	rampFrom  = 70
	settleIn  = 4 * time.Minute
	stillBy   = 2
	stillIn   = 2 * time.Minute
)

func ramp(t trail) []Finding {
	sensor, ok := hottest(&t.last.Sample)
	if !ok {
		return nil
	}
	var first, last, lately, low, high float64
	var steady, from time.Time // since when power is the same, and the sink has followed
	for _, s := range t.past {
		v, ok := sensorOf(&s.d.Sample, sensor.Sensor).Get()
		watts, has := s.d.Power().Draw().Get()
		if !ok || !has || watts <= 0 {
			continue
		}
		if steady.IsZero() || watts > low*(1+rampPower) || watts < high*(1-rampPower) {
			steady, from, low, high = s.at, time.Time{}, watts, watts
		}
		if from.IsZero() && s.at.Sub(steady) >= settleIn {
			first, from = v, s.at
		}
		if t.now.Sub(s.at) >= stillIn {
			lately = v
		}
		low, high, last = min(low, watts), max(high, watts), v
	}
	if from.IsZero() || t.now.Sub(from) < rampIn || last-first < rampBy || last < rampFrom || last-lately < stillBy {
		return nil
	}
	return []Finding{{
		Rule: "gpu.temperature.ramp", Severity: Warning, Since: from,
		Reason: fmt.Sprintf("%s got %.0f °C hotter in %s, to %.0f °C, at the same %.0f W", sensor.Sensor, last-first, span(t.now.Sub(from)), last, (low+high)/2),
		Action: "Its cooling is failing: look at fans, pumps and thermal contact before it slows down.",
	}}
}

func sensorOf(s *device.Sample, name string) device.Value {
	for _, t := range s.Temperatures {
		if t.Sensor == name {
			return t.Value
		}
	}
	return device.Value{}
}

// Clocks are stuck if they are below half of what the device can for as long as a device
// is fully busy, it draws less than half of its limit, and it names no cause that would
// explain that. Memory-bound work draws little and has high clocks; a power cap has a cause.
const (
	stuckFor   = 2 * time.Minute
	stuckClock = 0.5
	stuckPower = 0.5
	busy       = 0.9
)

func clocksLow(t trail) []Finding {
	stuck := func(d *Device) bool {
		util, ok := d.Utilization.Compute.Get()
		if !ok || util < busy {
			return false
		}
		c := d.ComputeClock()
		ratio, ok := c.Frequency.Ratio(c.Limit).Get()
		if !ok || ratio >= stuckClock || len(causes(d, func(t device.Throttle) bool { return t.Buckets != 0 })) > 0 {
			return false
		}
		p := d.Power()
		drawn, ok := p.Draw().Ratio(p.Enforced()).Get()
		return !ok || drawn < stuckPower
	}
	since, ok := t.throughout(stuckFor, stuck)
	if !ok {
		return nil
	}
	c := t.last.ComputeClock()
	now, _ := c.Frequency.Get()
	limit, _ := c.Limit.Get()
	return []Finding{{
		Rule: "gpu.clock.low", Severity: Warning, Since: since,
		Reason: fmt.Sprintf("it is fully busy at %.0f of %.0f MHz for %s and says no reason", now/1e6, limit/1e6, span(t.now.Sub(since))),
		Action: "Look whether somebody locked its clocks; if not, reset the device, and then the machine.",
	}}
}
