//go:build linux

package intel

import (
	"context"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// A fast read of one GPU with three clients must stay within 2 ms.
func BenchmarkFast(b *testing.B) {
	m := load(b, "node.txt")
	d := m.devices()[1]
	m.read(d, device.Static, 0)
	for b.Loop() {
		if _, err := d.Read(context.Background(), device.Fast); err != nil {
			b.Fatal(err)
		}
	}
}

// The process search on this machine, which all GPUs share.
func BenchmarkSearch(b *testing.B) {
	s := newScanner("/proc", time.Now)
	for b.Loop() {
		s.search()
	}
}
