//go:build linux

package intel

import "fmt"

// families are the PCI device ids of Intel's discrete GPUs, from the kernel's
// include/drm/intel/pciids.h.
var families = []struct {
	first, last  uint16
	architecture string
}{
	{0x0b69, 0x0b6e, "Xe-HPC"}, // Ponte Vecchio: Data Center GPU Max
	{0x0bd0, 0x0be5, "Xe-HPC"},
	{0x4905, 0x4909, "Xe-LP"},   // DG1
	{0x4f80, 0x4f88, "Xe-HPG"},  // Alchemist: Arc A
	{0x5690, 0x56bf, "Xe-HPG"},  // Alchemist: Arc A and Arc Pro A
	{0x56c0, 0x56c2, "Xe-HPG"},  // Arctic Sound: Data Center GPU Flex
	{0x674c, 0x674c, "Xe3P"},    // Crescent Island
	{0xe202, 0xe223, "Xe2-HPG"}, // Battlemage: Arc B and Arc Pro B
}

// architecture returns the family of a discrete GPU, or "" if chip is not known to be one.
func architecture(chip uint16) string {
	for _, f := range families {
		if chip >= f.first && chip <= f.last {
			return f.architecture
		}
	}
	return ""
}

// discrete reports whether a GPU is a separate card. Integrated GPUs are excluded: they
// share power, memory and temperature with the processor. Both drivers create a hwmon
// device only for GPUs with their own memory, which identifies chips newer than this list.
// A virtual function, or a GPU in survivability mode, has no hwmon and is identified by its
// device id.
func discrete(chip uint16, hwmon bool) bool { return hwmon || architecture(chip) != "" }

var models = map[uint16]string{
	0x0b69: "Data Center GPU Max 1450",
	0x0b6e: "Data Center GPU Max 1100C",
	0x0bd5: "Data Center GPU Max 1550",
	0x0bd6: "Data Center GPU Max 1550",
	0x0bd7: "Data Center GPU Max 1350",
	0x0bd8: "Data Center GPU Max 1350",
	0x0bd9: "Data Center GPU Max 1100",
	0x0bda: "Data Center GPU Max 1100",
	0x0bdb: "Data Center GPU Max 1100",
	0x4905: "Iris Xe MAX",
	0x4907: "Server GPU SG-18M",
	0x5690: "Arc A770M",
	0x5691: "Arc A730M",
	0x5692: "Arc A550M",
	0x5693: "Arc A370M",
	0x5694: "Arc A350M",
	0x5696: "Arc A570M",
	0x5697: "Arc A530M",
	0x56a0: "Arc A770",
	0x56a1: "Arc A750",
	0x56a2: "Arc A580",
	0x56a5: "Arc A380",
	0x56a6: "Arc A310",
	0x56b0: "Arc Pro A30M",
	0x56b1: "Arc Pro A40/A50",
	0x56c0: "Data Center GPU Flex 170",
	0x56c1: "Data Center GPU Flex 140",
	0xe20b: "Arc B580",
	0xe20c: "Arc B570",
	0xe211: "Arc Pro B60",
	0xe212: "Arc Pro B50",
}

// model returns the marketing name of a chip.
func model(chip uint16) string {
	if name := models[chip]; name != "" {
		return "Intel " + name
	}
	return fmt.Sprintf("Intel GPU 0x%04x", chip)
}
