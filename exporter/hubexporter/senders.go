package hubexporter

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/stats"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/peer"
)

// senders are the open gRPC connections. gRPC collects a message before anyone sees it, so its
// memory is accounted for where its bytes arrive: at the connection.
type senders struct {
	net.Listener

	o  *OTLP
	mu sync.Mutex
	by map[string]*sender // by remote address
}

func (o *OTLP) newSenders(l net.Listener) *senders {
	return &senders{Listener: l, o: o, by: map[string]*sender{}}
}

// Accept implements net.Listener.
func (s *senders) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	key := c.RemoteAddr().String()
	x := &sender{Conn: c, o: s.o, peer: peer.Of(key)}
	x.gone = sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.by, key)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by[key] = x
	return x, nil
}

// sender is one connection.
type sender struct {
	net.Conn

	o    *OTLP
	peer string
	gone func()

	mu      sync.Mutex
	total   int64 // bytes received
	streams int   // requests that arrive or wait
	held    int64 // bytes of room for them
}

// framing is the approximate size of the headers and frames of a request.
const framing = 512

// Read implements net.Conn. It fails if the peer holds too much memory, which ends the
// connection: its requests are retryable.
func (x *sender) Read(p []byte) (int, error) {
	n, err := x.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.total += int64(n)
	if x.streams == 0 {
		return n, err // at most a flow control window of requests that have not begun
	}
	if full := x.o.room.Take(x.peer, int64(n)); full != nil {
		x.o.refused.Add(hub.PeerLimit, 1)
		return 0, full
	}
	x.held += int64(n)
	return n, err
}

// Close implements net.Conn.
func (x *sender) Close() error {
	x.gone()
	return x.Conn.Close()
}

// begin starts a request. The returned function ends it and gives its memory back.
func (x *sender) begin(ctx context.Context) (end func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.streams++
	return sync.OnceFunc(func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		n := x.held
		if x.streams--; x.streams > 0 {
			n = min(n, wireLength(ctx)+framing)
		}
		x.held -= n
		x.o.room.Give(x.peer, n)
	})
}

// received returns the bytes received so far.
func (x *sender) received() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.total
}

type (
	senderKey struct{}
	lengthKey struct{}
)

// length is the size of a message on the wire.
type length struct {
	mu sync.Mutex
	n  int64
}

func wireLength(ctx context.Context) int64 {
	l, _ := ctx.Value(lengthKey{}).(*length)
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// senderOf returns the connection of a request.
func senderOf(ctx context.Context) *sender { return ctx.Value(senderKey{}).(*sender) }

// peerOf returns the peer of a request.
func peerOf(ctx context.Context) string { return senderOf(ctx).peer }

var _ stats.Handler = (*senders)(nil)

// TagConn implements stats.Handler.
func (s *senders) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.by[info.RemoteAddr.String()]
	if x == nil { // closed meanwhile
		x = &sender{o: s.o}
	}
	return context.WithValue(ctx, senderKey{}, x)
}

// TagRPC implements stats.Handler.
func (*senders) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, lengthKey{}, &length{})
}

// HandleRPC implements stats.Handler.
func (*senders) HandleRPC(ctx context.Context, s stats.RPCStats) {
	in, ok := s.(*stats.InPayload)
	if !ok {
		return
	}
	if l, ok := ctx.Value(lengthKey{}).(*length); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.n += int64(in.WireLength)
	}
}

// HandleConn implements stats.Handler.
func (*senders) HandleConn(context.Context, stats.ConnStats) {}
