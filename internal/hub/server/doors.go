//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/audit"
	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/rebind"
)

// open listens at an address. Without authentication it accepts only loopback addresses,
// unless Insecure is set.
func (h *Options) open(ctx context.Context, flag, address string, log *zap.Logger) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		none := ""
		if flag == "--listen-grpc" {
			none = `, or to "" to disable gRPC: agents need only HTTP`
		}
		return nil, fmt.Errorf("cannot listen on %s: %w: another hub or Collector may be running; set %s to another address%s", address, syscall.EADDRINUSE, flag, none)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	if rebind.IsLoopback(l.Addr()) || h.Insecure {
		return l, nil
	}
	if h.Tokens == "" && h.ClientCA == "" {
		return nil, errors.Join(fmt.Errorf("%s %s would let everyone on the network read and write: add --tokens FILE or --client-ca FILE, or --insecure to allow it", flag, address), l.Close())
	}
	if h.Cert == "" {
		log.Warn("Tokens are sent over the network in clear text: use --tls-cert and --tls-key, unless a proxy in front of the hub terminates TLS", zap.String("address", address))
	}
	return l, nil
}

func (h *Options) readTokens() (*access.Tokens, error) {
	if h.Tokens == "" {
		return nil, nil
	}
	text, err := os.ReadFile(h.Tokens)
	if err != nil {
		return nil, fmt.Errorf("cannot read --tokens: %w", err)
	}
	if st, err := os.Stat(h.Tokens); err == nil && st.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("--tokens %s is readable by every user of this machine: run chmod o= %s", h.Tokens, h.Tokens)
	}
	t, err := access.ParseTokens(text)
	if err != nil {
		return nil, fmt.Errorf("--tokens %s: %w", h.Tokens, err)
	}
	return t, nil
}

// openAudit opens the audit log, nil if there is none.
func (h *Options) openAudit(log *zap.Logger) (*audit.Log, error) {
	if h.Audit == "" {
		return nil, nil
	}
	l, err := audit.Open(h.Audit, func(err error) {
		log.Error("Cannot write the audit log: requests are served without it", logging.Reason(err))
	})
	if err != nil {
		return nil, fmt.Errorf("--audit-log: %w", err)
	}
	return l, nil
}

// watchTokens reloads the token file when it changes.
func (h *Options) watchTokens(ctx context.Context, file *followed, tokens *access.Tokens, log *zap.Logger) {
	file.run(ctx, func() error {
		by, err := h.readTokens()
		if err == nil {
			tokens.Replace(by)
		}
		return err
	}, log)
}

// openBackend opens the store of --backend.
func (h *Options) openBackend(ctx context.Context) (query.Store, error) {
	c, err := query.Open(*h.Backend)
	if err != nil {
		return nil, fmt.Errorf("--backend: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := c.Instant(ctx, "vector(1)", time.Now()); err != nil {
		return nil, fmt.Errorf("the --backend store does not respond: %w", err)
	}
	return c, nil
}
