//go:build linux

package nvidia

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
)

// field is an NVML field id with its scope: a link, a power domain, or 0.
type field struct{ id, scope uint32 }

// allLinks is the scope that sums over every NVLink.
const allLinks = ^uint32(0)

// maxBatch is the number of fields requested per call. On R580 a C2C field (170 to 172, 231
// to 234) makes the driver skip other fields in the same call, leaving success in them and
// no value. Short calls of related fields keep the two apart.
const maxBatch = 8

const symFields = "nvmlDeviceGetFieldValues"

// fields returns the requested values that the device has.
func (c *caller) fields(ask ...field) map[field]device.Value {
	got := make(map[field]device.Value, len(ask))
	batch := make([]fieldValue, 0, maxBatch)
	for i, f := range ask {
		if !c.Never(f.query()) {
			// Preset to failure: an element that the driver skips then has no value.
			batch = append(batch, fieldValue{fieldID: f.id, scopeID: f.scope, ret: errUnknown, valueType: untouched})
		}
		if len(batch) < maxBatch && i < len(ask)-1 || len(batch) == 0 {
			continue
		}
		if c.Do(symFields, 0, c.Handle, uintptr(len(batch)), uintptr(unsafe.Pointer(&batch[0]))) {
			for _, v := range batch {
				f := field{v.fieldID, v.scopeID}
				if v.ret == success {
					if n := v.decode(); n.OK() {
						got[f] = n
					}
				} else if v.ret == errInvalidArgument || v.ret.never() {
					c.GiveUp(f.query()) // invalid argument: this driver does not know the id yet
				} else if v.valueType != untouched {
					sym, sel := f.query()
					c.Judge(sym, sel, uint32(v.ret))
				}
			}
		}
		batch = make([]fieldValue, 0, maxBatch) // never reused: an abandoned call may still write to it
	}
	return got
}

// fieldOf returns the value of one field.
func (c *caller) fieldOf(id, scope uint32) device.Value {
	f := field{id, scope}
	return c.fields(f)[f]
}

func (f field) query() (sym string, sel uint64) { return symFields, uint64(f.scope)<<32 | uint64(f.id) }

// untouched is not a value type of NVML.
const untouched = 255

// decode returns the value according to its type, or absent if the driver did not set one.
func (v *fieldValue) decode() device.Value { return decode(v.valueType, v.value) }

func decode(valueType uint32, b [8]byte) device.Value {
	u := binary.LittleEndian.Uint64(b[:])
	switch valueType {
	case 0:
		return device.Of(math.Float64frombits(u))
	case 1:
		return device.Of(float64(uint32(u)))
	case 2, 3:
		return device.Of(float64(u))
	case 4:
		return device.Of(float64(int64(u)))
	case 5:
		return device.Of(float64(int32(u)))
	case 6:
		return device.Of(float64(uint16(u)))
	}
	return device.Value{}
}
