package fleet

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Seconds is device time in microseconds: 10,000 GPUs accumulate 2.6e16 a month.
type Seconds int64

// Hours returns device hours.
func (s Seconds) Hours() float64 { return float64(s) / 3600e6 }

// Float returns device seconds.
func (s Seconds) Float() float64 { return float64(s) / 1e6 }

// Duration returns the device time as wall time of one device.
func (s Seconds) Duration() time.Duration { return time.Duration(s) * time.Microsecond }

// MarshalJSON encodes seconds with all six decimals, which is exact.
func (s Seconds) MarshalJSON() ([]byte, error) { return []byte(Decimal(int64(s), 6)), nil }

// Energy is in millijoules.
type Energy int64

// KWh returns kilowatt-hours.
func (e Energy) KWh() float64 { return float64(e) / 3.6e9 }

// Joules returns joules.
func (e Energy) Joules() float64 { return float64(e) / 1e3 }

// MarshalJSON encodes joules with all three decimals, which is exact.
func (e Energy) MarshalJSON() ([]byte, error) { return []byte(Decimal(int64(e), 3)), nil }

// Decimal formats v/10^n with n decimals.
func Decimal(v int64, n int) string {
	if n == 0 {
		return strconv.FormatInt(v, 10)
	}
	sign := ""
	if v < 0 {
		sign, v = "-", -v
	}
	s := strconv.FormatInt(v, 10)
	if len(s) <= n {
		s = strings.Repeat("0", n+1-len(s)) + s
	}
	return sign + s[:len(s)-n] + "." + s[len(s)-n:]
}

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
