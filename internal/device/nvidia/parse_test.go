//go:build linux

package nvidia

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

func TestDecode(t *testing.T) {
	f := func(valueType uint32, b [8]byte, want device.Value) {
		t.Helper()
		if got := decode(valueType, b); got != want {
			t.Errorf("decode(%d, %x) = %v, want %v", valueType, b, got, want)
		}
	}
	all := [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	f(0, [8]byte{0, 0, 0, 0, 0, 0, 0xf8, 0x3f}, device.Of(1.5))
	f(1, all, device.Of(math.MaxUint32))
	f(2, all, device.Of(math.MaxUint64))
	f(3, [8]byte{1}, device.Of(1))
	f(4, all, device.Of(-1))
	f(5, [8]byte{0xf8, 0xff, 0xff, 0xff}, device.Of(-8)) // a T.Limit
	f(6, all, device.Of(math.MaxUint16))
	f(untouched, all, device.Value{})
	f(7, all, device.Value{}) // a type of some future driver
}

// Users' alerts rely on the buckets.
func TestThrottleBuckets(t *testing.T) {
	const power, thermal, sw, hw = device.BucketPower, device.BucketThermal, device.BucketSW, device.BucketHW
	f := func(mask uint64, want device.Buckets) {
		t.Helper()
		s := device.Sample{Throttles: throttles(mask)}
		var got device.Buckets
		for _, b := range []device.Buckets{power, thermal, sw, hw} {
			if s.Throttled(b) == device.Of(1) {
				got |= b
			}
		}
		if got != want {
			t.Errorf("mask %#x is in buckets %04b, want %04b", mask, got, want)
		}
	}
	f(0, 0)
	f(0x1, 0)
	f(0x2, sw)
	f(0x4, power|sw)
	f(0x8, hw)
	f(0x10, sw)
	f(0x20, thermal|sw)
	f(0x40, thermal|hw)
	f(0x80, power|hw)
	f(0x100, sw)
	f(0x200, hw)
	f(0x400, hw)
	f(0x800, hw)
	f(1<<63, hw)
	f(0x5, power|sw)
	f(0x44, power|sw|thermal|hw)
}

func TestFabricHealth(t *testing.T) {
	f := func(mask uint32, want float64) {
		t.Helper()
		if got := fabricHealth(mask); got != want {
			t.Errorf("mask %#x: health %v, want %v", mask, got, want)
		}
	}
	f(0x1aa, 1) // every condition false, configuration correct
	f(0x1a9, 3) // bandwidth degraded
	f(0x19a, 2) // route unhealthy
	f(0x5aa, 2) // wrong configuration: too few NVLinks
	f(0x1a6, 3) // route recovery in progress
}

func TestParseLoaderConf(t *testing.T) {
	got := parseLoaderConf("# comment\n/opt/nvidia/lib64 # why\n\ninclude /etc/ld.so.conf.d/*.conf\nrelative/lib\n  /usr/local/lib\n")
	if diff := cmp.Diff([]string{"/opt/nvidia/lib64", "/usr/local/lib"}, got); diff != "" {
		t.Errorf("dirs (-want +got):\n%s", diff)
	}
}

func FuzzParseLoaderConf(f *testing.F) {
	f.Add("/usr/lib\n#x\n")
	f.Fuzz(func(t *testing.T, data string) {
		for _, dir := range parseLoaderConf(data) {
			if !filepath.IsAbs(dir) || !strings.Contains(data, dir) {
				t.Errorf("invented %q", dir)
			}
		}
	})
}

func FuzzThrottles(f *testing.F) {
	f.Add(uint64(0x844))
	f.Fuzz(func(t *testing.T, mask uint64) {
		active := 0
		for _, th := range throttles(mask) {
			if th.Active {
				active++
			}
		}
		if want := popcount(mask); active != want {
			t.Errorf("mask %#x: %d causes active, want %d", mask, active, want)
		}
	})
}

func popcount(x uint64) (n int) {
	for ; x != 0; x &= x - 1 {
		n++
	}
	return n
}
