//go:build linux

package amd

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Each bit is the cause that the kernel means, in the bucket that users' alerts rely on. An
// unknown bit must not go unnoticed.
func TestBits(t *testing.T) {
	const power, thermal, sw, hw = device.BucketPower, device.BucketThermal, device.BucketSW, device.BucketHW
	f := func(bit int, known []throttleBit, cause string, buckets device.Buckets) {
		t.Helper()
		var got []device.Throttle
		for _, c := range throttles(1<<bit, known) {
			if c.Active {
				got = append(got, c)
			}
		}
		if diff := cmp.Diff([]device.Throttle{{Cause: cause, Buckets: buckets, Active: true}}, got); diff != "" {
			t.Errorf("bit %d (-want +got):\n%s", bit, diff)
		}
	}
	for bit, cause := range map[int]string{
		0: "ppt0", 3: "ppt3", 4: "spl", 5: "fppt", 6: "sppt", 7: "sppt_apu", 16: "tdc_gfx", 17: "tdc_soc", 18: "tdc_mem",
		19: "tdc_vdd", 20: "tdc_cvip", 21: "edc_cpu", 22: "edc_gfx", 23: "apcc", 56: "ppm",
	} {
		f(bit, independentBits, cause, power|sw)
	}
	for bit, cause := range map[int]string{
		32: "temp_gpu", 33: "temp_core", 34: "temp_mem", 35: "temp_edge", 36: "temp_hotspot", 37: "temp_soc", 38: "temp_vr_gfx",
		39: "temp_vr_soc", 40: "temp_vr_mem0", 41: "temp_vr_mem1", 42: "temp_liquid0", 43: "temp_liquid1",
	} {
		f(bit, independentBits, cause, thermal|sw)
	}
	for bit, cause := range map[int]string{44: "vrhot0", 45: "vrhot1", 46: "prochot_cpu", 47: "prochot_gfx"} {
		f(bit, independentBits, cause, thermal|hw)
	}
	f(57, independentBits, "fit", hw)
	f(63, independentBits, "bit_63", hw)
	f(0, socketBits, "prochot", thermal|hw)
	f(1, socketBits, "ppt", power|sw)
	f(2, socketBits, "socket_thermal", thermal|sw)
	f(3, socketBits, "vr_thermal", thermal|sw)
	f(4, socketBits, "hbm_thermal", thermal|sw)
	f(5, socketBits, "bit_5", hw)
	if list := throttles(0, nil); list == nil || len(list) != 0 {
		t.Errorf("an empty set gives %v", list)
	}
}

// By version: GPU-specific flags before v1.3 and in v1.4 and v1.5, or none.
func TestThrottleVersions(t *testing.T) {
	f := func(table, lines string, want []device.Throttle) {
		t.Helper()
		s, err := one(t, nil, func(tr tree) { tr.table("sys/class/drm/card0/device/gpu_metrics", table, lines) })
		if diff := cmp.Diff(want, s.Throttles); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", table, err, diff)
		}
	}
	for _, table := range []string{"v1.0", "v1.1", "v1.2"} {
		f(table, "throttle_status 0", []device.Throttle{})
		f(table, "throttle_status 4", []device.Throttle{{Cause: "bit_2", Buckets: device.BucketHW, Active: true}})
	}
	for _, table := range []string{"v1.4", "v1.5"} {
		f(table, "throttle_status 18", throttles(18, socketBits))
	}
	f("v1.3", "throttle_status 2\nindep_throttle_status 0", independent())
	f("v1.3", "", nil)
	f("v1.6", "ppt_residency_acc 7", nil)
}

// RDNA3 reports hotspot throttling at all times. A thermal alert would never clear.
func TestHotspotBit(t *testing.T) {
	f := func(now, limit string, want bool) {
		t.Helper()
		files := map[string]string{}
		if limit != "" {
			files["hwmon/hwmon0/temp2_label"] = "junction\n"
			files["hwmon/hwmon0/temp2_crit"] = limit
		}
		s, err := one(t, files, func(tr tree) {
			tr.table("sys/class/drm/card0/device/gpu_metrics", "v1.3", "temperature_hotspot "+now+"\nindep_throttle_status 68719476737")
		})
		if got := s.Throttled(device.BucketThermal); got != device.Flag(want) || err != nil {
			t.Errorf("%s of %s: thermal %v, %v", now, limit, got, err)
		}
		if s.Throttled(device.BucketPower) != device.Of(1) {
			t.Error("the other bit was cleared, too")
		}
	}
	f("54", "110000\n", false)
	f("106", "110000\n", false)
	f("107", "110000\n", true)
	f("54", "", true)
}

// reading is one table in a residency test.
type reading struct {
	clock, ticks, ppt uint64 // ns; 32-bit ticks
}

// Seconds, and whether a cause is active, follow from what happened between two tables.
func TestResidency(t *testing.T) {
	const sec = 1e9
	f := func(name string, wantSeconds float64, wantActive any, readings ...reading) {
		t.Helper()
		var r residency
		for _, x := range readings {
			s := structures(t)["v1.7"]
			b := s.blob()
			s.put(t, b, "system_clock_counter", 0, 0, x.clock)
			s.put(t, b, "accumulation_counter", 0, 0, x.ticks)
			s.put(t, b, "ppt_residency_acc", 0, 0, x.ppt)
			m, err := decode(b, gpuLayouts, gpuPacked)
			if err != nil {
				t.Fatal(err)
			}
			r.update(m)
		}
		var active any
		if list := r.throttles(); list != nil {
			active = len(list) == 1 && list[0].Active
		}
		if active != wantActive {
			t.Errorf("%s: active %v, want %v", name, active, wantActive)
		}
		var seconds float64
		for _, x := range r.times() {
			v, _ := x.Seconds.Get()
			seconds += v
		}
		if d := seconds - wantSeconds; d > 1e-9 || d < -1e-9 {
			t.Errorf("%s: %v s, want %v", name, seconds, wantSeconds)
		}
	}
	f("one table", 0, nil, reading{sec, 1000, 500})
	f("half of the time", 0.5, true, reading{sec, 1000, 500}, reading{2 * sec, 2000, 1000})
	f("not since", 0.5, false, reading{sec, 1000, 500}, reading{2 * sec, 2000, 1000}, reading{3 * sec, 3000, 1000})
	f("sum", 1.5, true, reading{sec, 1000, 500}, reading{2 * sec, 2000, 1000}, reading{3 * sec, 3000, 2000})
	f("cached table", 0, nil, reading{sec, 1000, 500}, reading{2 * sec, 1000, 500})
	f("and then", 1, true, reading{sec, 1000, 500}, reading{2 * sec, 1000, 500}, reading{3 * sec, 2000, 1000})
	f("too close", 0, nil, reading{sec, 1000, 500}, reading{sec + 50e6, 1050, 550})
	f("wrap", 0.5, true, reading{sec, 1<<32 - 500, 1<<32 - 300}, reading{2 * sec, 500, 200})
	f("reset", 0, nil, reading{sec, 5000, 500}, reading{2 * sec, 1000, 700})
	f("reboot", 0, nil, reading{9 * sec, 1000, 500}, reading{sec, 2000, 700})
	f("more than all", 1, true, reading{sec, 1000, 500}, reading{2 * sec, 2000, 9000})
	f("counts every tick", 0, false, reading{sec, 1000, 1000}, reading{2 * sec, 2000, 2000})
	f("nothing yet", 0, false, reading{sec, 0, 0}, reading{2 * sec, 1000, 0})
}
