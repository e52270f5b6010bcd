//go:build linux

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/internal/query"
)

// open listens at an address, if it is safe to.
func (h *Options) open(ctx context.Context, flag, address string, log *zap.Logger) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		none := ""
		if flag == "--listen-grpc" {
			none = `, or --listen-grpc "" for none: agents need HTTP only`
		}
		return nil, fmt.Errorf("cannot listen on %s: %w: another hub or Collector may run there; choose another address with %s%s", address, syscall.EADDRINUSE, flag, none)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	if isLoopback(l.Addr()) || h.Insecure {
		return l, nil
	}
	if h.Tokens == "" && h.ClientCA == "" {
		return nil, errors.Join(fmt.Errorf("%s %s lets everybody on the network read and write: add --tokens FILE or --client-ca FILE, or say --insecure", flag, address), l.Close())
	}
	if h.Cert == "" {
		log.Warn("Tokens go over the network as they are: use --tls-cert and --tls-key, unless something before the hub does TLS", zap.String("address", address))
	}
	return l, nil
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

func (h *Options) readTokens() (*hub.Tokens, error) {
	if h.Tokens == "" {
		return nil, nil
	}
	text, err := os.ReadFile(h.Tokens)
	if err != nil {
		return nil, fmt.Errorf("cannot read --tokens: %w", err)
	}
	if st, err := os.Stat(h.Tokens); err == nil && st.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("--tokens %s can be read by everybody on this machine: chmod o= %s", h.Tokens, h.Tokens)
	}
	t, err := hub.ParseTokens(text)
	if err != nil {
		return nil, fmt.Errorf("--tokens %s: %w", h.Tokens, err)
	}
	return t, nil
}

// tokensEvery is how often the file of tokens is looked at.
const tokensEvery = 5 * time.Second

// watchTokens reads the file of tokens again when it has changed. Those that hold stay if
// it cannot be read, which is said once.
func (h *Options) watchTokens(ctx context.Context, tokens *hub.Tokens, log *zap.Logger) {
	clock := time.NewTicker(tokensEvery)
	defer clock.Stop()
	last, said := fileState(h.Tokens), ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
		state := fileState(h.Tokens)
		if state == last {
			continue
		}
		last = state
		by, err := h.readTokens()
		if err != nil {
			if reason := logging.OneLine(err); reason != said {
				said = reason
				log.Warn("The tokens have changed and cannot be used; those from before hold", zap.String("reason", reason))
			}
			continue
		}
		said = ""
		tokens.Replace(by)
		log.Info("The tokens were read again", zap.String("file", h.Tokens))
	}
}

// fileState is another when a file was written, replaced or closed to others.
func fileState(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return ""
	}
	inode := uint64(0)
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		inode = sys.Ino
	}
	return fmt.Sprint(inode, st.Size(), st.Mode(), st.ModTime().UnixNano())
}

// tls returns how to speak TLS, nil if not. A certificate that is renewed is read anew.
func (h *Options) tls() (*tls.Config, error) {
	if h.Cert == "" {
		return nil, nil
	}
	pair := &keyPair{cert: h.Cert, key: h.Key}
	if _, err := pair.get(nil); err != nil {
		return nil, fmt.Errorf("cannot read --tls-cert and --tls-key: %w", err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get, NextProtos: []string{"h2", "http/1.1"}}
	if h.ClientCA != "" {
		text, err := os.ReadFile(h.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("cannot read --client-ca: %w", err)
		}
		conf.ClientCAs = x509.NewCertPool()
		if !conf.ClientCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--client-ca %s has no certificate", h.ClientCA)
		}
		conf.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return conf, nil
}

// keyPair is a certificate and its key in files, looked at again after a minute.
type keyPair struct {
	cert, key string

	mu   sync.Mutex
	last *tls.Certificate
	read time.Time
}

func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last != nil && time.Since(k.read) < time.Minute {
		return k.last, nil
	}
	c, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil && k.last != nil { // half renewed
		return k.last, nil
	}
	k.last, k.read = &c, time.Now()
	return k.last, err
}

// openBackend returns the store that --backend names.
func (h *Options) openBackend(ctx context.Context) (query.Store, error) {
	c, err := query.Open(query.Config{URL: h.Backend, TokenFile: h.BackendToken, CAFile: h.BackendCA})
	if err != nil {
		return nil, fmt.Errorf("--backend: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := c.Instant(ctx, "vector(1)", time.Now()); err != nil {
		return nil, fmt.Errorf("the store that --backend names does not answer: %w", err)
	}
	return c, nil
}
