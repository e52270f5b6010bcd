//go:build linux

package tenstorrent

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

func TestParseLinkSpeed(t *testing.T) {
	f := func(s string, want device.Value) {
		t.Helper()
		if got := parseLinkSpeed(s); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
	f("2.5 GT/s PCIe", device.Of(1))
	f("5.0 GT/s PCIe", device.Of(2))
	f("5 GT/s", device.Of(2)) // kernels before 5.7
	f("8.0 GT/s PCIe", device.Of(3))
	f("16.0 GT/s PCIe", device.Of(4))
	f("32.0 GT/s PCIe", device.Of(5))
	f("64.0 GT/s PCIe", device.Of(6))
	f("Unknown", device.Value{})
	f("Unknown speed", device.Value{})
	f("", device.Value{})
}

func FuzzParsePIDs(f *testing.F) {
	f.Add("1\n2\n2\n0\n")
	f.Add("x")
	f.Add(strings.Repeat("7 ", 5000))
	f.Fuzz(func(t *testing.T, s string) {
		pids, err := parsePIDs(s)
		if err != nil && pids != nil || len(pids) > maxPIDs || slices.Contains(pids, 0) {
			t.Fatal(pids, err)
		}
		for i := 1; i < len(pids); i++ {
			if pids[i-1] >= pids[i] {
				t.Fatal("not sorted or not unique:", pids)
			}
		}
	})
}

func FuzzParseNumber(f *testing.F) {
	f.Add("43874")
	f.Add("-1500")
	f.Add("NaN")
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseNumber(s)
		if math.IsNaN(v) || math.IsInf(v, 0) || err != nil && v != 0 {
			t.Fatal(v, err)
		}
	})
}

func FuzzParseUevent(f *testing.F) {
	f.Add("DRIVER=tenstorrent\nPCI_SLOT_NAME=0000:04:00.0\n")
	f.Fuzz(func(t *testing.T, s string) {
		for k, v := range parseUevent(s) {
			if !strings.Contains(s, k+"="+v) {
				t.Errorf("invented %q=%q", k, v)
			}
		}
	})
}

func TestParseUevent(t *testing.T) {
	want := map[string]string{"DRIVER": "tenstorrent", "PCI_SLOT_NAME": "0000:04:00.0"}
	if diff := cmp.Diff(want, parseUevent("DRIVER=tenstorrent\nPCI_SLOT_NAME=0000:04:00.0\nnothing")); diff != "" {
		t.Error(diff)
	}
}
