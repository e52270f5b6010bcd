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

// ownNet is the network namespace of the calling thread.
const ownNet = "/proc/thread-self/ns/net"

var errNotPermitted = errors.New("entering the network of another container needs CAP_SYS_ADMIN")

// dialIn connects to a port on the loopback interface of the network namespace at path,
// which must still be the namespace that was found.
func dialIn(ctx context.Context, path string, found os.FileInfo, port uint16) (net.Conn, error) {
	own, err := os.Stat(ownNet)
	if err != nil {
		return nil, fmt.Errorf("cannot stat the agent's network namespace: %w", err)
	}
	if os.SameFile(own, found) {
		return dialHere(ctx, port)
	}
	space, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open its network namespace: %w", err)
	}
	defer space.Close()
	now, err := space.Stat()
	if err != nil || !os.SameFile(now, found) {
		return nil, errors.New("its network namespace has changed")
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

// plain strips details that vary between attempts from err.
func plain(err error, port uint16) error {
	if number, ok := errors.AsType[unix.Errno](err); ok {
		return fmt.Errorf("port %d: %s", port, number.Error())
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("port %d: no answer in time", port)
	}
	return err
}

// dialSocket connects a socket in the namespace. A socket stays in the namespace that it
// was created in, whichever thread uses it.
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
	defer f.Close() // net.FileConn duplicates the descriptor
	if err := connect(ctx, fd, to); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// socketIn creates a socket in the namespace. Only the thread of one goroutine enters the
// namespace, for this one call. A thread that cannot return stays locked when its goroutine
// ends, so the runtime terminates it and nothing else runs on it.
func socketIn(space, family int, setns func(fd, kind int) error) (fd int, err error) {
	onThread(func() (clean bool) {
		fd, clean, err = socketOnThread(space, family, setns)
		return clean
	})
	return fd, err
}

// onThread runs f on its own thread, and terminates the thread unless f reports that it is
// clean. It never uses the first thread of the process: the runtime cannot terminate that
// one, and other processes see its namespaces as the process's.
func onThread(f func() (clean bool)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThread(f) // on another thread, because this one stays locked meanwhile
			runtime.UnlockOSThread()
			return
		}
		if f() {
			runtime.UnlockOSThread()
		}
	}()
	<-done
}

// socketOnThread creates the socket on the current thread, which must be locked, and
// reports whether the thread is back in its own namespace.
func socketOnThread(space, family int, setns func(fd, kind int) error) (fd int, back bool, err error) {
	own, err := unix.Open(ownNet, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, true, fmt.Errorf("cannot open the agent's network namespace: %w", err)
	}
	defer func() { _ = unix.Close(own) }() // read-only: nothing to flush
	if err := setns(space, unix.CLONE_NEWNET); err != nil {
		if errors.Is(err, unix.EPERM) {
			err = errNotPermitted
		}
		return -1, true, err
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if back := setns(own, unix.CLONE_NEWNET); back != nil {
		if err == nil {
			_ = unix.Close(fd) // unused
		}
		return -1, false, fmt.Errorf("cannot leave its network namespace: %w", back)
	}
	return fd, true, err
}

// connect connects a non-blocking socket, until ctx ends.
func connect(ctx context.Context, fd int, to unix.Sockaddr) error {
	err := unix.Connect(fd, to)
	if err == nil || !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		const slice = 50 * time.Millisecond // how quickly the end of ctx is noticed
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
