//go:build linux

package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"
)

// tls returns the TLS configuration, nil without a certificate. Renewed certificates and client
// CAs are reloaded.
func (h *Options) tls(now func() time.Time) (*tls.Config, error) {
	if h.Cert == "" {
		return nil, nil
	}
	pair := &cached[*tls.Certificate]{now: now, read: func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(h.Cert, h.Key)
		return &c, err
	}}
	if _, err := pair.get(); err != nil {
		return nil, fmt.Errorf("cannot read --tls-cert and --tls-key: %w", err)
	}
	conf := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Time: now,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get() },
	}
	if h.ClientCA == "" {
		return conf, nil
	}
	pool := &cached[*x509.CertPool]{now: now, read: h.clientCAs}
	if _, err := pool.get(); err != nil {
		return nil, err
	}
	conf.ClientAuth = tls.RequireAndVerifyClientCert
	strict := conf.Clone()
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		trusted, err := pool.get()
		if err != nil {
			return nil, err
		}
		c := strict.Clone()
		c.ClientCAs = trusted
		return c, nil
	}
	// Nobody is trusted if a server ignores GetConfigForClient. A nil pool would be the system's.
	conf.ClientCAs = x509.NewCertPool()
	return conf, nil
}

func (h *Options) clientCAs() (*x509.CertPool, error) {
	text, err := os.ReadFile(h.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("cannot read --client-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--client-ca %s has no certificate", h.ClientCA)
	}
	return pool, nil
}

// cached is what files contain, read again after a minute. If that fails, such as because one of
// two files is newer than the other, the last good value stays valid.
type cached[T any] struct {
	now  func() time.Time
	read func() (T, error)

	mu   sync.Mutex
	last T
	good bool
	at   time.Time
}

func (c *cached[T]) get() (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.good && c.now().Sub(c.at) < time.Minute {
		return c.last, nil
	}
	v, err := c.read()
	if err != nil && c.good {
		return c.last, nil
	}
	c.last, c.good, c.at = v, err == nil, c.now()
	return v, err
}
