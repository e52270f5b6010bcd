package discover

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// endpoint is a listening socket of a process, and the way to it.
type endpoint struct {
	proc      string
	pid       uint32
	start     uint64 // of the process, in clock ticks since boot
	namespace uint64
	address   netip.AddrPort
	timeout   time.Duration
	enter     func(namespace int) error // of the calling thread
	// gone is set once the process is found to have ended.
	gone atomic.Bool
}

// errGone reports that the process has ended. Whoever has its pid now is not asked.
var errGone = errors.New("the process has ended")

// unreachableError reports a socket that no connection can be made to.
type unreachableError struct {
	reason string // one of a few
	err    error
}

func (e *unreachableError) Error() string {
	if e.err == nil {
		return e.reason
	}
	return e.reason + ": " + e.err.Error()
}

func (e *unreachableError) Unwrap() error { return e.err }

// Reasons why a socket is unreachable.
const (
	notPermitted = "entering the network namespace of another process needs CAP_SYS_ADMIN and CAP_SYS_PTRACE"
	needsZone    = "the address is valid only together with a network interface"
	noNamespace  = "the network namespace cannot be entered"
)

// transport returns a transport with connections to the endpoint only, wherever a URL points.
func (e *endpoint) transport() *http.Transport {
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx) },
		MaxConnsPerHost:        1,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		// The connection is to a socket of a known process of this machine, which no certificate could make surer, and
		// nothing secret is sent. Pods sign their certificates themselves.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
}

// dial connects to the endpoint, in the network namespace of its process.
func (e *endpoint) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout) // the transport goes on after its request has given up
	defer cancel()
	if err := e.alive(); err != nil {
		return nil, err
	}
	if e.address.Addr().IsLinkLocalUnicast() && e.address.Addr().Is6() {
		return nil, &unreachableError{reason: needsZone}
	}
	near, err := e.near()
	if err != nil {
		return nil, err
	}
	if near {
		return connect(ctx, e.local())
	}
	conn, err := e.dialInside(ctx)
	if _, ok := errors.AsType[*unreachableError](err); !ok {
		return conn, err
	}
	outside := e.outside()
	if len(outside) == 0 {
		return nil, err
	}
	return connect(ctx, outside[:min(len(outside), maxDials)])
}

// near reports whether the socket is in the network namespace of the agent.
func (e *endpoint) near() (bool, error) {
	own, err := os.Readlink("/proc/self/ns/net") // not of a procfs that belongs to another machine or namespace
	if err != nil {
		return false, fmt.Errorf("cannot read the agent's network namespace: %w", err)
	}
	inode, ok := parseNamespace(own)
	return ok && inode == e.namespace, nil
}

// reached returns the addresses at which the agent, or anyone in its network namespace, can reach the socket.
func (e *endpoint) reached() []netip.AddrPort {
	near, err := e.near()
	if err != nil || !near {
		return e.outside()
	}
	if !e.address.Addr().IsUnspecified() {
		return e.local()
	}
	return append(e.local(), e.outside()...)
}

// alive returns errGone if the process has ended.
func (e *endpoint) alive() error {
	s, err := readStat(e.proc, e.pid)
	if err != nil && !ended(err) {
		return fmt.Errorf("cannot find out whether process %d is the same: %w", e.pid, err)
	}
	if err != nil || s.ended || s.start != e.start {
		e.gone.Store(true)
		return errGone
	}
	return nil
}

// local returns the addresses of the socket in its own network namespace.
func (e *endpoint) local() []netip.AddrPort {
	ip, port := e.address.Addr(), e.address.Port()
	four, six := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	switch {
	case !ip.IsUnspecified():
		return []netip.AddrPort{e.address}
	case ip.Is4():
		return []netip.AddrPort{netip.AddrPortFrom(four, port)}
	}
	return []netip.AddrPort{netip.AddrPortFrom(six, port), netip.AddrPortFrom(four, port)}
}

// maxDials bounds the addresses at which a socket in another network is tried.
const maxDials = 4

// outside returns the addresses at which the socket can be reached from other network namespaces.
func (e *endpoint) outside() []netip.AddrPort {
	p := processes{proc: e.proc}
	var own []netip.Addr
	if b, err := readFile(p.path(e.pid, "net/fib_trie")); err == nil {
		own = parseTrie(b)
	}
	if b, err := readFile(p.path(e.pid, "net/if_inet6")); err == nil {
		own = append(own, parseInet6(b)...)
	}
	ip := e.address.Addr()
	var out []netip.AddrPort
	for _, a := range own {
		if ip == a || ip.IsUnspecified() && (ip.Is6() || a.Is4()) {
			out = append(out, netip.AddrPortFrom(a, e.address.Port()))
		}
	}
	if e.alive() != nil {
		return nil // the addresses are those of another process
	}
	return out
}

// connect connects to the first of several addresses that can be connected to.
func connect(ctx context.Context, to []netip.AddrPort) (net.Conn, error) {
	var errs []error
	for _, a := range to {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.String())
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// dialInside connects in the network namespace of the process.
func (e *endpoint) dialInside(ctx context.Context) (net.Conn, error) {
	p := processes{proc: e.proc}
	space, err := os.Open(p.path(e.pid, "ns/net"))
	if err != nil {
		return nil, unreachable(err)
	}
	defer space.Close()
	// The file is of the process that was found only if that has not ended by now.
	if err := e.alive(); err != nil {
		return nil, err
	}
	var info unix.Stat_t
	if err := unix.Fstat(int(space.Fd()), &info); err != nil || info.Ino != e.namespace {
		return nil, &unreachableError{noNamespace, errors.New("it has changed")}
	}
	var conn net.Conn
	onThread(func() {
		if err = e.enter(int(space.Fd())); err != nil {
			err = unreachable(err)
			return
		}
		// A single literal address is dialed on the calling thread. A socket stays in the namespace it
		// was created in.
		for _, a := range e.local() {
			if conn, err = connect(ctx, []netip.AddrPort{a}); err == nil {
				return
			}
		}
	})
	return conn, err
}

func unreachable(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return &unreachableError{notPermitted, err}
	}
	return &unreachableError{noNamespace, err}
}

// enter moves the calling thread into a network namespace.
func enter(namespace int) error { return unix.Setns(namespace, unix.CLONE_NEWNET) }

// onThread runs f on a thread that ends with it, because f leaves it in another network namespace. It never
// uses the first thread of the process: the runtime cannot end that one, and other processes see its
// namespaces as the process's.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThread(f) // on another thread, because this one stays locked meanwhile
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

// url returns the address of the endpoint, as its process sees it.
func (e *endpoint) url(scheme string) *url.URL {
	return &url.URL{Scheme: scheme, Host: e.local()[0].String()}
}
