// Package quantity has exact amounts of device time and energy: integers, so that the parts of a bill
// add up to its total in any order.
package quantity

import (
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
