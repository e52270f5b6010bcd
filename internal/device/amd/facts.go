package amd

import "github.com/gpumeter/gpumeter/internal/device"

// Facts describes what all AMD GPUs have in common.
var Facts = device.Vendor{
	Name: "amd", Title: "AMD", PCI: "0x1002",
	DeviceFiles: []string{"/dev/kfd", "/dev/dri/renderD"},
	Modules:     []string{"amdgpu"},
	LogWords:    []string{"amdkfd", "kfd"},
	Messages: []device.Message{{
		Contains: "amdgpu", Pattern: `amdgpu .*GPU reset begin`, Action: "The driver reset a GPU: running work was lost. See the preceding lines.",
	}},
	Resources: []device.Resource{
		{Name: "amd.com/gpu", Unit: device.Whole},
		{Name: "amd.com/spx_nps*", Unit: device.Whole}, // the mode in which a GPU is one partition
		{Name: "amd.com/*_nps*", Unit: device.Part},    // dpx, tpx, qpx, cpx
		{Name: "gpu.amd.com", Unit: device.Claim, WholeTypes: []string{"amdgpu"}, ModelAttribute: "productName"},
	},
	ModelLabels:    []string{"amd.com/gpu.product-name"}, // set by the node labeller
	ModelPrefixes:  []string{"AMD ", "Instinct "},
	ListsProcesses: true,
}
