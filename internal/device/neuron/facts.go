package neuron

import "github.com/gpumeter/gpumeter/internal/device"

// Facts describes what all AWS Neuron devices have in common.
var Facts = device.Vendor{
	Name: "neuron", Title: "AWS Neuron", PCI: "0x1d0f",
	DeviceFiles: []string{"/dev/neuron"},
	Minors:      []string{"neuron"},
	Modules:     []string{"neuron"},
	Resources: []device.Resource{
		{Name: "aws.amazon.com/neuron", Unit: device.Whole},
		{Name: "aws.amazon.com/neurondevice", Unit: device.Whole}, // the older name
		{Name: "aws.amazon.com/neuroncore", Unit: device.Core},
		{Name: "neuron.aws.com", Unit: device.Claim},
	},
}
