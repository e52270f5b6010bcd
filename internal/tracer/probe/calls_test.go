package probe

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

var callsMade = flag.Int("calls", 0, "calls of TestCountsAreExact in each mode, a multiple of 8; 0: fewer where they take long")

// Defects: lost updates of concurrent threads, and returns without an entry. One mode counts
// ten million; the race detector does not see the kernel.
func TestCountsAreExact(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel"}, func(t *testing.T, m *machine) {
		n := 40000
		switch {
		case *callsMade > 0:
			n = *callsMade
		case m.p.Mode() == ModeSession && !testing.Short() && !raced:
			n = 10_000_000
		}
		p := m.run("count", strconv.Itoa(n))
		want := map[string]uint64{"cuLaunchKernel @0": uint64(n), "cuDevicePrimaryCtxRetain @0": 1}
		if diff := cmp.Diff(want, calls(p)); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		var time float64
		for _, op := range p.Ops {
			var sum uint64
			for _, b := range op.Time.Buckets {
				sum += b
			}
			if sum != op.Time.Count {
				t.Errorf("%s has %d calls in its buckets, %d in all", op.Op, sum, op.Time.Count)
			}
			if op.Op == "cuLaunchKernel" {
				time = op.Time.Sum
				if low, high := bounds(op.Time); op.Time.Sum < low || op.Time.Sum > high {
					t.Errorf("%s took %v s, its buckets say %v to %v", op.Op, op.Time.Sum, low, high)
				}
			}
		}
		want1 := []tracer.Kernel{{Name: tracer.KernelUnknown, Count: uint64(n)}}
		for i := range p.Kernels {
			if math.Abs(p.Kernels[i].Time.Seconds()-time) > 1e-6 {
				t.Errorf("the kernel took %v, its launches %v s", p.Kernels[i].Time, time)
			}
			p.Kernels[i].Time = 0
		}
		if diff := cmp.Diff(want1, p.Kernels); diff != "" {
			t.Errorf("kernels (-want +got):\n%s", diff)
		}
		if p.Host.Threads != 8 {
			t.Errorf("%d threads have launched, want 8", p.Host.Threads)
		}
		if l := m.losses(); l.Unnamed != uint64(n) {
			t.Errorf("%d launches without a name, want %d", l.Unnamed, n)
		}
		m.lossless()
	})
}

// bounds returns the minimum and maximum sum of a histogram.
func bounds(h tracer.Histogram) (low, high float64) {
	for i, n := range h.Buckets {
		low += float64(n) * math.Exp2(float64(i+h.Offset)/2)
		high += float64(n) * math.Exp2(float64(i+1+h.Offset)/2)
	}
	return low * (1 - 1e-6), high * (1 + 1e-6)
}

// Golden test of the position of each byte count: a wrong argument yields another number. In
// mode perf a few suffice, because its programs are those of multi.
func TestCopies(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuMemcpyDtoH_", "cuMemcpy3D_", "cuMemcpyBatch", "cuMemsetD2D16_"}, func(t *testing.T, m *machine) {
		got := map[string]uint64{}
		for _, op := range m.run("copies").Ops {
			if op.Class == tracer.Copy || op.Class == tracer.Set {
				got[strings.TrimSpace(op.Op+" "+op.Kind)] = op.Bytes
			}
		}
		want := map[string]uint64{
			"cuMemcpyHtoD htod":          101,
			"cuMemcpyDtoH dtoh":          102,
			"cuMemcpyDtoD dtod":          103,
			"cuMemcpyHtoDAsync htod":     104,
			"cuMemcpyDtoHAsync dtoh":     105,
			"cuMemcpyDtoDAsync dtod":     106,
			"cuMemcpy default":           5_000_000_000,
			"cuMemcpyAsync default":      108,
			"cuMemcpyPeer peer":          109,
			"cuMemcpyPeerAsync peer":     110,
			"cuMemcpy2D htod":            11 * 13,
			"cuMemcpy2DAsync htoh":       11 * 13,
			"cuMemcpy3D dtoh":            3 * 5 * 7,
			"cuMemcpy3DAsync dtod":       3 * 5 * 7,
			"cuMemcpy3DAsync default":    3 * 5 * 7,
			"cuMemcpy3DPeer peer":        3 * 5 * 7,
			"cuMemcpy3DPeerAsync peer":   3 * 5 * 7,
			"cuMemcpyBatchAsync default": 1_020_300,
			"cuMemsetD8":                 201,
			"cuMemsetD16":                2 * 202,
			"cuMemsetD32":                4 * 203,
			"cuMemsetD8Async":            204,
			"cuMemsetD16Async":           2 * 205,
			"cuMemsetD32Async":           4 * 206,
			"cuMemsetD2D8":               210,
			"cuMemsetD2D16":              2 * 220,
			"cuMemsetD2D32":              4 * 230,
			"cuMemsetD2D8Async":          240,
			"cuMemsetD2D16Async":         2 * 250,
			"cuMemsetD2D32Async":         4 * 260,
		}
		maps.DeleteFunc(want, func(name string, _ uint64) bool {
			op, _, _ := strings.Cut(name, " ")
			return !m.ops[op]
		})
		if diff := cmp.Diff(want, got); diff != "" || len(want) < 4 {
			t.Errorf("bytes (-want +got):\n%s", diff)
		}
		m.lossless()
	})
}

// Defects: counting a failed allocation or a failed free, and adding host memory to device
// memory would change the balance.
func TestMemory(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, nil, func(t *testing.T, m *machine) {
		p := m.run("memory")
		for i := range p.Devices {
			if d := &p.Devices[i]; d.Memory.Oldest <= 0 || d.Memory.Oldest > time.Minute {
				t.Errorf("the oldest allocation of device %d is %v old", d.Ordinal, d.Memory.Oldest)
			} else {
				d.Memory.Oldest = 0
			}
		}
		want := []tracer.Device{
			// What was freed into the pool is still in it.
			{Ordinal: 0, Memory: tracer.Memory{Reserved: 512*3 + 20000 + 300000, Peak: 1000 + 512*3 + 20000 + 300000, Allocations: 4, Frees: 2}},
			{Ordinal: 1, Memory: tracer.Memory{Reserved: 2 << 20, Peak: 6 << 20, Allocations: 2, Frees: 1}},
		}
		if diff := cmp.Diff(want, p.Devices); diff != "" {
			t.Errorf("devices (-want +got):\n%s", diff)
		}
		bytes := map[string]uint64{}
		for _, op := range p.Ops {
			bytes[op.Op] += op.Bytes
		}
		wantBytes := map[string]uint64{
			"cuDevicePrimaryCtxRetain": 0,
			"cuMemAlloc":               1000,
			"cuMemAllocPitch":          512 * 3,
			"cuMemAllocAsync":          20000,
			"cuMemAllocFromPoolAsync":  300000,
			"cuMemAllocManaged":        1 << 20,
			"cuMemHostAlloc":           1 << 21,
			"cuMemAllocHost":           1 << 22,
			"cuMemCreate":              14 << 20,
			"cuMemFree":                1000 + 1<<20,
			"cuMemFreeAsync":           300000,
			"cuMemFreeHost":            0,
			"cuMemRelease":             4 << 20,
		}
		if diff := cmp.Diff(wantBytes, bytes); diff != "" {
			t.Errorf("bytes (-want +got):\n%s", diff)
		}
		m.lossless()
	})
}

// Golden test of launch arguments, on the stack and in a struct, and of names.
func TestNames(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunch", "cuLibrary", "cuModule", "cuKernel", "cuFunc"}, func(t *testing.T, m *machine) {
		p := m.run("names")
		got := map[string]tracer.Kernel{}
		for _, k := range p.Kernels {
			k.Time = 0
			got[k.Symbol] = k
		}
		long := strings.Repeat("x", 255)
		want := map[string]tracer.Kernel{
			"_Z6matmulPfS_": {Symbol: "_Z6matmulPfS_", Count: 3},
			long:            {Symbol: long, Count: 2, Grid: [3]uint32{31, 32, 33}, Block: [3]uint32{34, 35, 36}, Shared: 37},
			"asked_for":     {Symbol: "asked_for", Count: 1, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}},
			"":              {Name: tracer.KernelUnknown, Count: 2},
		}
		// Either of the two handles of matmul may be last.
		k := got["_Z6matmulPfS_"]
		if k.Grid != [3]uint32{21, 22, 23} && k.Grid != [3]uint32{1, 2, 3} {
			t.Errorf("matmul has the grid %v", k.Grid)
		}
		k.Grid, k.Block, k.Shared = [3]uint32{}, [3]uint32{}, 0
		got["_Z6matmulPfS_"] = k
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("kernels (-want +got):\n%s", diff)
		}
		dims := map[string]bool{}
		check(t, each(m.p.maps.Kernels, func(_ kernelKernelKey, v *kernelKernelVal) { dims[fmt.Sprint(v.Dims)] = true }))
		wantDims := map[string]bool{"[1 2 3 4 5 6 4096]": true, "[21 22 23 24 25 26 27]": true, "[31 32 33 34 35 36 37]": true, "[1 1 1 32 1 1 0]": true}
		if diff := cmp.Diff(wantDims, dims); diff != "" {
			t.Errorf("dimensions (-want +got):\n%s", diff)
		}
		var streams []uint64
		check(t, each(m.p.maps.Streams, func(k kernelStreamKey, _ *kernelStreamVal) { streams = append(streams, k.Stream) }))
		if diff := cmp.Diff(map[uint64]bool{0: true, 0x5d: true, 0x5e: true}, set(streams)); diff != "" {
			t.Errorf("streams (-want +got):\n%s", diff)
		}
		if l := m.losses(); l.Unnamed != 2 {
			t.Errorf("%d launches without a name, want 2", l.Unnamed)
		}
		m.lossless()
	})
}

func set(all []uint64) map[uint64]bool {
	out := map[uint64]bool{}
	for _, n := range all {
		out[n] = true
	}
	return out
}

// Defect: counting a launch on another thread's device, or on that of a popped context.
func TestDevices(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, nil, func(t *testing.T, m *machine) {
		p := m.run("devices")
		got := map[int]uint64{}
		for _, op := range p.Ops {
			if op.Op == "cuLaunchKernel" {
				got[op.Device] += op.Time.Count
			}
		}
		if diff := cmp.Diff(map[int]uint64{-1: 2, 0: 3, 1: 2, 2: 1, 3: 1, 4: 1}, got); diff != "" {
			t.Errorf("launches by device (-want +got):\n%s", diff)
		}
		uuids := map[int]string{}
		for _, d := range p.Devices {
			uuids[d.Ordinal] = d.UUID
		}
		want := map[int]string{
			-1: "",
			0:  "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
			1:  "MIG-11121314-1516-1718-191a-1b1c1d1e1f20",
			2:  "GPU-20212223-2425-2627-2829-2a2b2c2d2e2f",
			3:  "", 4: "",
		}
		if diff := cmp.Diff(want, uuids); diff != "" {
			t.Errorf("uuids (-want +got):\n%s", diff)
		}
		m.lossless()
	})
}
