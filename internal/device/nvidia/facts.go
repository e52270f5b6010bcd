package nvidia

import "github.com/gpumeter/gpumeter/internal/device"

// Facts describes what all NVIDIA GPUs have in common.
var Facts = device.Vendor{
	Name: "nvidia", Title: "NVIDIA", PCI: "0x10de",
	DeviceFiles: []string{"/dev/nvidia"}, // and nvidiactl, nvidia-uvm, nvidia-caps
	Minors:      []string{"nvidia"},
	Modules:     []string{"nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem"},
	LogWords:    []string{"NVRM"},
	Messages: []device.Message{{
		Contains: "RmInitAdapter", Pattern: `NVRM: .*RmInitAdapter failed`, Critical: true, Action: "The driver cannot initialize a GPU: drain the node and reboot it.",
	}},
	VersionFiles: []string{"proc/driver/nvidia/version"},
	Services:     []string{"nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-dcgm.service"},
	Resources: []device.Resource{
		{Name: "nvidia.com/gpu", Unit: device.Whole},
		{Name: "nvidia.com/gpu.shared", Unit: device.Share}, // time slicing, MPS
		{Name: "nvidia.com/mig-*", Unit: device.Part},
		{Name: "gpu.nvidia.com", Unit: device.Claim, WholeTypes: []string{"gpu"}, ModelAttribute: "productName"},
		{Name: "compute-domain.nvidia.com", Unit: device.NoDevice}, // connections between GPUs of several nodes
	},
	// Set by GPU feature discovery, and by GKE.
	ModelLabels:    []string{"nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"},
	ModelPrefixes:  []string{"NVIDIA "},
	ModelSuffixes:  []string{" 80GB HBM3", "-SXM4-80GB"}, // common on H100 and A100
	Models:         models,
	ListsProcesses: true,
}
