//go:build linux

package ata

import (
	"slices"
	"testing"
	"unsafe"
)

// described returns sense data in descriptor format, as libata does.
func described(status, mid, high byte) []byte {
	return []byte{
		0x72, 0x01, 0x00, 0x1d, 0, 0, 0, 14,
		0x09, 12, 0, 0, 0, 0, 0, 0, 0, mid, 0, high, 0, status,
	}
}

// fixed returns the same in fixed format.
func fixed(status, mid, high byte) []byte {
	return []byte{0x70, 0, 0x01, 0, status, 0, 0, 10, 0, 0, mid, high, 0x00, 0x1d, 0, 0, 0, 0}
}

func TestParse(t *testing.T) {
	f := func(sense []byte, failing, understood bool) {
		t.Helper()
		h, err := Parse(sense)
		if h.Failing != failing || (err == nil) != understood {
			t.Errorf("%x: %+v, %v", sense, h, err)
		}
	}
	for _, format := range []func(status, mid, high byte) []byte{described, fixed} {
		f(format(0x50, 0x4f, 0xc2), false, true)
		f(format(0x50, 0xf4, 0x2c), true, true)
		f(format(0x51, 0x4f, 0xc2), false, false) // rejected: the registers are unchanged
		f(format(0x51, 0xf4, 0x2c), false, false)
		f(format(0x50, 0x4f, 0x2c), false, false)
		f(format(0x50, 0, 0), false, false) // some bridges lose the registers
		whole := format(0x50, 0xf4, 0x2c)
		for n := range min(len(whole), 14) {
			f(whole[:n], false, false)
		}
	}
	f(nil, false, false)
	f(make([]byte, 64), false, false)
	f(described(0x50, 0xf4, 0x2c)[:21], false, false)
	other := described(0x50, 0xf4, 0x2c)
	other = slices.Insert(other, 8, 0x00, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // preceded by another descriptor
	other[7] += 12
	f(other, true, true)
	other[9] = 0xff // longer than the data
	f(other, false, false)
	invalid := fixed(0x50, 0xf4, 0x2c)
	invalid[12], invalid[13] = 0x20, 0 // not an ATA disk: invalid command
	f(invalid, false, false)
}

// The ioctl number does not encode the size, so the kernel trusts the layout.
func TestRequest(t *testing.T) {
	var r request
	for _, x := range []struct {
		what      string
		got, want uintptr
	}{
		{"size", unsafe.Sizeof(r), 88},
		{"data", unsafe.Offsetof(r.data), 16},
		{"command", unsafe.Offsetof(r.command), 24},
		{"sense", unsafe.Offsetof(r.sense), 32},
		{"timeout", unsafe.Offsetof(r.timeoutMS), 40},
		{"status", unsafe.Offsetof(r.status), 64},
		{"host status", unsafe.Offsetof(r.hostStatus), 68},
		{"information", unsafe.Offsetof(r.info), 80},
	} {
		if x.got != x.want {
			t.Errorf("%s is %d, want %d", x.what, x.got, x.want)
		}
	}
}

// This is the only command ever sent: no data transfer, and none of the SMART subcommands
// that disable SMART or start tests.
func TestReadsOnly(t *testing.T) {
	want := [16]byte{0x85, 0x06, 0x20, 0, 0xda, 0, 0, 0, 0, 0, 0x4f, 0, 0xc2, 0, 0xb0, 0}
	if smartStatus != want {
		t.Errorf("%x", smartStatus)
	}
}

func TestRead(t *testing.T) {
	for _, path := range []string{"/dev/null", t.TempDir(), t.TempDir() + "/none"} {
		if h, err := Read(path); err == nil {
			t.Errorf("%s was read as a disk: %+v", path, h)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(described(0x50, 0x4f, 0xc2))
	f.Add(fixed(0x50, 0xf4, 0x2c))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := Parse(b); err != nil && h.Failing {
			t.Errorf("%+v, %v", h, err)
		}
	})
}
