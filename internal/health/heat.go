package health

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// thermal and braked return the throttle causes that indicate a problem. A power cap at
// full load is normal operation and not among them.
func thermal(d *Device) []string {
	return causes(d, func(t device.Throttle) bool { return t.Buckets&device.BucketThermal != 0 })
}

func braked(d *Device) []string {
	return causes(d, func(t device.Throttle) bool { return brakes[t.Cause] })
}

// brakes are the causes signaled from outside the board over a wire. Limits of the package
// or its regulators are also in the power and hardware buckets, but are reached by normal
// load.
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

// Shorter throttling is a burst at the edge of the cooling capacity.
const slowedFor = time.Minute

func throttled(t trail) []Finding {
	var out []Finding
	if since, ok := t.throughout(slowedFor, func(d *Device) bool { return len(thermal(d)) > 0 }); ok {
		out = append(out, Finding{
			Rule: "gpu.throttle.thermal", Severity: Warning, Since: since, Evidence: thermal(t.last),
			Reason: fmt.Sprintf("thermal throttling for %s%s", span(t.now.Sub(since)), degrees(t.last)),
			Action: "Check fans, filters, room temperature and coolant flow, and the neighboring devices.",
		})
	}
	if since, ok := t.throughout(slowedFor, func(d *Device) bool { return len(braked(d)) > 0 }); ok {
		out = append(out, Finding{
			Rule: "gpu.throttle.power_brake", Severity: Warning, Since: since, Evidence: braked(t.last),
			Reason: "external power brake asserted for " + span(t.now.Sub(since)),
			Action: "Check the power supplies of the machine and the rack.",
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

// hot reports a sensor at its operating limit for a minute. The limits are the board's own.
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
		Action: "Check fans, filters, room temperature and coolant flow.",
	}, ok)
}

// A ramp is a rise of rampBy degrees over rampIn while power moved by less than rampPower of
// itself: more load makes a device hotter and is not a fault. A heat sink needs settleIn or
// longer to follow a change of power, ever more slowly, so the device must also still be
// getting hotter by stillBy in stillIn. Below rampFrom nothing is at risk.
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
	var steady, from time.Time // since when power is steady, and since when the heat sink has settled
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
		Reason: fmt.Sprintf("%s rose by %.0f °C in %s to %.0f °C at a constant %.0f W", sensor.Sensor, last-first, span(t.now.Sub(from)), last, (low+high)/2),
		Action: "Cooling is failing: check fans, pumps and thermal contact before the device throttles.",
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

// Clocks are stuck if they stay below half of their maximum while the device is fully busy,
// draws less than half of its power limit, and reports no throttle cause. Memory-bound work
// draws little power but keeps high clocks; a power cap is a throttle cause.
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
		Reason: fmt.Sprintf("fully busy at %.0f of %.0f MHz for %s without a throttle reason", now/1e6, limit/1e6, span(t.now.Sub(since))),
		Action: "Check whether the clocks are locked; if not, reset the device, then reboot the machine.",
	}}
}
