// Package localonly is middleware for a receiver on a loopback address. Over HTTP it rejects
// requests whose Host header names another machine, which prevents DNS rebinding, and bounds the
// requests in memory. Over gRPC it bounds headers and idle connections. It does not check the
// authority of gRPC: browsers speak HTTP/2 only over TLS, with a certificate for the name they
// were given, so a rebound page cannot reach a gRPC server.
package localonly

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/gpumeter/gpumeter/internal/rebind"
	"github.com/gpumeter/gpumeter/internal/sender"
)

// Config is the configuration under extensions::local_only. There is nothing to set.
type Config struct{}

// NewFactory returns the factory of the extension.
func NewFactory() extension.Factory {
	return extension.NewFactory(component.MustNewType("local_only"), func() component.Config { return &Config{} },
		func(context.Context, extension.Settings, component.Config) (extension.Extension, error) {
			return &guard{turns: make(chan struct{}, maxRequests)}, nil
		}, component.StabilityLevelDevelopment)
}

const (
	// maxRequests bounds the HTTP requests in memory. Further ones are told to retry.
	maxRequests = 16
	// maxHeader bounds the headers of a gRPC request in bytes. gRPC would accept 16 MiB.
	maxHeader = 64 << 10
)

type guard struct {
	component.StartFunc
	component.ShutdownFunc

	turns chan struct{}
}

var (
	_ extensionmiddleware.HTTPServer = (*guard)(nil)
	_ extensionmiddleware.GRPCServer = (*guard)(nil)
)

// GetHTTPHandler implements extensionmiddleware.HTTPServer.
func (g *guard) GetHTTPHandler(context.Context) (extensionmiddleware.WrapHTTPHandlerFunc, error) {
	return func(_ context.Context, next http.Handler) (http.Handler, error) {
		return rebind.Local(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case g.turns <- struct{}{}:
				defer func() { <-g.turns }()
				next.ServeHTTP(w, r.WithContext(sender.WithPeer(r.Context(), r.RemoteAddr)))
			default:
				w.Header().Set("Retry-After", "1")
				http.Error(w, "too many requests at a time", http.StatusServiceUnavailable)
			}
		})), nil
	}, nil
}

// GetGRPCServerOptions implements extensionmiddleware.GRPCServer.
func (*guard) GetGRPCServerOptions(context.Context) ([]grpc.ServerOption, error) {
	return []grpc.ServerOption{
		grpc.MaxHeaderListSize(maxHeader),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 10 * time.Minute, Time: time.Minute}),
	}, nil
}
