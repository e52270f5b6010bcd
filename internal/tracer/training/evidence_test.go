package training

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// What the parts of a name say. A word in the wrong place takes a server for a training.
func TestEvidence(t *testing.T) {
	for name, want := range map[string]Evidence{
		"at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<...>, plus<float>, float>": Foreach,
		"at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<3>, FusedAdamMathFunctor<...>>":        Optimizer,
		"at::native::(anonymous namespace)::cuComputeGradInput<...>":                                                                          Backward, "at::native::(anonymous namespace)::layer_norm_grad_input_kernel<...>": Backward,
		"at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<...>": Backward, "pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>": Backward,
		"triton_red_fused_native_layer_norm_native_layer_norm_backward_12": Backward, "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16": Backward,
		"kOptimizer32bit1State<...>":                                 Optimizer,
		"at::native::vectorized_elementwise_kernel<4, {lambda()#1}>": None, "sm90_xmma_gemm_bf16bf16_bf16f32": None, "void cutlass::Kernel2<...>": None,
		"thrust::cuda_cub::__parallel_for::parallel_for_kernel<...>": None, "flash_fwd_splitkv_kernel": None, "paged_attention_v2_kernel": None, "cub::DeviceFor::ForEachN": None,
	} {
		if got := EvidenceOf(name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}

// A process that never is still is no reason to forget all others, and a machine full of short ones none to grow.
func TestManyProcesses(t *testing.T) {
	o := New()
	for i := range 20_000 {
		p := tracer.Process{PID: uint32(i), Since: at(float64(i)), Ended: i%2 == 0, Launches: map[string]uint64{"adam_kernel": 3, "x_backward": uint64(i)}}
		o.Observe(&tracer.Snapshot{Time: at(float64(i)), Processes: []tracer.Process{p}}, func(uint32) Facts { return Facts{Workload: fmt.Sprint(i)} })
	}
	if len(o.processes) > maxProcesses || len(o.jobs) > maxJobs {
		t.Errorf("%d processes and %d jobs are remembered", len(o.processes), len(o.jobs))
	}
}

// Bursts of writes are checkpoints; logs, samples of a tick and a disk that is always written to are not.
func TestSampler(t *testing.T) {
	f := func(name string, want Writes, wrote ...uint64) {
		t.Helper()
		var s Sampler
		total := uint64(0)
		for i, n := range wrote {
			total += n
			s.Sample(at(float64(i)), total)
		}
		s.End()
		want.Last, s.Last = time.Time{}, time.Time{}
		if s.Writes != want {
			t.Errorf("%s: %+v, want %+v", name, s.Writes, want)
		}
	}
	const mb = 1 << 20
	f("nothing", Writes{}, 0, 0, 0)
	f("before the first sample", Writes{}, 900*mb, 0, 0, 0)
	f("logs", Writes{}, 0, 1*mb, 2*mb, 1*mb, 0, 3*mb)
	f("small", Writes{}, 0, 8*mb, 0, 0, 0)
	f("one", Writes{Checkpoints: 1, Bytes: 3000 * mb, Time: 3 * time.Second}, 0, 0, 1000*mb, 1000*mb, 1000*mb, 0, 0, 0)
	f("a pause in it", Writes{Checkpoints: 1, Bytes: 2001 * mb, Time: 2 * time.Second}, 0, 1000*mb, 1*mb, 1000*mb, 0, 0, 0)
	f("two", Writes{Checkpoints: 2, Bytes: 2000 * mb, Time: 2 * time.Second}, 0, 1000*mb, 0, 0, 0, 1000*mb, 0, 0, 0)
}
