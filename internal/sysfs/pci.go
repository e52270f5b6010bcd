package sysfs

import (
	"strconv"
	"strings"
)

// rates are the per-lane PCI Express rates in GT/s; index 0 is generation 1.
var rates = []float64{2.5, 5, 8, 16, 32, 64, 128}

// Generation returns the PCI Express generation with the given per-lane rate in GT/s, or 0
// if there is none.
func Generation(rate float64) int {
	for i, r := range rates {
		if r == rate {
			return i + 1
		}
	}
	return 0
}

// LinkGeneration returns the PCI Express generation for a value of current_link_speed or
// max_link_speed, such as "16.0 GT/s PCIe" or, on older kernels, "16 GT/s". It returns 0
// for "Unknown", which the kernel reports for a link that is down, and for anything else
// that is not a speed.
func LinkGeneration(speed string) int {
	number, _, _ := strings.Cut(speed, " ")
	rate, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return Generation(rate)
}
