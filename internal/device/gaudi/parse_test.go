//go:build linux

package gaudi

import (
	"math"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/device"
)

func TestParseAddress(t *testing.T) {
	f := func(s, want string) {
		t.Helper()
		if got := parseAddress(s); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
	f("0000:b3:00.0", "0000:b3:00.0")
	f(" 0000:B3:00.0\n", "0000:b3:00.0")
	f("00000000:33:00.0", "0000:33:00.0")
	f("0001e240:33:00.0", "1e240:33:00.0") // a virtual machine's PCI domain
	f("10000:e1:00.0", "10000:e1:00.0")
	f("33:00.0", "")
	f("N/A", "")
	f("", "")
	f("0000:b3:00:0", "")
	f("zzzz:b3:00.0", "")
}

func TestFamily(t *testing.T) {
	f := func(id, kind, want string) {
		t.Helper()
		if got := family(id, kind); got != want {
			t.Errorf("%q %q: %q, want %q", id, kind, got, want)
		}
	}
	f("0x1000", "", "gaudi")
	f("0x1020", "GAUDI2", "gaudi2")
	f("0x1060", "GAUDI3", "gaudi3")
	f("0x9999", "GAUDI2B", "gaudi2b")
	f("", "GAUDI SEC", "gaudi_sec")
	f("", "", "")
}

func TestParseLinkSpeed(t *testing.T) {
	for s, want := range map[string]device.Value{
		"2.5 GT/s PCIe": device.Of(1), "5.0 GT/s PCIe": device.Of(2), "8 GT/s": device.Of(3), "16.0 GT/s PCIe": device.Of(4),
		"32.0 GT/s PCIe": device.Of(5), "64.0 GT/s PCIe": device.Of(6), "Unknown": {}, "": {},
	} {
		if got := parseLinkSpeed(s); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	f.Add("0000:b3:00.0")
	f.Add("00000000:33:00.0")
	f.Fuzz(func(t *testing.T, s string) {
		a := parseAddress(s)
		if a != "" && (parseAddress(a) != a || !strings.HasSuffix(strings.ToLower(strings.TrimSpace(s)), a)) {
			t.Fatalf("%q: %q", s, a)
		}
	})
}

func FuzzParseNumber(f *testing.F) {
	f.Add("600000")
	f.Add("-1")
	f.Add("Inf")
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseNumber(s)
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 || err != nil && v != 0 {
			t.Fatal(v, err)
		}
	})
}

func FuzzParseStatus(f *testing.F) {
	f.Add("Operational")
	f.Add("In reset after device release")
	f.Fuzz(func(t *testing.T, s string) {
		code := parseStatus(s)
		if code == operational && !strings.EqualFold(strings.TrimSpace(s), "operational") {
			t.Fatalf("%q counts as operational", s)
		}
	})
}
