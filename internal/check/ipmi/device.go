//go:build linux

package ipmi

import (
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Paths are the possible paths of the kernel's IPMI device, relative to the root.
var Paths = []string{"dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"}

// Device is the kernel's interface to the controller. It is not safe for concurrent use.
type Device struct {
	fd   int
	path string
	id   int64
}

// Open opens the first device found below root. The device file is normally accessible to
// root only.
func Open(root string) (*Device, error) {
	var err error
	for _, p := range Paths {
		path := filepath.Join(root, p)
		fd, e := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if e == nil {
			return &Device{fd: fd, path: path}, nil
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = &fs.PathError{Op: "open", Path: path, Err: e}
		}
	}
	return nil, err
}

// Close closes the device file.
func (d *Device) Close() error { return unix.Close(d.fd) }

// address is struct ipmi_system_interface_addr of linux/ipmi.h. This and the following types
// have the layout of 64-bit platforms.
type address struct {
	kind    int32
	channel int16
	lun     uint8
	_       uint8
}

type message struct {
	netfn, cmd uint8
	dataLen    uint16
	_          uint32
	data       uint64
}

type request struct {
	addr    uint64
	addrLen uint32
	_       uint32
	id      int64
	msg     message
}

type received struct {
	kind    int32
	_       uint32
	addr    uint64
	addrLen uint32
	_       uint32
	id      int64
	msg     message
}

const (
	sendCommand     = 0x8028690d // IPMICTL_SEND_COMMAND: _IOR('i', 13, 40 bytes)
	receiveMessage  = 0xc030690b // IPMICTL_RECEIVE_MSG_TRUNC: _IOWR('i', 11, 48 bytes)
	systemInterface = 0x0c
	bmcChannel      = 0xf
	response        = 1   // message type: response to our command
	maxMessage      = 272 // IPMI_MAX_MSG_LENGTH
	answerWithin    = 2 * time.Second
)

// Command sends a command to the controller and waits up to two seconds for the response.
func (d *Device) Command(netfn, cmd byte, data []byte) ([]byte, error) {
	d.id++
	deadline := time.Now().Add(answerWithin)
	var pin runtime.Pinner
	defer pin.Unpin()
	to := &address{kind: systemInterface, channel: bmcChannel}
	pin.Pin(to)
	r := &request{addr: uint64(uintptr(unsafe.Pointer(to))), addrLen: uint32(unsafe.Sizeof(*to)), id: d.id, msg: message{netfn: netfn, cmd: cmd}}
	if len(data) > 0 {
		pin.Pin(&data[0])
		r.msg.dataLen, r.msg.data = uint16(min(len(data), maxMessage)), uint64(uintptr(unsafe.Pointer(&data[0])))
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), sendCommand, uintptr(unsafe.Pointer(r))); errno != 0 {
		return nil, &fs.PathError{Op: "ask", Path: d.path, Err: errno}
	}
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return nil, &fs.PathError{Op: "wait for", Path: d.path, Err: unix.ETIMEDOUT}
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "wait for", Path: d.path, Err: err}
		}
		m, b, err := d.receive()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			time.Sleep(time.Millisecond) // poll reported a message that is not there yet; back off
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: d.path, Err: err}
		}
		if m.kind == response && m.id == d.id { // anything else is a late response to an earlier command
			return b, nil
		}
	}
}

// receive takes one message that has arrived.
func (d *Device) receive() (*received, []byte, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	from, buffer := new([64]byte), make([]byte, maxMessage)
	pin.Pin(from)
	pin.Pin(&buffer[0])
	m := &received{
		addr: uint64(uintptr(unsafe.Pointer(from))), addrLen: uint32(len(from)),
		msg: message{dataLen: maxMessage, data: uint64(uintptr(unsafe.Pointer(&buffer[0])))},
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), receiveMessage, uintptr(unsafe.Pointer(m))); errno != 0 {
		return nil, nil, errno
	}
	return m, buffer[:min(int(m.msg.dataLen), maxMessage)], nil
}
