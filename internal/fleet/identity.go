package fleet

import (
	"cmp"
	"context"
	"strings"
	"time"

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

// Slot returns the vendor and the address of a device whose ID is derived from its address, and "" for
// any other. It is the same for the ID that an earlier agent derived.
func Slot(l query.Labels) string {
	head, rest, _ := strings.Cut(l[LabelUUID], "-")
	if vendor := l[LabelVendor]; vendor != "" && head != vendor { // findings do not name the vendor
		return ""
	}
	rest = strings.TrimPrefix(rest, "-")
	for _, n := range []int{16, 32} {
		if len(rest) > n && rest[n] == '-' && isHex(rest[:n]) {
			return head + "-" + rest[n+1:]
		}
	}
	if Global(l) {
		return ""
	}
	return head + "-" + rest
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

// Key returns the DeviceKey of the device.
func (d *Device) Key() string { return DeviceKey(d.Labels) }

// ByUUID returns the index of a device with this ID; of several, the first.
func (f *Fleet) ByUUID(uuid string) (int, bool) {
	if i, ok := f.Index[uuid]; ok {
		return i, true
	}
	for i := range f.Devices {
		if f.Devices[i].UUID == uuid {
			return i, true
		}
	}
	return 0, false
}

// find returns the device that a series is about. A series from another host than the device's is what
// remains of a device that moved, or comes from its second sender: it must not count.
func (f *Fleet) find(l query.Labels) (int, bool) {
	i, ok := f.Index[DeviceKey(l)]
	return i, ok && (l[LabelHost] == "" || l[LabelHost] == f.Devices[i].Host)
}

// settled is how long a host must be silent while another one sends the same device to have lost it.
const settled = time.Minute

// moved chooses the host of the devices that several hosts reported in the last minutes. A device that moved
// is at the host that still reports it. If several do, the device has several senders, and the host is the
// first by name, so that the answer does not alternate.
func (r *Reader) moved(ctx context.Context, f *Fleet, up []query.Sample) error {
	several := map[string][]query.Sample{} // by key
	var uuids []string
	for _, s := range up {
		key := DeviceKey(s.Labels)
		d := &f.Devices[f.Index[key]]
		if s.Labels[LabelHost] == d.Host || (s.Value > 0) != d.Up {
			continue
		}
		several[key] = append(several[key], s)
		uuids = append(uuids, d.UUID)
	}
	for _, match := range AnyOf(LabelUUID, uuids) {
		list, err := r.store.Instant(ctx, Newest(match), f.At)
		if err != nil {
			return err
		}
		last := map[string]float64{} // seconds, by key and host
		for _, s := range list {
			last[DeviceKey(s.Labels)+"\xff"+s.Labels[LabelHost]] = s.Value
		}
		for key, samples := range several {
			d := &f.Devices[f.Index[key]]
			for _, s := range samples {
				mine, ok := last[key+"\xff"+d.Host]
				other, ok2 := last[key+"\xff"+s.Labels[LabelHost]]
				if !ok || !ok2 {
					continue
				}
				later := 0
				if gap := other - mine; max(gap, -gap) > settled.Seconds() {
					later = cmp.Compare(other, mine)
				}
				if cmp.Or(later, cmp.Compare(d.Host, s.Labels[LabelHost])) > 0 {
					*d = r.device(s.Labels)
					d.Up = s.Value > 0
				}
			}
		}
	}
	return nil
}
