//go:build linux

package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// issuer is a certificate authority.
type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

// issue returns a certificate that is valid until end, by itself if the issuer is nil, with its key.
func (a *issuer) issue(t *testing.T, begin, end time.Time, usage x509.ExtKeyUsage) (_ *issuer, keyPEM string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: begin, NotAfter: end, DNSNames: []string{"hub"},
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, IsCA: a == nil, BasicConstraintsValid: true,
	}
	parent, signer := template, key
	if a != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))},
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// Catches a hub that accepts a client without a certificate, with an expired one, one that is not
// valid yet, one that is not for clients or one of another authority; and one that needs a restart
// when certificates and authorities are renewed, or is locked out by a file that is half written.
func TestMutualTLSAndRotation(t *testing.T) {
	t.Parallel()
	now := time.Now()
	hour := time.Hour
	var none *issuer
	authority := func() *issuer {
		a, _ := none.issue(t, now.Add(-hour), now.Add(24*hour), x509.ExtKeyUsageAny)
		return a
	}
	client := func(a *issuer, begin, end time.Duration, usage x509.ExtKeyUsage) tls.Certificate {
		c, key := a.issue(t, now.Add(begin), now.Add(end), usage)
		pair, err := tls.X509KeyPair([]byte(c.pem), []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	first, second, stranger := authority(), authority(), authority()
	dir := t.TempDir()
	h := Options{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ClientCA: filepath.Join(dir, "ca")}
	serve := func(a *issuer) {
		c, key := a.issue(t, now.Add(-hour), now.Add(24*hour), x509.ExtKeyUsageServerAuth)
		put(t, h.Cert, c.pem)
		put(t, h.Key, key)
	}
	serve(first)
	put(t, h.ClientCA, first.pem)
	clock := now
	conf, err := h.tls(func() time.Time { return clock })
	if err != nil {
		t.Fatal(err)
	}
	// shake returns what the hub says to a client that trusts an authority.
	shake := func(trust *issuer, own ...tls.Certificate) error {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		pool := x509.NewCertPool()
		pool.AddCert(trust.cert)
		ended := make(chan error, 1)
		go func() {
			c := tls.Client(a, &tls.Config{RootCAs: pool, ServerName: "hub", Certificates: own, Time: func() time.Time { return clock }})
			err := c.Handshake()
			if err == nil {
				_, err = c.Read(make([]byte, 1)) // in TLS 1.3 the verdict comes after the handshake
			}
			ended <- err
			a.Close()
		}()
		s := tls.Server(b, conf)
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		b.Close()
		return errors.Join(err, <-ended)
	}
	check := func(what string, trust *issuer, want bool, own ...tls.Certificate) {
		t.Helper()
		if err := shake(trust, own...); (err == nil) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	good := client(first, -hour, 24*hour, x509.ExtKeyUsageClientAuth)
	check("a client with a certificate", first, true, good)
	check("one without", first, false)
	check("an expired one", first, false, client(first, -2*hour, -hour, x509.ExtKeyUsageClientAuth))
	check("one that is not valid yet", first, false, client(first, hour, 2*hour, x509.ExtKeyUsageClientAuth))
	check("one for servers", first, false, client(first, -hour, hour, x509.ExtKeyUsageServerAuth))
	check("one of a stranger", first, false, client(stranger, -hour, hour, x509.ExtKeyUsageClientAuth))
	check("one that expires while the hub runs", first, true, client(first, -hour, hour, x509.ExtKeyUsageClientAuth))

	// Everything is renewed by another authority.
	serve(second)
	put(t, h.ClientCA, second.pem)
	renewed := client(second, -hour, 24*hour, x509.ExtKeyUsageClientAuth)
	check("before the files are read again", first, true, good)
	clock = clock.Add(61 * time.Second)
	check("after it, with the old one", second, false, good)
	check("after it, with the new one", second, true, renewed)
	put(t, h.ClientCA, "-----BEGIN CERT")
	put(t, h.Key, "-----BEGIN PRIV")
	clock = clock.Add(61 * time.Second)
	check("while the files are half written", second, true, renewed)
	put(t, h.ClientCA, first.pem)
	serve(first)
	check("after they are whole again", first, true, good)

	if _, err := (&Options{Cert: h.Cert, Key: h.Key, ClientCA: h.Key}).tls(time.Now); err == nil {
		t.Error("a hub starts without an authority")
	}
}
