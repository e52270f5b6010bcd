package hubexporter

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
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
	"github.com/gpumeter/gpumeter/internal/hub/peer"
)

const (
	// maxConnections bounds open connections; further ones wait. An agent has one.
	maxConnections = 4096
	// maxOfPeer bounds the open connections of one address. Agents behind a proxy share one.
	maxOfPeer = maxConnections * 3 / 4
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
		// Messages are decompressed in their turn.
		grpc.RPCDecompressor(deferred{}), //nolint:staticcheck // the replacement is global and would affect clients in this process
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
	all := o.newSenders(peer.Listen(l, maxConnections, maxOfPeer, func() { o.refused.Add(hub.PeerLimit, 1) }))
	options = append(options, grpc.StatsHandler(all))
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
	if err := s.Serve(all); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
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

// take reads one request and answers with the result of export. Errors of the store are
// retryable.
func (o *OTLP) take(s grpc.ServerStream, q request, export func() (message, error)) error {
	body, free, err := o.receive(s)
	defer free()
	if err != nil {
		return err
	}
	answer, err := o.process(s, body, q, export)
	if err != nil {
		return err
	}
	return s.SendMsg(answer)
}

// process stores a request in its turn.
func (o *OTLP) process(s grpc.ServerStream, body []byte, q request, export func() (message, error)) (message, error) {
	done, err := o.turn(s.Context(), peerOf(s.Context()))
	if err != nil {
		return nil, rpc.Error(codes.Unavailable, err.Error())
	}
	defer done()
	if isGzip(body) {
		body, err = unzip(body)
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		o.refused.Add(hub.BodySize, 1)
		return nil, rpc.Error(codes.ResourceExhausted, fmt.Sprintf("request exceeds %d bytes", MaxBody))
	}
	if err == nil {
		err = checkProto(body)
	}
	if err == nil {
		err = q.UnmarshalProto(body)
	}
	if err != nil {
		o.refused.Add(hub.Malformed, 1)
		return nil, rpc.Error(codes.InvalidArgument, fmt.Sprintf("request is not OTLP: %.1000s", err))
	}
	answer, err := export()
	if err != nil {
		return nil, rpc.Error(codes.Unavailable, err.Error())
	}
	return answer, nil
}

// receive returns the message of a stream, which must arrive at the pace of o. If it does not,
// the goroutine ends with the stream, when the method returns. free must be called.
func (o *OTLP) receive(s grpc.ServerStream) (body []byte, free func(), err error) {
	from := senderOf(s.Context())
	free = from.begin(s.Context())
	came := make(chan error, 1)
	var text []byte
	go func() { came <- s.RecvMsg(&text) }()
	start, before := time.Now(), from.received()
	timer := time.NewTimer(o.pace.Grace)
	defer timer.Stop()
	for {
		select {
		case err := <-came:
			if rpc.Code(err) == codes.ResourceExhausted {
				o.refused.Add(hub.BodySize, 1)
			}
			return text, free, err
		case <-timer.C:
		}
		left := time.Until(o.pace.Due(start, from.received()-before))
		if left <= 0 {
			o.refused.Add(hub.BodyTimeout, 1)
			return nil, free, rpc.Error(codes.Unavailable, "the request took too long to arrive")
		}
		timer.Reset(left)
	}
}

// deferred is a decompressor that leaves messages as they are.
type deferred struct{}

// Do implements grpc.Decompressor.
func (deferred) Do(r io.Reader) ([]byte, error) { return io.ReadAll(r) }

// Type implements grpc.Decompressor.
func (deferred) Type() string { return "gzip" }

// isGzip reports whether a message is compressed. No protobuf message starts like that: wire
// type 7 does not exist.
func isGzip(body []byte) bool { return len(body) > 1 && body[0] == 0x1f && body[1] == 0x8b }

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
