//go:build linux

package gaudi

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// Status codes of the driver's own interface (enum hl_device_status).
const (
	operational   = 0
	inReset       = 1
	malfunction   = 2
	needsReset    = 3
	inCreation    = 4 // works; creation is still in progress
	inSoftReset   = 5 // because a program released the device
	unknownStatus = 99
)

// statuses maps the content of the file status to codes. Older drivers use another word for
// code 2.
var statuses = map[string]float64{
	"operational":                   operational,
	"in reset":                      inReset,
	"disabled":                      malfunction,
	"malfunction":                   malfunction,
	"needs reset":                   needsReset,
	"in device creation":            inCreation,
	"in reset after device release": inSoftReset,
}

// parseStatus returns the code of a status. An unknown word from a newer driver is not
// operational.
func parseStatus(s string) float64 {
	if code, ok := statuses[strings.ToLower(strings.TrimSpace(s))]; ok {
		return code
	}
	return unknownStatus
}

// parseNumber parses an unsigned decimal integer.
func parseNumber(s string) (float64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q is not an unsigned integer", s[:min(len(s), 64)])
	}
	return float64(n), nil
}

// parseAddress returns a PCI address in the form that sysfs uses, or "" if s is not one.
// HLML may use upper case and an eight-digit domain.
func parseAddress(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	domain, rest, ok := strings.Cut(s, ":")
	if !ok || len(rest) != len("0f:00.0") || rest[2] != ':' || rest[5] != '.' || strings.Trim(domain+rest, "0123456789abcdef:.") != "" {
		return ""
	}
	if len(domain) > 4 {
		domain = strings.TrimLeft(domain[:len(domain)-4], "0") + domain[len(domain)-4:]
	}
	return domain + ":" + rest
}

// families maps PCI device ids of vendor 0x1da3 to accelerator families.
var families = map[string]string{
	"0x1000": "gaudi", "0x1001": "gaudi", "0x1010": "gaudi", "0x1011": "gaudi",
	"0x1020": "gaudi2", "0x1021": "gaudi2",
	"0x1030": "gaudi3", "0x1060": "gaudi3", "0x1061": "gaudi3", "0x1062": "gaudi3", "0x1063": "gaudi3",
}

// family returns the kind of accelerator, from its PCI device id or the driver's name for
// it, such as "GAUDI2" or "GAUDI SEC".
func family(pciID, deviceType string) string {
	if f, ok := families[strings.ToLower(pciID)]; ok {
		return f
	}
	return strings.ReplaceAll(strings.ToLower(deviceType), " ", "_")
}

// parseLinkSpeed returns the PCIe generation for a link speed such as "16.0 GT/s PCIe", or
// absent for "Unknown".
func parseLinkSpeed(s string) device.Value {
	if gen := sysfs.LinkGeneration(s); gen > 0 {
		return device.Of(float64(gen))
	}
	return device.Value{}
}
