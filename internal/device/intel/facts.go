package intel

import "github.com/gpumeter/gpumeter/internal/device"

// Facts describes what all Intel GPUs have in common.
var Facts = device.Vendor{
	Name: "intel", Title: "Intel", PCI: "0x8086",
	DeviceFiles: []string{"/dev/dri/renderD"},
	Modules:     []string{"xe", "i915"},
	Resources: []device.Resource{
		// With sharedDevNum the plugin allocates each device several times, as card0-3.
		{Name: "gpu.intel.com/i915", Unit: device.Whole, Replica: "-"},
		{Name: "gpu.intel.com/xe", Unit: device.Whole, Replica: "-"},
		{Name: "gpu.intel.com/*_monitoring", Unit: device.NoDevice},
		{Name: "gpu.intel.com", Unit: device.Claim, ModelAttribute: "model"},
	},
	ModelLabels:   []string{"gpu.intel.com/product"}, // set by the rules of the device plugin for node feature discovery
	ModelPrefixes: []string{"Intel ", "Data Center GPU "},
}
