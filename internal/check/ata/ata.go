//go:build linux

// Package ata asks a SATA disk whether it expects to fail, which changes nothing on it.
package ata

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Health is what a disk says of itself: SMART RETURN STATUS of the ATA command set.
type Health struct {
	Failing bool // a value has passed the limit that its maker set
}

// errSilent is of a sense without the registers of the disk, such as of one that is no ATA disk.
var errSilent = errors.New("the disk did not say how it is")

// Parse reads sense data, in which the kernel or a controller returns the registers of the
// disk, as descriptors or in the fixed format.
func Parse(sense []byte) (Health, error) {
	if len(sense) < 14 {
		return Health{}, errSilent
	}
	switch sense[0] & 0x7f {
	case 0x72: // descriptors: a kind, how many bytes follow, and those
		rest := sense[8:min(len(sense), 8+int(sense[7]))]
		for len(rest) >= 2 {
			n := 2 + int(rest[1])
			if n > len(rest) {
				break
			}
			if rest[0] == 0x09 && n >= 14 { // ATA status return
				return judge(rest[13], rest[9], rest[11])
			}
			rest = rest[n:]
		}
	case 0x70:
		if sense[12] == 0 && sense[13] == 0x1d { // information from an ATA disk
			return judge(sense[4], sense[10], sense[11])
		}
	}
	return Health{}, errSilent
}

// judge takes the register of the status, and the middle and the high byte of the address.
func judge(status, mid, high byte) (Health, error) {
	switch {
	case status&0x21 != 0: // an error, or a fault of the device
		return Health{}, fmt.Errorf("the disk refuses to say how it is, with status %#x", status)
	case mid == 0x4f && high == 0xc2: // as they were sent
		return Health{}, nil
	case mid == 0xf4 && high == 0x2c:
		return Health{Failing: true}, nil
	}
	return Health{}, fmt.Errorf("the disk says %02x%02xh, which means nothing", high, mid)
}

// request is struct sg_io_hdr of scsi/sg.h, where a pointer has 64 bits.
type request struct {
	id, direction                     int32
	commandLen, senseMax              uint8
	_                                 uint16
	dataLen                           uint32
	data, command, sense              uint64
	timeoutMS, flags                  uint32
	_                                 int32
	_                                 uint32
	_                                 uint64
	status, masked, message, senseLen uint8
	hostStatus, driverStatus          uint16
	rest                              int32
	duration, info                    uint32
}

const (
	sgIO   = 0x2285 // SG_IO: its number has no size in it
	noData = -1     // SG_DXFER_NONE
)

// smartStatus is ATA PASS-THROUGH (16) with SMART RETURN STATUS, which has no data: the
// answer is in the registers, which the third byte asks for.
var smartStatus = [16]byte{0: 0x85, 1: 3 << 1, 2: 1 << 5, 4: 0xda, 10: 0x4f, 12: 0xc2, 14: 0xb0}

// Read asks the disk at path, such as /dev/sda. It needs CAP_SYS_RAWIO. A disk that does not
// answer makes it wait for some seconds, or for ever.
func Read(path string) (Health, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return Health{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // it was only asked
	command, sense := smartStatus, new([64]byte)
	r := &request{
		id: 'S', direction: noData, commandLen: uint8(len(command)), senseMax: uint8(len(sense)),
		command: uint64(uintptr(unsafe.Pointer(&command))), sense: uint64(uintptr(unsafe.Pointer(sense))), timeoutMS: 3000,
	}
	var pin runtime.Pinner
	pin.Pin(&command)
	pin.Pin(sense)
	defer pin.Unpin()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), sgIO, uintptr(unsafe.Pointer(r))); errno != 0 {
		return Health{}, &fs.PathError{Op: "ask", Path: path, Err: errno}
	}
	if r.hostStatus != 0 {
		return Health{}, fmt.Errorf("%s was not reached: status %#x of its controller", path, r.hostStatus)
	}
	h, err := Parse(sense[:min(int(r.senseLen), len(sense))])
	if err != nil {
		return Health{}, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}
