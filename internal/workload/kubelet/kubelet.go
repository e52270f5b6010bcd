// Package kubelet asks the kubelet of this machine which devices it gave to which
// containers, over its pod-resources socket, and reads the names of pods from the log
// folders that it keeps. Neither needs the API server.
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
	timeout    = 2 * time.Second  // of one call; an idle kubelet needs 2 to 13 ms
	maxBackoff = 30 * time.Second // so that labels are back soon after the kubelet
	maxMessage = 16 << 20         // bytes; gRPC's own limit of 4 MiB is reached by large nodes
)

// Snapshot is what the kubelet said at one moment. Nobody changes one.
type Snapshot struct {
	Time        time.Time
	Allocations []Allocation // by namespace, pod, container, resource
	// Offered are the ids of all devices that can be given out, by resource. It is nil
	// where the kubelet is too old to be asked (before 1.23), and what it said last where
	// it did not answer this time.
	Offered    map[string][]string
	OfferedErr error // why Offered is not of this time
	Refused    int   // containers and devices beyond the limits
}

// Client asks one kubelet. Its methods may be called concurrently.
type Client struct {
	socket  string
	every   time.Duration
	timeout time.Duration
	last    atomic.Pointer[result]
	now     chan struct{} // has no room: only who waits is woken
}

// result is the outcome of the latest attempt.
type result struct {
	snapshot Snapshot
	ok       bool // there is a snapshot, of this attempt or of one before
	err      error
}

// ErrNotAsked is the error of a Client that has not asked yet.
var ErrNotAsked = errors.New("the kubelet was not asked yet")

// Option changes a Client.
type Option func(*Client)

// Every sets the time between two questions, 10 s if it is not set.
func Every(d time.Duration) Option { return func(c *Client) { c.every = d } }

// Timeout sets how long one call may take, 2 s if it is not set.
func Timeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// New returns a Client of the kubelet at socket, normally
// /var/lib/kubelet/pod-resources/kubelet.sock. It asks nothing before Run or Refresh.
func New(socket string, opts ...Option) *Client {
	c := &Client{socket: socket, every: every, timeout: timeout, now: make(chan struct{})}
	for _, o := range opts {
		o(c)
	}
	c.last.Store(&result{err: ErrNotAsked})
	return c
}

// Run asks again and again until ctx is done, less often while the kubelet does not
// answer. It returns nil.
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

// Ask makes Run ask now, unless it asks already. It does not wait.
func (c *Client) Ask() {
	select {
	case c.now <- struct{}{}:
	default:
	}
}

// Last returns what the kubelet said last, whether it said anything yet, and the error
// of the latest attempt, nil if that succeeded. It does not wait. The error is
// fs.ErrNotExist without a socket, fs.ErrPermission where it may not be used, and
// context.DeadlineExceeded if the kubelet hangs.
func (c *Client) Last() (s Snapshot, ok bool, err error) {
	r := c.last.Load()
	return r.snapshot, r.ok, r.err
}

// Refresh asks once. After an error the snapshot before stays.
func (c *Client) Refresh(ctx context.Context) error {
	before := c.last.Load()
	s, err := c.ask(ctx, before.snapshot)
	if err != nil {
		if ctx.Err() == nil { // else it is ours, not the kubelet's
			c.last.Store(&result{before.snapshot, before.ok, err})
		}
		return err
	}
	c.last.Store(&result{s, true, nil})
	return nil
}

// ask opens a connection of its own. That costs well under a millisecond, and nothing
// has to find out that the kubelet was replaced behind an old one.
func (c *Client) ask(ctx context.Context, before Snapshot) (Snapshot, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	defer func() { _ = conn.Close() }() // it was opened for these calls only
	client := podresources.NewPodResourcesListerClient(conn)

	list, err := call(ctx, c.timeout, client.List, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return Snapshot{}, fmt.Errorf("the kubelet's list of pod resources: %w", err)
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
	case ctx.Err() != nil: // ours, not the kubelet's
		return Snapshot{}, ctx.Err()
	default:
		s.Offered, s.OfferedErr = before.Offered, fmt.Errorf("the kubelet's allocatable resources: %w", err)
	}
	return s, nil
}

// connect dials here and not in gRPC, whose errors are texts: people have to be told
// apart that there is no kubelet and that they may not ask it.
func (c *Client) connect(ctx context.Context) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	socket, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if errors.Is(err, syscall.EAGAIN) { // connections queue up at a process that is stopped
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	if err != nil {
		return nil, fmt.Errorf("the kubelet's pod-resources socket: %w", err)
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
		return nil, fmt.Errorf("the kubelet's pod-resources socket: %w", err)
	}
	return conn, nil
}

// call calls f, and makes the error of a deadline one that errors.Is knows.
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
