// Package kubelet queries the local kubelet's pod-resources socket for the devices
// allocated to containers, and reads pod names from the log directories that the kubelet
// keeps.
//
// The socket normally needs root, and the log directories a mount of the host's /var/log.
// Neither needs the API server. The pod-resources API knows names but no pod UIDs; owners
// and labels are not available here, see package kubeapi.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	every      = 10 * time.Second
	timeout    = 10 * time.Second // per call; an idle kubelet needs 2 to 13 ms, a loaded one several seconds
	maxBackoff = 30 * time.Second // short enough that labels return soon after the kubelet does
	maxMessage = 16 << 20         // bytes; large nodes exceed gRPC's default of 4 MiB
)

// Snapshot is the kubelet's state at one moment. It is immutable.
type Snapshot struct {
	Time        time.Time
	Allocations []Allocation // by namespace, pod, container, resource
	// Offered are the ids of all allocatable devices, by resource. It is nil if the kubelet
	// is too old to report it (before 1.23), and the previous answer if it did not answer
	// this time.
	Offered    map[string][]string
	OfferedErr error // why Offered is not current
	Refused    int   // containers and devices rejected for exceeding limits
}

// Client queries one kubelet. Its methods are safe for concurrent use.
type Client struct {
	socket  string
	every   time.Duration
	timeout time.Duration
	last    atomic.Pointer[result]
	now     chan struct{} // unbuffered: only a waiting Run is woken
}

// result is the outcome of the latest attempt.
type result struct {
	snapshot Snapshot
	ok       bool // there is a snapshot, from this attempt or an earlier one
	err      error
}

// ErrNotAsked is the error of a Client before its first query.
var ErrNotAsked = errors.New("the kubelet has not been queried yet")

// Option configures a Client.
type Option func(*Client)

// Every sets the time between two queries; the default is 10 s.
func Every(d time.Duration) Option { return func(c *Client) { c.every = d } }

// Timeout sets how long one call may take; the default is 10 s. Nothing waits for a call: until it
// returns, the last snapshot is current.
func Timeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// New returns a Client of the kubelet at socket, normally
// /var/lib/kubelet/pod-resources/kubelet.sock. It sends nothing before Run or Refresh.
func New(socket string, opts ...Option) *Client {
	c := &Client{socket: socket, every: every, timeout: timeout, now: make(chan struct{})}
	for _, o := range opts {
		o(c)
	}
	c.last.Store(&result{err: ErrNotAsked})
	return c
}

// Run queries the kubelet periodically until ctx is done, backing off while the kubelet
// does not answer. It returns nil.
func (c *Client) Run(ctx context.Context) error {
	backoff := c.every
	for {
		wait := c.every
		if err := c.Refresh(ctx); err == nil {
			backoff = c.every
		} else {
			wait = backoff
			backoff = max(c.every, min(2*backoff, maxBackoff))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.now:
		case <-time.After(wait):
		}
	}
}

// Ask makes Run query now, unless a query is in progress. It does not block.
func (c *Client) Ask() {
	select {
	case c.now <- struct{}{}:
	default:
	}
}

// Last returns the last snapshot, whether there is one, and the error of the latest
// attempt, nil if it succeeded. It does not block. The error is fs.ErrNotExist if there is
// no socket, fs.ErrPermission if it may not be used, and context.DeadlineExceeded if the
// kubelet hangs.
func (c *Client) Last() (s Snapshot, ok bool, err error) {
	r := c.last.Load()
	return r.snapshot, r.ok, r.err
}

// Refresh queries the kubelet once. After an error the previous snapshot is kept.
func (c *Client) Refresh(ctx context.Context) error {
	before := c.last.Load()
	s, err := c.ask(ctx, before.snapshot)
	if err != nil {
		if ctx.Err() == nil { // otherwise the caller gave up, not the kubelet
			c.last.Store(&result{before.snapshot, before.ok, err})
		}
		return err
	}
	c.last.Store(&result{s, true, nil})
	return nil
}

// ask opens a new connection. That costs well under a millisecond, and avoids having to
// detect that the kubelet was replaced behind an old connection.
func (c *Client) ask(ctx context.Context, before Snapshot) (Snapshot, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	defer func() { _ = conn.Close() }() // opened for these calls only
	client := podresources.NewPodResourcesListerClient(conn)

	list, err := call(ctx, c.timeout, client.List, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return Snapshot{}, fmt.Errorf("cannot list the kubelet's pod resources: %w", err)
	}
	s := Snapshot{Time: time.Now()}
	s.Allocations, s.Refused = convert(list)

	all, err := call(ctx, c.timeout, client.GetAllocatableResources, &podresources.AllocatableResourcesRequest{})
	switch {
	case err == nil:
		var refused int
		s.Offered, refused = offered(all)
		s.Refused += refused
	case status.Code(err) == codes.Unimplemented:
	case ctx.Err() != nil: // the caller gave up, not the kubelet
		return Snapshot{}, ctx.Err()
	default:
		s.Offered, s.OfferedErr = before.Offered, fmt.Errorf("cannot list the kubelet's allocatable resources: %w", err)
	}
	return s, nil
}

// connect dials by itself instead of leaving it to gRPC, whose errors are plain texts: a
// missing kubelet and a lack of permission must be distinguishable.
func (c *Client) connect(ctx context.Context) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	socket, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if errors.Is(err, syscall.EAGAIN) { // a stopped process does not accept, so connections queue up
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the kubelet's pod-resources socket: %w", err)
	}
	var used atomic.Bool
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, net.ErrClosed
			}
			return socket, nil
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0))
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("cannot connect to the kubelet's pod-resources socket: %w", err)
	}
	return conn, nil
}

// call calls f, and converts deadline and cancellation errors to those of package context.
func call[Q, A any](ctx context.Context, limit time.Duration, f func(context.Context, Q, ...grpc.CallOption) (A, error), question Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := f(ctx, question)
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		err = fmt.Errorf("%w after %v", context.DeadlineExceeded, limit)
	case codes.Canceled:
		err = fmt.Errorf("%w: %w", context.Canceled, err)
	}
	return answer, err
}
