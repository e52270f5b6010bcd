package fleet

import (
	"math"

	"github.com/gpumeter/gpumeter/internal/quantity"
)

type (
	// Seconds is device time.
	Seconds = quantity.Seconds
	// Energy is what devices drew.
	Energy = quantity.Energy
)

// Sums are the counters of one account at one moment.
type Sums struct {
	Held   Seconds
	Active Seconds
	// Unmeasured is the part of Held without activity data.
	Unmeasured Seconds
	Energy     Energy
	// Not every device reports activity and energy.
	HasActive, HasEnergy bool
}

// with returns a, overridden by the counters that b has.
func (a Sums) with(b Sums) Sums {
	if b.HasActive {
		a.Active, a.HasActive = b.Active, true
	}
	if b.HasEnergy {
		a.Energy, a.HasEnergy = b.Energy, true
	}
	return a
}

// below reports whether any counter is lower in a than in b.
func (a Sums) below(b Sums) bool {
	return a.Held < b.Held || a.HasActive && b.HasActive && a.Active < b.Active || a.HasEnergy && b.HasEnergy && a.Energy < b.Energy
}

// The highest plausible counter values, in seconds and joules.
const mostSeconds, mostJoules = 1e9, 1e13

// micro converts a counter value in seconds.
func micro(v float64) (Seconds, bool) {
	if !(v >= 0 && v <= mostSeconds) {
		return 0, false
	}
	return Seconds(math.Round(v * 1e6)), true
}

// milli converts a counter value in joules.
func milli(v float64) (Energy, bool) {
	if !(v >= 0 && v <= mostJoules) {
		return 0, false
	}
	return Energy(math.Round(v * 1e3)), true
}

// Drop adds device time that was reported more than once. device is a DeviceKey.
func (d *Day) Drop(device string, t Seconds) {
	if t == 0 {
		return
	}
	if d.Twice == nil {
		d.Twice = map[string]Seconds{}
	}
	d.Dropped += t
	d.Twice[device] += t
}
