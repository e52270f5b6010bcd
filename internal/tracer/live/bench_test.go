//go:build linux

package live

import (
	"testing"
	"time"
)

// A search in which nothing is new, on this machine's own processes.
func BenchmarkScan(b *testing.B) {
	d := newDiscovery(Options{Proc: "/proc"}, newFakeKernel())
	now := time.Now()
	d.scan(now)
	b.ReportMetric(float64(len(d.processes)), "processes")
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		d.scan(now)
	}
}
