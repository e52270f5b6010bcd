package tpu

import "github.com/gpumeter/gpumeter/internal/device"

// Facts describes what all Google TPUs have in common.
var Facts = device.Vendor{
	Name: "tpu", Title: "Google TPU", PCI: "0x1ae0",
	DeviceFiles: []string{"/dev/accel", "/dev/vfio/"},
	Minors:      []string{"accel"},
	Modules:     []string{"vfio_pci"}, // since v5; older drivers are not in any public kernel
	Resources: []device.Resource{
		{Name: "google.com/tpu", Unit: device.Whole},
		{Name: "tpu.google.com", Unit: device.Claim, ModelAttribute: "accelerator"},
	},
	ModelLabels: []string{"cloud.google.com/gke-tpu-accelerator"},
}
