package profile

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Parts that do not add up to the total would make launches that nobody counted.
func TestShare(t *testing.T) {
	t.Parallel()
	f := func(total uint64, weights, want []uint64) {
		t.Helper()
		if diff := cmp.Diff(want, Share(total, weights)); diff != "" {
			t.Errorf("%d by %v (-want +got):\n%s", total, weights, diff)
		}
	}
	f(10, []uint64{1, 1, 1}, []uint64{4, 3, 3})
	f(7, []uint64{0, 0}, []uint64{7, 0})
	f(2, []uint64{1, 5, 1}, []uint64{0, 2, 0})
	f(math.MaxUint64, []uint64{1, 3}, []uint64{math.MaxUint64/4 + 1, math.MaxUint64 - math.MaxUint64/4 - 1})
	f(5, nil, []uint64{})
}

func FuzzShare(f *testing.F) {
	f.Add(uint64(100), uint64(3), uint64(5), uint64(7))
	f.Fuzz(func(t *testing.T, total, a, b, c uint64) {
		weights := []uint64{a >> 2, b >> 2, c >> 2} // whose sum fits
		var sum uint64
		for _, n := range Share(total, weights) {
			sum += n
		}
		if sum != total {
			t.Errorf("parts of %d add up to %d", total, sum)
		}
	})
}

// The estimate adds up to the busy time, does not depend on waits, and leaves processes alone whose busy time
// is unknown.
func TestEstimate(t *testing.T) {
	t.Parallel()
	kernel := func(name string) []Frame { return []Frame{{Kind: Kernel, Function: name}} }
	p := Profile{
		Processes: []Process{{PID: 1, Busy: 60 * time.Second}, {PID: 2}},
		Samples: []Sample{
			{PID: 1, Frames: kernel("large"), Calls: 10, Threads: 3000},
			{PID: 1, Frames: kernel("small"), Calls: 10, Threads: 1000},
			{PID: 1, Frames: kernel("cuGraphLaunch"), Calls: 10}, // as large as the mean
			{PID: 1, Frames: []Frame{{Kind: Wait, Function: "cuCtxSynchronize"}}, Calls: 5, Wait: time.Second},
			{PID: 2, Frames: kernel("large"), Calls: 10, Threads: 3000},
		},
	}
	p.Estimate()
	var got []time.Duration
	for _, s := range p.Samples {
		got = append(got, s.GPU)
	}
	if diff := cmp.Diff([]time.Duration{30 * time.Second, 10 * time.Second, 20 * time.Second, 0, 0}, got); diff != "" {
		t.Errorf("time on the device (-want +got):\n%s", diff)
	}
}

func TestSort(t *testing.T) {
	t.Parallel()
	a, b := []Frame{{Kind: Python, Function: "a"}}, []Frame{{Kind: Python, Function: "b"}}
	p := Profile{Samples: []Sample{{PID: 2, Frames: a, Calls: 1}, {PID: 1, Frames: b, Calls: 2}, {PID: 2, Frames: a, Calls: 3, Samples: 1, Wait: 4, GPU: 5, Threads: 6}, {PID: 1, Frames: a, Calls: 4}}}
	p.Sort()
	want := []Sample{{PID: 1, Frames: a, Calls: 4}, {PID: 1, Frames: b, Calls: 2}, {PID: 2, Frames: a, Calls: 4, Samples: 1, Wait: 4, GPU: 5, Threads: 6}}
	if diff := cmp.Diff(want, p.Samples); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}
