package sim

import "strings"

// Offer is how Kubernetes knows the devices of a node.
type Offer struct {
	Resource string
	// Label of the node names the model of its devices as Product. Both are empty if nobody labels such nodes.
	Label, Product string
	parts          string // prefix of the resources of partitions; empty: none are offered
}

// offers are what device plugins and labellers of nodes make of the models, by model.
var offers = map[string]Offer{
	"a100":   {"nvidia.com/gpu", "nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig-"},
	"h100":   {"nvidia.com/gpu", "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", "nvidia.com/mig-"},
	"h200":   {"nvidia.com/gpu", "nvidia.com/gpu.product", "NVIDIA-H200", "nvidia.com/mig-"},
	"mi300x": {"amd.com/gpu", "amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "amd.com/"},
	"gaudi3": {"habana.ai/gaudi", "", "", ""},
	"p150a":  {"tenstorrent.com/blackhole", "", "", ""},
}

// OfferOf returns how Kubernetes knows the devices of a model. ok is false for models of which nobody has simulated a
// Kubernetes node yet.
func OfferOf(model string) (o Offer, ok bool) {
	o, ok = offers[model]
	return o, ok
}

// Part returns the resource of partitions with a profile, empty if none are offered.
func (o Offer) Part(profile string) string {
	if o.parts == "" {
		return ""
	}
	return o.parts + strings.ReplaceAll(profile, "+", ".")
}
