//go:build linux

package nvidia

import (
	"fmt"

	"github.com/gpumeter/gpumeter/internal/device"
)

// ret is an NVML return code.
type ret uint32

// The return codes that the reader acts on, named as in NVML's header.
const (
	success               ret = 0
	errUninitialized      ret = 1
	errInvalidArgument    ret = 2
	errNotSupported       ret = 3
	errNoPermission       ret = 4
	errNotFound           ret = 6
	errInsufficientSize   ret = 7
	errDriverNotLoaded    ret = 9
	errTimeout            ret = 10
	errFunctionNotFound   ret = 13
	errGPULost            ret = 15
	errResetRequired      ret = 16
	errLibVersionMismatch ret = 18
	errNoData             ret = 21
	errVersionMismatch    ret = 25
	errDeprecated         ret = 26
	errNotReady           ret = 27
	errGPUNotFound        ret = 28
	errUnknown            ret = 999
)

var retText = map[ret]string{
	errUninitialized:      "the library is not initialized",
	errInvalidArgument:    "invalid argument",
	errNotSupported:       "not supported",
	errNoPermission:       "no permission",
	errNotFound:           "not found",
	errInsufficientSize:   "buffer too small",
	errDriverNotLoaded:    "the NVIDIA kernel driver is not loaded",
	errTimeout:            "timeout in the driver",
	errFunctionNotFound:   "the driver does not have this function",
	errGPULost:            "the GPU has fallen off the bus",
	errResetRequired:      "the GPU needs a reset",
	errLibVersionMismatch: "driver and library versions differ: the driver was upgraded without a reboot or module reload",
	errNoData:             "no data",
	errVersionMismatch:    "the library expects a different version of the argument",
	errDeprecated:         "no longer offered",
	errNotReady:           "not ready",
	errGPUNotFound:        "no GPU found",
	errUnknown:            "unknown error",
}

func (r ret) Error() string {
	if s, ok := retText[r]; ok {
		return fmt.Sprintf("%s (NVML %d)", s, uint32(r))
	}
	return fmt.Sprintf("NVML error %d", uint32(r))
}

// Is matches the vendor-neutral sentinel errors. A handle from before a driver reload
// answers "not initialized"; that device must be rediscovered, too.
func (r ret) Is(target error) bool {
	switch target {
	case device.ErrLost:
		return r == errGPULost || r == errUninitialized
	case device.ErrNeedsReset:
		return r == errResetRequired
	case device.ErrAbsent:
		return r == errDriverNotLoaded
	}
	return false
}

// never reports whether repeating the query is pointless until the device is rediscovered.
func (r ret) never() bool {
	return r == errNotSupported || r == errFunctionNotFound || r == errDeprecated || r == errVersionMismatch
}

// quiet reports whether the code means "no value now" rather than a fault.
func (r ret) quiet() bool {
	return r.never() || r == errNoData || r == errNotFound || r == errNotReady || r == errTimeout || r == errInvalidArgument || r == errInsufficientSize
}

// Structs of NVML's ABI that are passed by pointer. C and Go alignment agree on amd64 and
// arm64; TestLayout checks them against the published sizes and offsets.
type (
	memoryV2 struct {
		version                     uint32
		total, reserved, free, used uint64
	}
	memoryV1 struct{ total, free, used uint64 }
	bar1     struct{ total, free, used uint64 }

	utilization struct{ gpu, memory uint32 }

	pciInfo struct {
		busIDLegacy                 [16]byte
		domain, bus, device         uint32
		pciDeviceID, pciSubSystemID uint32
		busID                       [32]byte
	}
	fieldValue struct {
		fieldID, scopeID     uint32
		timestamp, latencyUs int64
		valueType            uint32
		ret                  ret
		value                [8]byte
	}
	sampleValue struct {
		timestamp uint64 // µs since the epoch
		value     [8]byte
	}
	processInfo struct {
		pid           uint32
		usedGPUMemory uint64
		gi, ci        uint32
	}
	processUtil struct {
		pid               uint32
		timestamp         uint64 // µs since the epoch
		sm, mem, enc, dec uint32 // percent
	}
	margin struct {
		version uint32
		celsius int32
	}
	fanSpeedRPM  struct{ version, fan, rpm uint32 }
	rowHistogram struct{ max, high, partial, low, none uint32 }
	sramStatus   struct {
		version           uint32
		counters          [11]uint64 // aggregate and volatile, by kind and bucket
		thresholdExceeded uint32
	}
	migAttributes struct {
		multiprocessors, copyEngines, decoders, encoders, jpegs, ofas uint32
		gpuSlices, computeSlices                                      uint32
		memoryMiB                                                     uint64
	}
	fabricV2 struct {
		version     uint32
		clusterUUID [16]byte
		status      ret
		cliqueID    uint32
		state       uint8
		_           [3]byte
		healthMask  uint32
	}
	fabricV3 struct {
		fabricV2
		healthSummary uint8
		_             [3]byte
	}
	eventData struct {
		device          uintptr
		eventType, data uint64
		gi, ci          uint32
	}
	gpmSupport struct{ version, supported uint32 }
	gpmMetric  struct {
		id    uint32
		ret   ret
		value float64
		_     [3]uintptr // names and unit
	}
	gpmMetricsGet struct {
		version, count   uint32
		sample1, sample2 uintptr
		metrics          [maxGPM]gpmMetric
	}
)

// version returns the tag that NVML expects in the first word of a versioned struct.
func version(size uintptr, v uint32) uint32 { return uint32(size) | v<<24 }

// naMemory is what NVML reports for an unknown amount of memory.
const naMemory = ^uint64(0)

var architectures = map[uint32]string{
	2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere",
	8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin",
}

const archHopper = 9 // the first architecture with GPM
