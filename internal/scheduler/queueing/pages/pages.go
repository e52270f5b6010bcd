// Package pages reads the metrics pages of queueing systems: those of a list, and those that it finds behind the Services of a
// cluster.
package pages

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/promtext"
	"github.com/gpumeter/gpumeter/internal/scheduler/queueing"
)

// Target is a metrics page.
type Target struct {
	URL    *url.URL
	System string // one of queueing.Systems; empty: it is recognized
	// Parents are queues that have others below them, where the page does not tell.
	Parents []string
	// CAFile has the certificates to trust, PEM. Empty: those of the machine.
	CAFile string
	// TokenFile has a token, which is read for each request.
	TokenFile string
	// ServerName is whose certificate it is, if not that of the host in URL.
	ServerName string
	// Insecure trusts any certificate. Who sets it together with TokenFile trusts the address with the token.
	Insecure bool
}

// Limits of a page. The largest known, of kube-state-metrics with 10,000 pods, has 200 MB of which 9 MB are read.
const (
	maxBytes = 512 << 20 // read
	maxKept  = 16 << 20  // and kept
	maxLine  = 64 << 10  // longer ones are skipped
	maxToken = 64 << 10
)

// dialer opens a connection, like net.Dialer.DialContext.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// fetch reads what a page says about queues. It follows no redirects, which could lead anywhere.
func fetch(ctx context.Context, t *Target, dial dialer) (*promtext.Text, error) {
	config, err := t.tls()
	if err != nil {
		return nil, err
	}
	// A connection for each request: certificates may have changed, and there is one request in half a minute.
	client := &http.Client{
		Transport:     &http.Transport{DialContext: dial, TLSClientConfig: config, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.URL.String(), nil)
	if err != nil {
		return nil, errors.New("the address is invalid") // err may contain a password
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4;q=1,*/*;q=0.1")
	req.Header.Set("User-Agent", "gpumeter")
	if t.TokenFile != "" {
		token, err := t.token()
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(req)
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // who calls adds the address
	}
	if err != nil {
		return nil, lasting(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	}
	b, err := keep(answer.Body, maxBytes, maxKept)
	if err != nil {
		return nil, err
	}
	return promtext.Scan(b), nil
}

// lasting returns an error whose text is the same as long as its cause is, since a new text is logged: without the port that
// this end had, and the time at which a certificate was looked at.
func lasting(err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		e.Source = nil
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return fmt.Errorf("the certificate is valid from %s to %s", e.Cert.NotBefore.UTC().Format(time.RFC3339), e.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return err
}

// keep returns the lines of a page that are about queues. most is how many bytes may be read, and few how many kept.
func keep(from io.Reader, most, few int) ([]byte, error) {
	limited := &io.LimitedReader{R: from, N: int64(most)}
	lines := bufio.NewReaderSize(limited, maxLine)
	var kept []byte
	for long := false; ; {
		line, err := lines.ReadSlice('\n')
		part := errors.Is(err, bufio.ErrBufferFull)
		if !part && !long {
			if text := bytes.TrimRight(line, " \t\r\n"); queueing.Wanted(text) {
				kept = append(append(kept, text...), '\n')
			}
		}
		long = part // until the end of this line
		switch {
		case limited.N == 0:
			return nil, fmt.Errorf("the page has more than %d bytes", most)
		case len(kept) > few:
			return nil, fmt.Errorf("the page has more than %d bytes about queues", few)
		case errors.Is(err, io.EOF):
			return kept, nil
		case err != nil && !part:
			return nil, fmt.Errorf("cannot read the page: %w", lasting(err))
		}
	}
}

// tls returns how to verify the server.
func (t *Target) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.Insecure}
	if t.CAFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificates to trust: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificates", t.CAFile)
	}
	return config, nil
}

// token returns the token, which is never sent without TLS.
func (t *Target) token() (string, error) {
	if t.URL.Scheme != "https" {
		return "", errors.New("a token is sent to https:// addresses only")
	}
	f, err := os.Open(t.TokenFile)
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxToken))
	token := strings.TrimSpace(string(b))
	if err == nil && (token == "" || strings.ContainsAny(token, "\r\n")) {
		err = fmt.Errorf("%s has no token", t.TokenFile)
	}
	return token, err
}

// instance returns who serves the page: several may be behind one proxy.
func (t *Target) instance() string { return t.URL.Host + t.URL.Path }

// direct dials without a proxy: addresses are those of a cluster.
func direct(timeout time.Duration) dialer { return (&net.Dialer{Timeout: timeout}).DialContext }

// compare orders targets as they count: those that are listed first.
func compare(a, b Target) int {
	return cmp.Or(cmp.Compare(a.System, b.System), cmp.Compare(a.URL.String(), b.URL.String()))
}
