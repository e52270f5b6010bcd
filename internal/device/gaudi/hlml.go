//go:build linux

package gaudi

import (
	"fmt"
	"math/bits"

	"github.com/gpumeter/gpumeter/internal/device"
)

// ret is an HLML return code.
type ret uint32

// The return codes that the reader acts on, named as in HLML's header.
const (
	success               ret = 0
	errUninitialized      ret = 1
	errInvalidArgument    ret = 2
	errNotSupported       ret = 3
	errAlreadyInitialized ret = 5
	errNotFound           ret = 6
	errInsufficientSize   ret = 7
	errDriverNotLoaded    ret = 9
	errTimeout            ret = 10
	errLost               ret = 15
	errMemory             ret = 20
	errNoData             ret = 21
	errUnknown            ret = 49

	errMissing ret = 1 << 31 // not HLML's: the library does not have the function
)

var retText = map[ret]string{
	errUninitialized:      "the library is not initialized",
	errInvalidArgument:    "invalid argument",
	errNotSupported:       "not supported",
	errAlreadyInitialized: "already initialized",
	errNotFound:           "not found",
	errInsufficientSize:   "buffer too small",
	errDriverNotLoaded:    "the habanalabs kernel driver is not loaded",
	errTimeout:            "the firmware did not answer in time",
	errLost:               "the accelerator is lost",
	errMemory:             "out of memory",
	errNoData:             "no data",
	errUnknown:            "unknown error",
	errMissing:            "the library does not have this function",
}

func (r ret) Error() string {
	if s, ok := retText[r]; ok {
		return fmt.Sprintf("%s (HLML %d)", s, uint32(r))
	}
	return fmt.Sprintf("HLML error %d", uint32(r))
}

// Is matches the vendor-neutral sentinel error. A handle from before a driver reload must
// be rediscovered, too.
func (r ret) Is(target error) bool {
	return target == device.ErrLost && (r == errLost || r == errUninitialized)
}

// never reports whether repeating the query is pointless until the device is rediscovered.
func (r ret) never() bool { return r == errNotSupported || r == errMissing }

// quiet reports whether the code means "no value now" rather than a fault. An older library
// answers "invalid argument" for a sensor it does not know.
func (r ret) quiet() bool {
	return r.never() || r == errNoData || r == errNotFound || r == errInvalidArgument
}

// Structs that are passed by pointer grew with the library's versions. These have room for
// more, and only members that all versions agree on are read.
type (
	memory struct { // bytes
		free, total, used uint64
		_                 [4]uint64
	}
	utilization struct {
		aip uint32 // percent; newer libraries add a memory value
		_   [15]uint32
	}
	pciInfo struct {
		bus   uint32
		busID [252]byte // a string, followed by further members
	}
	// ports has one bit for each of up to 256 ports. Older libraries fill the first 64.
	ports [4]uint64
)

// list returns the port numbers.
func (p ports) list() []int {
	var list []int
	for i, word := range p {
		for ; word != 0; word &= word - 1 {
			list = append(list, 64*i+bits.TrailingZeros64(word))
		}
	}
	return list
}

// throttleBits maps HLML's clocks throttle reasons to causes. The firmware does both, so
// they count as software.
var throttleBits = []struct {
	bit     uint64
	cause   string
	buckets device.Buckets
}{
	{1, "power", device.BucketPower | device.BucketSW},
	{2, "thermal", device.BucketThermal | device.BucketSW},
}

// throttles returns every known cause, and each unknown bit as a cause in the hardware
// bucket.
func throttles(mask uint64) []device.Throttle {
	var list []device.Throttle
	for _, t := range throttleBits {
		list = append(list, device.Throttle{Cause: t.cause, Buckets: t.buckets, Active: mask&t.bit != 0})
		mask &^= t.bit
	}
	for ; mask != 0; mask &= mask - 1 {
		list = append(list, device.Throttle{
			Cause: fmt.Sprintf("bit_%d", bits.TrailingZeros64(mask)), Buckets: device.BucketHW, Active: true,
		})
	}
	return list
}
