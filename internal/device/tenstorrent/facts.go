package tenstorrent

import "github.com/gpumeter/gpumeter/internal/device"

// Facts describes what all Tenstorrent chips have in common.
var Facts = device.Vendor{
	Name: "tenstorrent", Title: "Tenstorrent", PCI: "0x1e52",
	DeviceFiles: []string{"/dev/tenstorrent/"},
	Minors:      []string{"tenstorrent/"},
	Modules:     []string{"tenstorrent"},
	Resources: []device.Resource{
		{Name: "tenstorrent.com/*", Unit: device.Whole}, // n150, n300, blackhole ...
		{Name: "tenstorrent.com", Unit: device.Claim, ModelAttribute: "boardName"},
	},
	ModelPrefixes: []string{"Tenstorrent ", "Blackhole ", "Wormhole "},
}
