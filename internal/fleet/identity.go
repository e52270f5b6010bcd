package fleet

import (
	"strings"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Global reports whether the ID of the device that a series is about is unique in the fleet, so
// that two senders of the ID mean the same device. Vendor UUIDs and serial numbers are, and IDs
// that an agent derives from its machine (docs/hardware.md). Earlier agents derived IDs from the PCI
// address or the number of the device, with at most /etc/machine-id, which clones of an image
// share: vendor-0000:3d:00.0, vendor-MACHINE-0000:3d:00.0, vendor-MACHINE-3. Such an ID
// identifies a device only together with its host. A series without a device has no ID.
func Global(l query.Labels) bool {
	uuid := l[LabelUUID]
	head, rest, ok := strings.Cut(uuid, "-")
	switch {
	case !ok:
		return uuid != ""
	case len(rest) > 16 && rest[16] == '-' && isHex(rest[:16]): // the machine of a derived ID, or a serial number
		return true
	case strings.IndexByte(rest, ':') >= 0:
		return false
	case head != l[LabelVendor]:
		return true
	}
	rest = strings.TrimPrefix(rest, "-")
	if len(rest) > 33 && rest[32] == '-' && isHex(rest[:32]) {
		rest = rest[33:]
	}
	number, _, _ := strings.Cut(rest, "-")
	return len(number) == 0 || len(number) > 3 || strings.Trim(number, "0123456789") != ""
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// DeviceKey returns the key of the device that a series is about: its ID, and its host if the ID is
// not global.
func DeviceKey(l query.Labels) string {
	if uuid := l[LabelUUID]; uuid == "" || Global(l) {
		return uuid
	}
	return l[LabelUUID] + "\xff" + l[LabelHost]
}
