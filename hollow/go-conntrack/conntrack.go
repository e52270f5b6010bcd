// Package conntrack is what prometheus/common/config names of a package that traces connections.
package conntrack

import (
	"context"
	"net"
)

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// DialerOpt says how connections are opened.
type DialerOpt func(dial) dial

// DialWithTracing does nothing.
func DialWithTracing() DialerOpt { return func(d dial) dial { return d } }

// DialWithName does nothing.
func DialWithName(string) DialerOpt { return DialWithTracing() }

// DialWithDialContextFunc opens connections with another function.
func DialWithDialContextFunc(other dial) DialerOpt { return func(dial) dial { return other } }

// NewDialContextFunc returns what opens connections, without traces of them.
func NewDialContextFunc(opts ...DialerOpt) dial {
	d := new(net.Dialer).DialContext
	for _, opt := range opts {
		d = opt(d)
	}
	return d
}
