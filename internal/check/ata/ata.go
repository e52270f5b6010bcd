//go:build linux

// Package ata queries the SMART status of a SATA disk with one SG_IO ioctl carrying ATA
// PASS-THROUGH(16). The command reads the status and changes nothing on the disk. It needs
// CAP_SYS_RAWIO and a 64-bit kernel, and reads no SMART attributes, which have no standard
// meaning.
package ata

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Health is a disk's own assessment: SMART RETURN STATUS of the ATA command set.
type Health struct {
	Failing bool // an attribute exceeded the vendor's threshold
}

// errSilent means that the sense data lacks the disk's registers, as with a non-ATA device.
var errSilent = errors.New("the disk returned no SMART status")

// Parse parses sense data, in which the kernel or a controller returns the disk's registers,
// in descriptor or fixed format.
func Parse(sense []byte) (Health, error) {
	if len(sense) < 14 {
		return Health{}, errSilent
	}
	switch sense[0] & 0x7f {
	case 0x72: // descriptor format: type, length, data
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
		if sense[12] == 0 && sense[13] == 0x1d { // ATA pass-through information available
			return judge(sense[4], sense[10], sense[11])
		}
	}
	return Health{}, errSilent
}

// judge takes the status register and the middle and high bytes of the LBA.
func judge(status, mid, high byte) (Health, error) {
	switch {
	case status&0x21 != 0: // error or device fault
		return Health{}, fmt.Errorf("the disk rejected SMART RETURN STATUS with status %#x", status)
	case mid == 0x4f && high == 0xc2: // unchanged: no threshold exceeded
		return Health{}, nil
	case mid == 0xf4 && high == 0x2c:
		return Health{Failing: true}, nil
	}
	return Health{}, fmt.Errorf("unexpected SMART status %02x%02xh", high, mid)
}

// request is struct sg_io_hdr of scsi/sg.h on 64-bit platforms.
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
	sgIO   = 0x2285 // SG_IO; the number does not encode the size
	noData = -1     // SG_DXFER_NONE
)

// smartStatus is ATA PASS-THROUGH (16) with SMART RETURN STATUS. The command transfers no
// data; byte 2 requests the registers that hold the answer.
var smartStatus = [16]byte{0: 0x85, 1: 3 << 1, 2: 1 << 5, 4: 0xda, 10: 0x4f, 12: 0xc2, 14: 0xb0}

// Read queries the disk at path, such as /dev/sda. It needs CAP_SYS_RAWIO. If the disk does
// not answer, Read blocks for seconds or indefinitely.
func Read(path string) (Health, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return Health{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
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
		return Health{}, fmt.Errorf("cannot reach %s: controller status %#x", path, r.hostStatus)
	}
	h, err := Parse(sense[:min(int(r.senseLen), len(sense))])
	if err != nil {
		return Health{}, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}
