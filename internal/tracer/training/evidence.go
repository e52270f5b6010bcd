package training

import "strings"

// Evidence is what the name of a kernel says about the process that launches it.
type Evidence int

// The kinds of evidence. Matrix products and element-wise kernels are the same in both directions and in
// inference: they are none.
const (
	None      Evidence = iota
	Backward           // computes gradients
	Foreach            // applies one operation to a list of tensors, as optimizers and clipping of gradients do
	Optimizer          // updates parameters
)

// words are parts of the names of kernels, in lower case. They were taken from PyTorch (ATen, inductor, its
// Flash Attention), cuDNN, CUTLASS, Apex, Transformer Engine, DeepSpeed and bitsandbytes. Words that are
// part of others, such as lamb of lambda, are only here with what surrounds them.
var words = []struct {
	text string
	is   Evidence
}{
	{"adam", Optimizer},
	{"adagrad", Optimizer},
	{"adafactor", Optimizer},
	{"rmsprop", Optimizer},
	{"koptimizer", Optimizer},
	{"fusedsgd", Optimizer},
	{"fused_sgd", Optimizer},
	{"multi_tensor_sgd", Optimizer},
	{"sgdfunctor", Optimizer},
	{"sgdmath", Optimizer},
	{"fusedlamb", Optimizer},
	{"fused_lamb", Optimizer},
	{"lambstage", Optimizer},
	{"lamb_stage", Optimizer},
	{"lionfunctor", Optimizer},
	{"fused_lion", Optimizer},
	{"multi_tensor_apply", Foreach},
	{"_foreach_", Foreach},
	{"triton_for_fused", Foreach},
	{"backward", Backward},
	{"_bwd", Backward},
	{"bwd_", Backward},
	{"bprop", Backward},
	{"dgrad", Backward},
	{"wgrad", Backward},
	{"_grad_", Backward},
	{"gradinput", Backward},
	{"gradweight", Backward},
	{"bn_bw_", Backward},
	{"grad_input", Backward},
}

// EvidenceOf returns what the name of a kernel says.
func EvidenceOf(kernel string) Evidence {
	name := strings.ToLower(kernel)
	if strings.HasSuffix(name, "_grad") {
		return Backward
	}
	for _, w := range words {
		if strings.Contains(name, w.text) {
			return w.is
		}
	}
	return None
}
