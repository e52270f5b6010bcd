package sim

import (
	"math"
	"time"
)

// period is the length of a script in seconds.
const period = 1800

// moment is the state of a GPU during one second of the script.
type moment struct {
	load
	watts, celsius float64
	clock          float64 // ratio of the highest clock; the idle clocks apply if busy is 0
	capped, slowed bool    // by the power limit; by the temperature

	before sums // sums over the earlier seconds of the script
}

// sums are integrals over time, in seconds and joules.
type sums struct{ busy, joules, idle, capped, slowed, below float64 }

// plus returns a + k b.
func (a sums) plus(k float64, b sums) sums {
	return sums{
		a.busy + k*b.busy, a.joules + k*b.joules, a.idle + k*b.idle,
		a.capped + k*b.capped, a.slowed + k*b.slowed, a.below + k*b.below,
	}
}

// perSecond returns what one second of m adds to the sums.
func (m *moment) perSecond() sums {
	flag := func(on bool) float64 {
		if on {
			return 1
		}
		return 0
	}
	return sums{
		busy: m.busy, joules: m.watts, idle: flag(m.busy == 0),
		capped: flag(m.capped), slowed: flag(m.slowed), below: flag(m.clock < 1),
	}
}

// timeline is one period of a GPU.
type timeline struct {
	moments [period]moment
	whole   sums
}

// at returns the moment at up, and the sums since boot.
//
// busy and watts are on a binary grid, so sums over whole seconds are exact and a counter
// never decreases, however long the node runs and however close two readings are.
func (t *timeline) at(up time.Duration) (*moment, sums) {
	second := int(up / time.Second)
	m := &t.moments[second%period]
	total := sums{}.plus(float64(second/period), t.whole).plus(1, m.before)
	return m, total.plus((up % time.Second).Seconds(), m.perSecond())
}

// back returns the moment n seconds before up. The script is assumed to have run before
// boot as well.
func (t *timeline) back(up time.Duration, n int) *moment {
	return &t.moments[(int(up/time.Second)%period+period-n)%period]
}

// grid rounds to a multiple of 1/1024. float64 sums 2^43 such units without loss.
func grid(v float64) float64 { return math.Round(v*1024) / 1024 }

// simulate runs script on a GPU of model m: load causes power, power causes heat, and both
// reduce the clocks. heat is that of the role.
func simulate(m *model, key uint64, heat float64, script func(second int) load) *timeline {
	const (
		lag       = 20.0 // seconds: time constant of the heat sink
		slowest   = 0.55 // ratio of the clock, under thermal slowdown
		overshoot = 10   // degrees above the limit, with cooling stifled and no slowdown
	)
	var (
		t       timeline
		dynamic = m.watts.limit - m.watts.idle
		die     sensor
		speed   = 1.0 // ratio of the clock that the temperature allows
		// Degrees per watt; 0 for a model without temperature sensors.
		cooled, stifled float64
	)
	if m.sensors != nil {
		die = m.sensors[0]
		cooled = (die.full - die.idle) / dynamic
		stifled = (m.hot + overshoot - die.idle) / dynamic
	}
	temperature := die.idle
	// The first round only brings the temperature to its value at the end of the script.
	for s := range 2 * period {
		s %= period
		l := script(s)
		if l.busy > 0 {
			l.busy = grid(min(1, l.busy+0.005*noise(hash(key, 1), s, 5)))
		}
		now := moment{load: l, clock: speed, slowed: speed < 1}

		now.watts = (m.watts.idle + dynamic*heat*l.busy*speed) * (1 + 0.01*noise(hash(key, 2), s, 2))
		if limit := m.watts.limit * (0.985 + 0.01*noise(hash(key, 3), s, 5)); now.watts > limit && dynamic > 0 {
			now.capped = true
			now.clock *= (limit - m.watts.idle) / (now.watts - m.watts.idle)
			now.watts = limit
		}
		now.watts = grid(now.watts)
		if l.busy == 0 {
			now.clock = 0
		}

		resistance := cooled + l.stifled*(stifled-cooled)
		temperature += (die.idle + (now.watts-m.watts.idle)*resistance - temperature) / lag
		now.celsius = temperature
		switch {
		case m.hot == 0:
		case temperature > m.hot-1:
			speed = max(slowest, speed-0.02)
		case temperature < m.hot-2:
			speed = min(1, speed+0.01)
		}
		t.moments[s] = now
	}
	for s := range t.moments {
		t.moments[s].before = t.whole
		t.whole = t.whole.plus(1, t.moments[s].perSecond())
	}
	return &t
}
