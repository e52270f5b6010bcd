package device

import "strings"

// Derive returns the UUID of a device whose vendor reports none: it is unique in a fleet if
// machine is (local.Machine). address is the PCI address, or the number of a device that
// has no address. The result is vendor-machine-address; internal/fleet recognizes the
// form by the 16 hexadecimal digits of machine.
func Derive(vendor, machine, address string) string {
	if machine == "" {
		return vendor + "-" + address
	}
	return vendor + "-" + machine + "-" + address
}

// Serial returns a serial number as reported by a driver or by firmware, or "" if the text
// is one of the placeholders that many boards share.
func Serial(text string) string {
	text = strings.TrimSpace(text)
	plain := strings.ToLower(strings.TrimPrefix(strings.ToLower(text), "0x"))
	switch {
	case len(plain) < 4, strings.Trim(plain, plain[:1]) == "": // "0", "n/a", "0000000000", "ffffffff"
		return ""
	case strings.Contains(plain, "o.e.m"), strings.Contains(plain, "default"), strings.Contains(plain, "specified"),
		plain == "none", plain == "null", strings.HasPrefix(plain, "unknown"), strings.HasPrefix(plain, "not "), strings.HasPrefix(plain, "123456789"):
		return ""
	}
	return text
}
