//go:build linux

package nvidia

import (
	"fmt"
	"math/bits"

	"github.com/gpumeter/gpumeter/internal/device"
)

// throttleBits maps NVML's clocks event reasons to causes and buckets. Users' alerts rely
// on the buckets (docs/architecture.md).
var throttleBits = []struct {
	bit     uint64
	cause   string
	buckets device.Buckets
}{
	{0x1, "gpu_idle", 0},
	{0x2, "applications_clocks_setting", device.BucketSW},
	{0x4, "sw_power_cap", device.BucketPower | device.BucketSW},
	{0x8, "hw_slowdown", device.BucketHW},
	{0x10, "sync_boost", device.BucketSW},
	{0x20, "sw_thermal_slowdown", device.BucketThermal | device.BucketSW},
	{0x40, "hw_thermal_slowdown", device.BucketThermal | device.BucketHW},
	{0x80, "hw_power_brake_slowdown", device.BucketPower | device.BucketHW},
	{0x100, "display_clock_setting", device.BucketSW},
	{0x200, "board_limit", device.BucketHW},
	{0x400, "reliability", device.BucketHW},
}

func (g *gpu) readThrottle() {
	mask, ok := g.U64("nvmlDeviceGetCurrentClocksEventReasons")
	if !ok {
		mask, ok = g.U64("nvmlDeviceGetCurrentClocksThrottleReasons") // the name before R535
	}
	g.sample.Throttles = nil
	if ok {
		g.sample.Throttles = throttles(mask)
	}
}

// throttles returns every known cause, and each unknown bit as a cause in the hardware
// bucket, so that a new kind of slowdown does not go unnoticed.
func throttles(mask uint64) []device.Throttle {
	list := make([]device.Throttle, 0, len(throttleBits))
	for _, t := range throttleBits {
		list = append(list, device.Throttle{Cause: t.cause, Buckets: t.buckets, Active: mask&t.bit != 0})
		mask &^= t.bit
	}
	for ; mask != 0; mask &= mask - 1 {
		list = append(list, device.Throttle{
			Cause: fmt.Sprintf("bit_%d", bits.TrailingZeros64(mask)), Buckets: device.BucketHW, Active: true,
		})
	}
	return list
}

// throttleTimes are the fields that count nanoseconds of reduced clocks.
var throttleTimes = []struct {
	id     uint32
	cause  string
	detail bool
}{
	{74, "power", false},
	{75, "thermal", false},
	{76, "sync_boost", true},
	{77, "board_limit", true},
	{78, "low_utilization", true},
	{79, "reliability", true},
	{80, "app_clocks", true},
	{81, "base_clocks", true},
	{269, "sw_thermal_slowdown", true},
	{270, "hw_thermal_slowdown", true},
	{271, "hw_power_brake_slowdown", false},
}

func (g *gpu) readThrottleTimes() {
	const nano = 1e9
	ask := make([]field, len(throttleTimes))
	for i, t := range throttleTimes {
		ask[i] = field{t.id, 0}
	}
	got := g.fields(ask...)
	var list []device.ThrottleTime
	for _, t := range throttleTimes {
		if v := got[field{t.id, 0}]; v.OK() {
			list = append(list, device.ThrottleTime{Cause: t.cause, Seconds: v.Div(nano), Detail: t.detail})
		}
	}
	g.sample.ThrottleTimes = list
}
