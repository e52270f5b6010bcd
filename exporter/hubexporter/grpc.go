package hubexporter

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip" // agents send gzip
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	rpc "google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
)

const (
	// maxConnections bounds open connections; further ones wait. An agent has one.
	maxConnections = 4096
	// bodyTime is how long a request may take to arrive after its turn began.
	bodyTime = time.Minute
)

// Serve accepts OTLP over gRPC from l until ctx is done. tokens says who may send; nil means
// everyone.
func (o *OTLP) Serve(ctx context.Context, l net.Listener, conf *tls.Config, tokens *access.Tokens) error {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxBody),
		grpc.MaxHeaderListSize(64 << 10),
		grpc.MaxConcurrentStreams(2 * maxRequests),
		// Flow control window; it does not grow automatically.
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(4 * window),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 10 * time.Minute, Time: time.Minute}),
		grpc.ForceServerCodecV2(codec{}),
		// Reject before the message is read, so unauthorized senders cost no memory.
		grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
			_, err := o.authorize(info.Header, tokens)
			return ctx, err
		}),
		// Also defense in depth, in case the tap handle changes in a later version.
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			head, _ := metadata.FromIncomingContext(s.Context())
			g, err := o.authorize(head, tokens)
			if err != nil {
				return err
			}
			return next(srv, boundStream{s, access.WithBindings(s.Context(), g.Bound)})
		}),
	}
	if conf != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(conf)))
	}
	s := grpc.NewServer(options...)
	s.RegisterService(service("metrics.v1.MetricsService", func(s grpc.ServerStream) error {
		q := pmetricotlp.NewExportRequest()
		return o.take(s, q, func() (message, error) { return o.metrics(s.Context(), q) })
	}), nil)
	s.RegisterService(service("logs.v1.LogsService", func(s grpc.ServerStream) error {
		q := plogotlp.NewExportRequest()
		return o.take(s, q, func() (message, error) { return o.logs(s.Context(), q) })
	}), nil)
	stop := context.AfterFunc(ctx, func() {
		// Let writes in progress finish; do not wait for idle senders.
		timer := time.AfterFunc(5*time.Second, s.Stop)
		s.GracefulStop()
		timer.Stop()
	})
	defer stop()
	if err := s.Serve(newFewer(l, maxConnections)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

const window = 256 << 10

// service describes one OTLP service. Its method is registered as a stream, which is
// compatible on the wire: for a unary method gRPC would read and decode the message before
// the handler can check for capacity.
func service(name string, export func(grpc.ServerStream) error) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "opentelemetry.proto.collector." + name,
		Streams:     []grpc.StreamDesc{{StreamName: "Export", Handler: func(_ any, s grpc.ServerStream) error { return export(s) }}},
	}
}

// boundStream is a stream whose context has the bindings of its sender.
type boundStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // grpc.ServerStream is defined so
}

// Context implements grpc.ServerStream.
func (s boundStream) Context() context.Context { return s.ctx }

func (o *OTLP) authorize(head metadata.MD, tokens *access.Tokens) (access.Grant, error) {
	if tokens == nil {
		return access.Grant{Write: true}, nil
	}
	secret := ""
	if list := head.Get("authorization"); len(list) == 1 {
		scheme, rest, _ := strings.Cut(list[0], " ")
		if strings.EqualFold(scheme, "Bearer") {
			secret = strings.TrimSpace(rest)
		}
	}
	g, ok := tokens.Grant(secret)
	switch {
	case !ok:
		o.refused.Add(hub.Unauthorized, 1)
		return g, rpc.Error(codes.Unauthenticated, "token required: authorization: Bearer TOKEN")
	case !g.Write:
		o.refused.Add(hub.Forbidden, 1)
		return g, rpc.Error(codes.PermissionDenied, "this token may only read")
	default:
		return g, nil
	}
}

// take reads one request in its turn and answers with the result of export. Errors of the
// store are retryable.
func (o *OTLP) take(s grpc.ServerStream, q request, export func() (message, error)) error {
	done, err := o.turn(s.Context())
	if err != nil {
		return rpc.Error(codes.Unavailable, err.Error())
	}
	defer done()
	body, err := o.receive(s)
	if err != nil {
		return err
	}
	if err = checkProto(body); err == nil {
		err = q.UnmarshalProto(body)
	}
	if err != nil {
		o.refused.Add(hub.Malformed, 1)
		return rpc.Error(codes.InvalidArgument, fmt.Sprintf("request is not OTLP: %.1000s", err))
	}
	answer, err := export()
	if err != nil {
		return rpc.Error(codes.Unavailable, err.Error())
	}
	return s.SendMsg(answer)
}

// receive returns the message of a stream. If none arrives, the goroutine ends with the
// stream, when the method returns.
func (o *OTLP) receive(s grpc.ServerStream) ([]byte, error) {
	var body []byte
	came := make(chan error, 1)
	go func() { came <- s.RecvMsg(&body) }()
	timer := time.NewTimer(o.bodyTime)
	defer timer.Stop()
	select {
	case err := <-came:
		if rpc.Code(err) == codes.ResourceExhausted {
			o.refused.Add(hub.BodySize, 1)
		}
		return body, err
	case <-timer.C:
		o.refused.Add(hub.BodyTimeout, 1)
		return nil, rpc.Error(codes.Unavailable, "the request took too long to arrive")
	}
}

// codec passes bytes through; they are decoded after the checks.
type codec struct{}

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", v)
	}
	text, err := m.MarshalProto()
	return mem.BufferSlice{mem.SliceBuffer(text)}, err
}

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%T is not bytes", v)
	}
	*b = data.Materialize()
	return nil
}

// fewer is a listener with a limited number of connections.
type fewer struct {
	net.Listener

	room   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newFewer(l net.Listener, n int) *fewer {
	return &fewer{Listener: l, room: make(chan struct{}, n), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (f *fewer) Accept() (net.Conn, error) {
	select {
	case f.room <- struct{}{}:
	case <-f.closed:
		return nil, net.ErrClosed
	}
	c, err := f.Listener.Accept()
	if err != nil {
		<-f.room
		return nil, err
	}
	return &counted{Conn: c, gone: sync.OnceFunc(func() { <-f.room })}, nil
}

// Close implements net.Listener.
func (f *fewer) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.Listener.Close()
}

type counted struct {
	net.Conn

	gone func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.gone()
	return c.Conn.Close()
}
