package tpu

import "github.com/gpumeter/gpumeter/internal/device"

// Facts are what all TPUs of Google have in common.
var Facts = device.Vendor{
	Name: "tpu", Title: "Google TPU", PCI: "0x1ae0",
	DeviceFiles: []string{"/dev/accel", "/dev/vfio/"},
	Minors:      []string{"accel"},
	Modules:     []string{"vfio_pci"}, // since v5; the drivers of older ones are in no public kernel
	Resources: []device.Resource{
		{Name: "google.com/tpu", Unit: device.Whole},
		{Name: "tpu.google.com", Unit: device.Claim},
	},
}
