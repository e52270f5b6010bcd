//go:build linux

package tpu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// service is the location of one process's metric service.
type service struct {
	key     serviceKey
	netns   string      // file of the network namespace
	net     os.FileInfo // of that file when it was found
	owned   bool        // the process itself listens at the port
	chips   int         // number of chips that the process has open
	perChip int
}

type serviceKey struct {
	pid   uint32
	port  uint16
	chips int
	inode uint64 // of the network namespace
}

func inode(f os.FileInfo) uint64 {
	if st, ok := f.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// Limits of the service's answers. An answer for 8 chips is a few kB.
const (
	maxMessage = 1 << 20
	maxHeader  = 64 << 10
	listEvery  = time.Minute
)

const methods = "/tpu.monitoring.runtime.RuntimeMetricService/"

// client queries one service. It is used by one goroutine.
type client struct {
	*service
	conn      *grpc.ClientConn
	broken    error // why conn is nil
	supported []string
	listed    time.Time

	mu     sync.Mutex // grpc dials in its own goroutines
	dialed error
}

func (s *service) dial() *client {
	c := &client{service: s}
	c.conn, c.broken = grpc.NewClient("passthrough:///tpu-runtime",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the connection never leaves the machine
		grpc.WithContextDialer(c.connect),
		grpc.WithNoProxy(),
		grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: retryGap},
			MinConnectTimeout: pollLimit,
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(maxMessage)))
	return c
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close() // nothing was written
	}
}

// connect dials the service for grpc: at the port on the loopback interface of its network
// namespace.
func (c *client) connect(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := dialIn(ctx, c.netns, c.net, c.key.port)
	c.mu.Lock()
	c.dialed = err
	c.mu.Unlock()
	return conn, err
}

// fetch requests every supported metric. Metrics that were answered are in the report even
// if others failed.
func (c *client) fetch(ctx context.Context) (report, error) {
	if c.broken != nil {
		return report{}, empty{c.broken}
	}
	if c.listed.IsZero() || time.Since(c.listed) >= listEvery {
		names, err := c.list(ctx)
		if err != nil {
			return report{}, empty{err}
		}
		c.supported, c.listed = names, time.Now()
	}
	r := newReporter(c.chips, c.perChip)
	r.report.unknown = unknown(c.supported)
	var errs []error
	for _, name := range metrics {
		if !slices.Contains(c.supported, name) {
			continue
		}
		answer, err := c.call(ctx, "GetRuntimeMetric", protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name))
		if notSupported(err) {
			continue
		}
		if err == nil {
			var entries []entry
			if entries, err = parseMetric(answer); err == nil {
				err = r.add(name, entries)
			}
		} else if ctx.Err() != nil || status.Code(err) == codes.Unavailable {
			errs = append(errs, c.explain(err))
			break // the remaining metrics would fail the same way
		} else {
			err = c.explain(err)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		r.report.asked++
	}
	rep, err := r.finish()
	err = errors.Join(append(errs, err)...)
	if err != nil && rep.asked == 0 {
		err = empty{err}
	}
	return rep, err
}

// list requests the names of the supported metrics. A libtpu without this method has the
// basic ones.
func (c *client) list(ctx context.Context) ([]string, error) {
	b, err := c.call(ctx, "ListSupportedMetrics", nil)
	if notSupported(err) {
		return basicMetrics, nil
	}
	if err != nil {
		return nil, c.explain(err)
	}
	names, err := parseSupported(b)
	if err != nil {
		return nil, fmt.Errorf("list of metrics: %w", err)
	}
	return names, nil
}

func (c *client) call(ctx context.Context, method string, request []byte) ([]byte, error) {
	var answer []byte
	err := c.conn.Invoke(ctx, methods+method, &request, &answer)
	return answer, err
}

func notSupported(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.Unimplemented:
		return true
	}
	return false
}

// explain describes an error in words that do not vary while it persists: the ports and
// times in grpc's own texts would make each attempt look like a new problem. It never
// returns a context error: a slow service does not mean that the device is down.
func (c *client) explain(err error) error {
	switch s := status.Convert(err); s.Code() {
	case codes.DeadlineExceeded, codes.Canceled:
		return errors.New("its metric service does not answer in time")
	case codes.Unavailable:
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.dialed != nil {
			return fmt.Errorf("cannot reach its metric service: %s", c.dialed.Error())
		}
		return errors.New("its metric service ends the connection")
	case codes.ResourceExhausted:
		return errTooMany
	default:
		return fmt.Errorf("its metric service answers %s: %s", s.Code(), label(s.Message(), 200))
	}
}

// empty is an error without any value next to it.
type empty struct{ error }

func (e empty) Unwrap() error { return e.error }

func isEmpty(err error) bool {
	var e empty
	return errors.As(err, &e)
}

// raw is a codec that passes messages through as they are on the wire.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("cannot send a %T", v)
	}
	return *b, nil
}

func (raw) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("cannot receive a %T", v)
	}
	*b = append([]byte(nil), data...)
	return nil
}
