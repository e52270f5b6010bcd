//go:build linux

package nvme

import (
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	page := make([]byte, size)
	page[0], page[1], page[2], page[3], page[4], page[5], page[160] = SpareLow|ReadOnly, 0x3a, 0x01, 7, 10, 103, 5
	got, err := Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	want := Health{Warning: SpareLow | ReadOnly, Celsius: 41, Spare: 7, SpareThreshold: 10, Used: 103, MediaErrors: 5}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := Parse(page[:511]); err == nil {
		t.Error("a short page was accepted")
	}
	if _, err := Parse(make([]byte, size)); err == nil {
		t.Error("a page of zeros was accepted as healthy")
	}
}

// The ioctl number encodes the size: the kernel rejects another one.
func TestCommand(t *testing.T) {
	if n := unsafe.Sizeof(command{}); adminCommand>>16&0x3fff != n {
		t.Errorf("command size %d", n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(make([]byte, size))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := Parse(b); err == nil && (h.Spare < 0 || h.Used < 0 || h.Celsius < -273) {
			t.Errorf("%+v", h)
		}
	})
}
