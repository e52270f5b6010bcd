//go:build linux

// Package nvme reads the SMART / health log of an NVMe controller with one admin command
// ioctl. Get Log Page changes nothing on the disk. It needs CAP_SYS_ADMIN and a 64-bit
// kernel, and does not read vendor-specific log pages.
package nvme

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Health is a disk's own assessment: log page 2 of the NVMe base specification.
type Health struct {
	Warning        byte // bits; see the constants
	Celsius        int
	Spare          int // remaining spare blocks, percent
	SpareThreshold int
	Used           int // percent of the rated life; may exceed 100
	MediaErrors    uint64
}

// The bits of Warning.
const (
	SpareLow = 1 << iota
	TooHotOrCold
	Unreliable // media or internal errors
	ReadOnly
	BackupFailed // volatile memory backup
	PersistentReadOnly
)

// size of the log page in bytes.
const size = 512

// Parse parses a log page.
func Parse(b []byte) (Health, error) {
	if len(b) < size {
		return Health{}, fmt.Errorf("health log has %d bytes", len(b))
	}
	h := Health{
		Warning: b[0], Celsius: int(binary.LittleEndian.Uint16(b[1:])) - 273,
		Spare: int(b[3]), SpareThreshold: int(b[4]), Used: int(b[5]),
		MediaErrors: binary.LittleEndian.Uint64(b[160:]), // low 64 of 128 bits
	}
	if binary.LittleEndian.Uint16(b[1:]) == 0 {
		return Health{}, errors.New("health log is empty") // no disk is at 0 kelvin
	}
	return h, nil
}

// command is struct nvme_passthru_cmd of linux/nvme_ioctl.h.
type command struct {
	opcode, flags        uint8
	_                    uint16
	namespace            uint32
	_, _                 uint32 // command dwords 2 and 3
	metadata, data       uint64
	metadataLen, dataLen uint32
	dw10, dw11, dw12     uint32
	_, _, _              uint32
	timeoutMS            uint32
	result               uint32
}

const (
	adminCommand = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD: _IOWR('N', 0x41, 72 bytes)
	getLogPage   = 2
	healthPage   = 2
)

// Read queries the controller at path, such as /dev/nvme0. It needs CAP_SYS_ADMIN. If the
// controller does not answer, Read blocks for seconds or indefinitely.
func Read(path string) (Health, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return Health{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	page := make([]byte, size)
	c := &command{
		opcode: getLogPage, namespace: 0xffffffff, // the whole controller
		data: uint64(uintptr(unsafe.Pointer(&page[0]))), dataLen: size,
		dw10: (size/4-1)<<16 | healthPage, timeoutMS: 3000,
	}
	var pin runtime.Pinner
	pin.Pin(&page[0])
	defer pin.Unpin()
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), adminCommand, uintptr(unsafe.Pointer(c)))
	if errno != 0 {
		return Health{}, &fs.PathError{Op: "ask", Path: path, Err: errno}
	}
	if status != 0 {
		return Health{}, fmt.Errorf("cannot read health log of %s: status %#x", path, status)
	}
	return Parse(page)
}
