//go:build linux

package amd

import "strings"

// models are the names of GPUs whose board does not store one, by PCI device id.
var models = map[string]string{
	"150e": "AMD Radeon 880M/890M",
	"1586": "AMD Radeon 8050S/8060S",
	"15bf": "AMD Radeon 760M/780M",
	"66a0": "AMD Instinct MI50/MI60",
	"66a1": "AMD Instinct MI50/MI60",
	"687f": "AMD Radeon RX Vega",
	"738c": "AMD Instinct MI100",
	"738e": "AMD Instinct MI100",
	"73a3": "AMD Radeon Pro W6800",
	"73bf": "AMD Radeon RX 6800/6900",
	"73df": "AMD Radeon RX 6700/6800M",
	"7408": "AMD Instinct MI250X",
	"740c": "AMD Instinct MI250/MI250X",
	"740f": "AMD Instinct MI210",
	"7448": "AMD Radeon Pro W7900",
	"744c": "AMD Radeon RX 7900",
	"747e": "AMD Radeon RX 7700/7800 XT",
	"7480": "AMD Radeon RX 7600",
	"74a0": "AMD Instinct MI300A",
	"74a1": "AMD Instinct MI300X",
	"74a2": "AMD Instinct MI308X",
	"74a5": "AMD Instinct MI325X",
	"74a9": "AMD Instinct MI300X HF",
	"74b5": "AMD Instinct MI300X VF",
	"74b9": "AMD Instinct MI325X VF",
	"7550": "AMD Radeon RX 9070",
	"7551": "AMD Radeon AI PRO R9700",
	"75a0": "AMD Instinct MI350X",
	"75a3": "AMD Instinct MI355X",
	"75b0": "AMD Instinct MI350X VF",
	"75b3": "AMD Instinct MI355X VF",
}

// twoDies are the packages with two dies, each of which is a device. The firmware measures
// power and energy of the whole package on the first die and reports 0 for the second.
var twoDies = map[string]bool{"7408": true, "740c": true}

// dieOfTwo reports whether a PCI id such as 1002:7408 is one die of two.
func dieOfTwo(pciID string) bool {
	_, dev, _ := strings.Cut(strings.ToLower(pciID), ":")
	return twoDies[dev]
}

// modelOf returns the name for a PCI id such as 1002:74A1.
func modelOf(pciID string) string {
	id := strings.ToLower(pciID)
	_, dev, _ := strings.Cut(id, ":")
	if name := models[dev]; name != "" {
		return name
	}
	return strings.TrimSpace("AMD GPU " + id)
}
