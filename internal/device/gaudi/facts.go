package gaudi

import "github.com/gpumeter/gpumeter/internal/device"

// Facts describes what all Gaudi accelerators have in common.
var Facts = device.Vendor{
	Name: "gaudi", Title: "Intel Gaudi", PCI: "0x1da3",
	DeviceFiles: []string{"/dev/accel/accel", "/dev/hl"}, // hl before Linux 6.2
	Minors:      []string{"accel", "hl"},
	Modules:     []string{"habanalabs"},
	Resources: []device.Resource{
		{Name: "habana.ai/gaudi", Unit: device.Whole},
		{Name: "gaudi.intel.com", Unit: device.Claim, ModelAttribute: "model"},
	},
	ModelPrefixes: []string{"Intel "},
}
