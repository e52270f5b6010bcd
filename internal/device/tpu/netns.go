//go:build linux

package tpu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// ownNet is our network namespace, of the thread that looks.
const ownNet = "/proc/thread-self/ns/net"

var errNotPermitted = errors.New("entering the network of another container needs CAP_SYS_ADMIN")

// dialIn connects to a port of the loopback interface in the network namespace at path,
// which must still be the one that was found.
func dialIn(ctx context.Context, path string, found os.FileInfo, port uint16) (net.Conn, error) {
	own, err := os.Stat(ownNet)
	if err != nil {
		return nil, fmt.Errorf("cannot see our own network: %w", err)
	}
	if os.SameFile(own, found) {
		return dialHere(ctx, port)
	}
	space, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open its network: %w", err)
	}
	defer space.Close()
	now, err := space.Stat()
	if err != nil || !os.SameFile(now, found) {
		return nil, errors.New("its network is another one by now")
	}
	var errs []error
	for _, to := range []unix.Sockaddr{
		&unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}},
		&unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}},
	} {
		conn, err := dialSocket(ctx, int(space.Fd()), to)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if errors.Is(err, errNotPermitted) {
			break
		}
	}
	return nil, plain(errs[0], port)
}

func dialHere(ctx context.Context, port uint16) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		return conn, nil
	}
	if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("[::1]:%d", port)); err == nil {
		return conn, nil
	}
	return nil, plain(err, port)
}

// plain returns err without what is different each time.
func plain(err error, port uint16) error {
	if number, ok := errors.AsType[unix.Errno](err); ok {
		return fmt.Errorf("port %d: %s", port, number.Error())
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("port %d: it does not answer in time", port)
	}
	return err
}

// dialSocket connects a socket of the namespace. A socket stays in the namespace that it
// was made in, whichever thread uses it.
func dialSocket(ctx context.Context, space int, to unix.Sockaddr) (net.Conn, error) {
	family := unix.AF_INET
	if _, ok := to.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	fd, err := socketIn(space, family, unix.Setns)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "tpu runtime")
	defer f.Close() // net.FileConn makes its own
	if err := connect(ctx, fd, to); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// socketIn makes a socket in the namespace. Only the thread of one goroutine enters it, for
// the one call; a thread that cannot go back is given up with its goroutine: the runtime
// ends a thread that is still locked then, and nobody else runs on it.
func socketIn(space, family int, setns func(fd, kind int) error) (fd int, err error) {
	onThread(func() (clean bool) {
		fd, clean, err = socketOnThread(space, family, setns)
		return clean
	})
	return fd, err
}

// onThread runs f on a thread of its own, and ends the thread unless f says that it is
// clean. It is never the first thread of the process, which the runtime cannot end, and
// whose namespaces are those that others see of us.
func onThread(f func() (clean bool)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThread(f) // on another one, as this one is taken meanwhile
			runtime.UnlockOSThread()
			return
		}
		if f() {
			runtime.UnlockOSThread()
		}
	}()
	<-done
}

// socketOnThread does it on this thread, which must be locked, and reports whether the
// thread is back where it was.
func socketOnThread(space, family int, setns func(fd, kind int) error) (fd int, back bool, err error) {
	own, err := unix.Open(ownNet, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, true, fmt.Errorf("cannot open our own network: %w", err)
	}
	defer func() { _ = unix.Close(own) }() // it was only read
	if err := setns(space, unix.CLONE_NEWNET); err != nil {
		if errors.Is(err, unix.EPERM) {
			err = errNotPermitted
		}
		return -1, true, err
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if back := setns(own, unix.CLONE_NEWNET); back != nil {
		if err == nil {
			_ = unix.Close(fd) // it was not used
		}
		return -1, false, fmt.Errorf("cannot leave its network again: %w", back)
	}
	return fd, true, err
}

// connect connects a socket that does not block, until ctx ends.
func connect(ctx context.Context, fd int, to unix.Sockaddr) error {
	err := unix.Connect(fd, to)
	if err == nil || !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		const slice = 50 * time.Millisecond // so that the end of ctx is seen
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(poll, int(slice.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR) || err == nil && n == 0:
			continue
		case err != nil:
			return err
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return err
		}
		if code != 0 {
			return unix.Errno(code)
		}
		return nil
	}
}
