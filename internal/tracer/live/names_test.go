//go:build linux

package live

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Names must be readable and distinguish kernels.
func TestKernelName(t *testing.T) {
	f := func(symbol, want string) {
		t.Helper()
		if got := kernelName(symbol); got != want {
			t.Errorf("%s\n is %s\nwant %s", symbol, got, want)
		}
	}
	f("nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT")
	f("triton_poi_fused_add_0", "triton_poi_fused_add_0")
	f("_Z5saxpyifPfS_", "saxpy")
	f("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
		"at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >")
	f("_ZN7cutlass7Kernel2I68cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8EEvNT_6ParamsE",
		"cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>")
	f("_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastINS0_15CUDAFunctor_addIfEEEEvRNS_18TensorIteratorBaseERKT_EUlibE_EEviT1_",
		"at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<CUDAFunctor_add<float> >()::{lambda(int, bool)#1}>")
	// Truncated by the kernel program at 255 bytes.
	long := "_ZN2at6native12_GLOBAL__N_127unrolled_elementwise_kernelIZZZNS0_21clamp_min_scalar_implE" + strings.Repeat("N", 200)
	f(long[:255], "at::native::(anonymous namespace)::unrolled_elementwise_kernel<...>")
	f("_ZZZ", "_ZZZ")
	f("_Z", "_Z")
	f("a\x00b\x1b[31m\xff", "a?b?[31m?")
	f(strings.Repeat("x", 300), strings.Repeat("x", maxName-3)+"...")
}

func TestShorten(t *testing.T) {
	const name = "a::f<b::g<c::h<int>, d::i>, (e::j)3>::operator()"
	f := func(depth int, want string) {
		t.Helper()
		if got := shorten(name, depth); got != want {
			t.Errorf("depth %d: %s, want %s", depth, got, want)
		}
	}
	f(0, "a::f<...>::operator()")
	f(1, "a::f<g<...>, (j)3>::operator()")
	f(2, "a::f<g<h<...>, i>, (j)3>::operator()")
	f(3, "a::f<g<h<int>, i>, (j)3>::operator()")
	if got := shorten("x::operator<<y<z>", 0); got != "x::operator<<y<...>" {
		t.Error(got)
	}
}

func FuzzKernelName(f *testing.F) {
	f.Add("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_")
	f.Add("_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90")
	f.Add("_ZN9999999999")
	f.Add("<<<<>>>>::operator<")
	f.Fuzz(func(t *testing.T, symbol string) {
		name := kernelName(symbol)
		if len(name) > maxName || !utf8.ValidString(name) || symbol != "" && name == "" {
			t.Errorf("%q is %q", symbol, name)
		}
	})
}

func kernel3(name string, count uint64, ms int) tracer.Kernel {
	return tracer.Kernel{Symbol: name, Count: count, Time: time.Duration(ms) * time.Millisecond}
}

// The top kernels by count and time are listed, the rest is one sum, and no sum ever decreases:
// a decreasing counter looks like a reset.
func TestChoose(t *testing.T) {
	var n names
	c := &chooser{limit: 3}
	choose := func(kernels ...tracer.Kernel) (map[string]uint64, int) {
		t.Helper()
		list, folded := c.choose(n.merged(kernels))
		got := map[string]uint64{}
		var sum, want uint64
		for _, k := range list {
			got[k.Name] += k.Count
			sum += k.Count
		}
		for _, k := range kernels {
			want += k.Count
		}
		if sum != want {
			t.Errorf("the sum is %d, want %d", sum, want)
		}
		return got, folded
	}
	f := func(want map[string]uint64, wantFolded int, kernels ...tracer.Kernel) {
		t.Helper()
		got, folded := choose(kernels...)
		if d := cmp.Diff(want, got); d != "" || folded != wantFolded {
			t.Errorf("folded %d: %s", folded, d)
		}
	}
	f(map[string]uint64{"a": 1, "b": 2, "c": 3}, 0, kernel3("a", 1, 1), kernel3("b", 2, 2), kernel3("c", 3, 3))
	// long is listed for its time, often for its count.
	f(map[string]uint64{"long": 1, "often": 900, "c": 3, "other": 3}, 2,
		kernel3("a", 1, 1), kernel3("b", 2, 2), kernel3("c", 3, 3), kernel3("long", 1, 1000), kernel3("often", 900, 1))
	// b replaces c: what b did in other stays there, and c leaves its count to other.
	f(map[string]uint64{"long": 1, "often": 900, "b": 98, "other": 6}, 2,
		kernel3("a", 1, 1), kernel3("b", 100, 500), kernel3("c", 3, 3), kernel3("long", 1, 1000), kernel3("often", 900, 1))
	f(map[string]uint64{"long": 1, "often": 900, "b": 108, "other": 6}, 2,
		kernel3("a", 1, 1), kernel3("b", 110, 600), kernel3("c", 3, 3), kernel3("long", 1, 1000), kernel3("often", 900, 1))
	// Launches without a map entry are in other as well.
	f(map[string]uint64{"long": 1, "often": 900, "b": 108, "other": 5006}, 3, tracer.Kernel{Name: "other", Count: 5000, Time: time.Hour},
		kernel3("a", 1, 1), kernel3("b", 110, 600), kernel3("c", 3, 3), kernel3("long", 1, 1000), kernel3("often", 900, 1))
}

// The same name from two modules is one kernel, on two devices it is two, and kernels without
// a symbol are merged as unknown.
func TestMerged(t *testing.T) {
	var n names
	got := n.merged([]tracer.Kernel{
		{Symbol: "k", Device: 0, Count: 1, Time: 1, Grid: [3]uint32{1, 1, 1}},
		{Symbol: "k", Device: 0, Count: 5, Time: 2, Grid: [3]uint32{2, 2, 2}},
		{Symbol: "k", Device: 1, Count: 7},
		{Device: 0, Count: 3},
		{Device: 0, Count: 4},
		{Name: "other", Device: 0, Count: 9},
	})
	want := []tracer.Kernel{
		{Name: "k", Symbol: "k", Device: 0, Count: 6, Time: 3, Grid: [3]uint32{2, 2, 2}},
		{Name: "k", Symbol: "k", Device: 1, Count: 7},
		{Name: "unknown", Device: 0, Count: 7},
		{Name: "other", Device: 0, Count: 9},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// The name cache is bounded.
func TestNamesAreBounded(t *testing.T) {
	var n names
	for i := range 3 * maxNames {
		n.of(strings.Repeat("x", i%200) + string(rune('a'+i%26)) + time.Duration(i).String())
	}
	if len(n.known) > maxNames {
		t.Errorf("%d names kept", len(n.known))
	}
}
