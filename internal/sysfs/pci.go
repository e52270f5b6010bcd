package sysfs

import (
	"strconv"
	"strings"
)

// rates are those of a lane of PCI Express in GT/s, by generation from 1.
var rates = []float64{2.5, 5, 8, 16, 32, 64, 128}

// Generation returns the generation of PCI Express with a rate in GT/s, 0 if there is none.
func Generation(rate float64) int {
	for i, r := range rates {
		if r == rate {
			return i + 1
		}
	}
	return 0
}

// LinkGeneration returns the generation of what current_link_speed and max_link_speed say,
// such as "16.0 GT/s PCIe" and, of older kernels, "16 GT/s". It is 0 for "Unknown", which
// the kernel says of a link that is down, and for what is no speed.
func LinkGeneration(speed string) int {
	number, _, _ := strings.Cut(speed, " ")
	rate, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return Generation(rate)
}
