package sender

import (
	"context"
	"net"
	"net/netip"
)

type peerKey struct{}

// WithPeer returns a context with the address and port that a request came from. The Collector keeps the
// port for gRPC only.
func WithPeer(ctx context.Context, remote string) context.Context {
	a, err := netip.ParseAddrPort(remote)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, net.TCPAddrFromAddrPort(a))
}

// Peer returns the address of WithPeer, nil if there is none.
func Peer(ctx context.Context) net.Addr {
	if a, ok := ctx.Value(peerKey{}).(*net.TCPAddr); ok {
		return a
	}
	return nil
}
