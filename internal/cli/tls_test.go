//go:build linux

package cli_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/gpumeter/gpumeter/internal/await"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var der []byte
	der, a.key = a.sign(template, template, nil)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	return a
}

// sign signs template, by itself if key is nil.
func (a *authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if key == nil {
		key = own
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &own.PublicKey, key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der, own
}

// issue returns the files of a certificate for 127.0.0.1 and of its key.
func (a *authority) issue() (cert, key string) {
	a.t.Helper()
	der, own := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "somebody"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, a.key)
	private, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		a.t.Fatal(err)
	}
	return write(a.t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		write(a.t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

// A backend that wants a certificate gets it, and only one that the agent trusts gets
// telemetry.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	serverCert, serverKey := ca.issue()
	clientCert, clientKey := ca.issue()
	pair, err := tls.LoadX509KeyPair(serverCert, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	config := &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}

	f := func(protocol string, ok bool, args ...string) {
		t.Helper()
		b := newBackendAt(t, "127.0.0.1") // for which its certificate is
		b.upTLS(protocol == "grpc", config)
		args = append(args, "--otlp-endpoint", "https://"+b.addr, "--otlp-protocol", protocol)
		a := push(t, b, t.TempDir(), nil, args...)
		if ok {
			b.waitTicks("", 2)
		} else {
			await.NoError(t, func() error {
				if !strings.Contains(a.log.String(), "certificate") {
					return fmt.Errorf("no word of the certificate")
				}
				return nil
			})
			if list, _ := b.ticks(""); len(list) > 0 {
				t.Error("a stranger got telemetry")
			}
		}
		a.stop()
	}
	both := []string{"--otlp-ca", ca.file, "--otlp-cert", clientCert, "--otlp-key", clientKey}
	f("http/protobuf", true, both...)
	f("grpc", true, both...)
	f("http/protobuf", false, "--otlp-ca", ca.file)                               // without one of its own
	f("http/protobuf", false, "--otlp-cert", clientCert, "--otlp-key", clientKey) // of an authority it does not know
	f("grpc", false, "--otlp-cert", clientCert, "--otlp-key", clientKey)

	missing := filepath.Join(t.TempDir(), "none.pem")
	line := oneLine(t, run(t, "agent", "--simulate", "h200", "--listen", "localhost:0", "--socket", "", "--state-dir", t.TempDir(),
		"--otlp-endpoint", "https://127.0.0.1:1", "--otlp-ca", missing))
	if !strings.Contains(line, missing) {
		t.Errorf("a missing file gives %q", line)
	}
}

func (b *backend) upTLS(grpcToo bool, config *tls.Config) {
	b.t.Helper()
	l, err := net.Listen("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	if grpcToo {
		srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
		pmetricotlp.RegisterGRPCServer(srv, &grpcMetrics{b: b})
		go func() { _ = srv.Serve(l) }()
		b.t.Cleanup(srv.Stop)
		return
	}
	srv := &http.Server{Handler: b, ReadHeaderTimeout: time.Hour}
	go func() { _ = srv.Serve(tls.NewListener(l, config)) }()
	b.t.Cleanup(func() { _ = srv.Close() })
}
