package kubeapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// certificate returns a self-signed certificate and its key, as PEM.
func certificate(t *testing.T, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b}))
}

// secure is a TLS server that answers which credentials were used, and over which protocol.
func secure(t *testing.T) (s *httptest.Server, ca string) {
	t.Helper()
	s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := r.Header.Get("Authorization")
		for _, c := range r.TLS.PeerCertificates {
			who += c.Subject.CommonName
		}
		fmt.Fprint(w, r.Proto, " ", who)
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that do not trust it are expected to hang up
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func ask(t *testing.T, s server) (string, error) {
	t.Helper()
	c, err := newClient(Config{Node: "n"}, newREST(s, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.rest.close()
	b, err := c.rest.get(t.Context(), plainJSON, []string{"who"}, nil)
	return string(b), err
}

// Every way to authenticate and to establish trust, inline and in files next to the
// kubeconfig, over HTTP/2.
func TestCredentials(t *testing.T) {
	s, ca := secure(t)
	cert, key := certificate(t, "alice")
	dir := t.TempDir()
	write(t, dir, "ca.crt", ca)
	write(t, dir, "cert.pem", cert)
	write(t, dir, "key.pem", key)
	write(t, dir, "token", "from-a-file\n")
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	f := func(cluster, user, want string) {
		t.Helper()
		file := write(t, dir, "kubeconfig", fmt.Sprintf(`
current-context: here
contexts: [{name: here, context: {cluster: c, user: u, namespace: x}}, {name: there, context: {cluster: d, user: v}}]
clusters: [{name: d, cluster: {server: "https://elsewhere"}}, {name: c, cluster: {server: %q, %s}}]
users: [{name: v, user: {token: wrong}}, {name: u, user: {%s}}]
preferences: {}
`, s.URL, cluster, user))
		srv, err := newServer(file)
		got := ""
		if err == nil {
			got, err = ask(t, srv)
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s, %s: %s, want %s", cluster, user, got, want)
		}
		for _, secret := range []string{"from-a-file", "s3cret", key[40:60], b64(key)[40:60]} {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%q is in %v", secret, err)
			}
		}
	}
	f(`certificate-authority: ca.crt`, `token: abc`, "HTTP/2.0 Bearer abc")
	f(`certificate-authority-data: `+b64(ca), `tokenFile: token, token: old`, "HTTP/2.0 Bearer from-a-file")
	f(`insecure-skip-tls-verify: true`, `client-certificate: cert.pem, client-key: key.pem`, "HTTP/2.0 alice")
	f(`certificate-authority: ca.crt, tls-server-name: example.com`, `client-certificate-data: `+b64(cert)+`, client-key-data: `+b64(key), "HTTP/2.0 alice")
	f(`certificate-authority: ca.crt`, `username: a, password: s3cret`, "HTTP/2.0 Basic "+b64("a:s3cret"))
	f(`certificate-authority: `+filepath.Join(dir, "ca.crt"), ``, "HTTP/2.0")
	f(`tls-server-name: nobody, certificate-authority: ca.crt`, `token: s3cret`, "certificate is valid for")
	f(`x: y`, `token: s3cret`, "certificate signed by unknown authority")
	f(`certificate-authority: ca.crt, insecure-skip-tls-verify: true`, `token: s3cret`, "both a certificate authority")
	f(`certificate-authority: nothing`, ``, "no such file")
	f(`certificate-authority: token`, ``, "is not a certificate")
	f(`certificate-authority: ca.crt`, `client-certificate: cert.pem`, "client certificate")
	f(`certificate-authority: ca.crt`, `client-certificate: cert.pem, client-key: token`, "client certificate")
	f(`certificate-authority: ca.crt`, `tokenFile: nothing`, "no such file")
	f(`certificate-authority: ca.crt`, `client-key-data: s3cret!`, "not valid in a kubeconfig")
	f(`certificate-authority: ca.crt`, `token: {s3cret: 1}`, "not valid in a kubeconfig")
	f(`certificate-authority: ca.crt`, `token: *s3cret`, "is not a kubeconfig")
	f(`certificate-authority: ca.crt`, `exec: {command: aws, env: [{name: K, value: s3cret}]}`, "running aws")
	f(`certificate-authority: ca.crt`, `auth-provider: {name: gcp, config: {k: s3cret}}`, "auth-provider gcp")
	f(`certificate-authority: ca.crt`, `as: root`, "impersonates")
	f(`certificate-authority: ca.crt, proxy-url: "http://a:s3cret@127.0.0.1:1"`, `token: s3cret`, "connection refused")
	f(`certificate-authority: ca.crt, proxy-url: "http://a:s3cret@%zz"`, `token: s3cret`, "proxy-url")
	f(`certificate-authority: ca.crt`, `token: "s3cret\nX: y"`, "invalid header")
}

// What is missing in a kubeconfig is reported by name.
func TestParseKubeconfig(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		k, err := parseKubeconfig([]byte(text))
		if err == nil {
			_, err = k.server("/nowhere")
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	f(``, "no current-context")
	f(`[]`, "line 1 is not valid in a kubeconfig")
	f(`{`, "kubeconfig")
	f(`{current-context: a}`, `no context "a"`)
	f(`{current-context: a, contexts: [{name: a, context: {cluster: c}}]}`, `no cluster "c"`)
	const c = `{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: `
	f(c+`x}}]}`, `no user "u"`)
	f(c+`"x"}}], users: [{name: u}]}`, "https://")
	f(c+`"localhost:8080"}}], users: [{name: u}]}`, "https://")
	f(c+`"https://u:s3cret@%zz"}}], users: [{name: u}]}`, "https://")
}

func FuzzParseKubeconfig(f *testing.F) {
	f.Add([]byte(`{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: "https://x"}}], users: [{name: u, user: {token: t}}]}`))
	f.Add([]byte("current-context: a\nusers:\n- name: u\n  user:\n    exec: {command: x}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := parseKubeconfig(b)
		if err == nil && k.user.Exec != nil {
			t.Error("a program would have to be run")
		}
		if err == nil {
			k.cluster.CA, k.user.Cert, k.user.Key, k.user.TokenFile = "", "", "", "" // no files
			if s, err := k.server("/nowhere"); err == nil && s.url.Host == "" {
				t.Error("nobody is asked")
			}
		}
	})
}

// A pod reaches its server as set up by the kubelet, and notices that its token was
// replaced: within a minute, and at once if the old one is rejected.
func TestServiceAccount(t *testing.T) {
	s, ca := secure(t)
	dir := t.TempDir()
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	f := func(host, port, want string) {
		t.Helper()
		srv, err := podServer(dir, host, port)
		got := ""
		if err == nil {
			got, err = ask(t, srv)
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	f("", port, ErrNotInCluster.Error())
	f(host, "", ErrNotInCluster.Error())
	f(host, port, "token: no such file")
	write(t, dir, "token", "\n")
	f(host, port, "is empty")
	write(t, dir, "token", "one\n")
	f(host, port, "ca.crt: no such file")
	write(t, dir, "ca.crt", ca)
	f(host, port, "HTTP/2.0 Bearer one")
	if srv, err := podServer(dir, "fd00::1", "443"); err != nil || srv.url.String() != "https://[fd00::1]:443" {
		t.Errorf("with IPv6: %v, %v", srv.url, err)
	}

	synctest.Test(t, func(t *testing.T) {
		k := kubeapitest.New()
		valid := "one"
		h := &handler{next: k}
		var used []string
		h.set(func(w http.ResponseWriter, r *http.Request) bool {
			got := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			used = append(used, got)
			if got != valid {
				w.WriteHeader(http.StatusUnauthorized)
			}
			return got != valid
		})
		dial, stop := kubeapitest.Pipe(h)
		defer stop()
		srv, err := podServer(dir, host, port)
		if err != nil {
			t.Fatal(err)
		}
		srv.url.Scheme = "http"
		c, err := newClient(Config{Node: "n"}, newREST(srv, dial))
		if err != nil {
			t.Fatal(err)
		}
		defer c.rest.close()
		ask := func() {
			c.rest.get(t.Context(), plainJSON, []string{"api", "v1"}, nil)
		}
		ask()
		write(t, dir, "token", "two")
		ask() // with the old one, which is still valid
		time.Sleep(tokenFresh)
		valid = "two"
		ask()
		valid = "three"
		write(t, dir, "token", "three")
		ask() // rejected
		ask()
		if err := os.Remove(filepath.Join(dir, "token")); err != nil {
			t.Error(err)
		}
		time.Sleep(tokenFresh)
		ask()
		if diff := cmp.Diff([]string{"one", "one", "two", "two", "three", "three"}, used); diff != "" {
			t.Errorf("tokens (-want +got):\n%s", diff)
		}
	})
}

// A certificate that was renewed in its file is presented by the next connection.
func TestCertificateRenewed(t *testing.T) {
	s, _ := secure(t)
	dir := t.TempDir()
	put := func(name string) {
		cert, key := certificate(t, name)
		write(t, dir, "cert.pem", cert+key)
	}
	put("alice")
	k := kubeconfig{cluster{Server: s.URL, Insecure: true}, user{Cert: "cert.pem", Key: "cert.pem"}}
	srv, err := k.server(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"alice", "bob"} {
		put(name)
		if got, err := ask(t, srv); err != nil || !strings.HasSuffix(got, name) {
			t.Errorf("%s, %v, want %s", got, err, name)
		}
	}
}

// vanishing is a connection to a machine that can disappear without closing it.
type vanishing struct {
	net.Conn
	gone *atomic.Bool
}

// Write implements net.Conn.
func (v vanishing) Write(b []byte) (int, error) {
	if v.gone.Load() {
		return len(b), nil
	}
	return v.Conn.Write(b)
}

// A watch is normally silent, and must notice that its peer has disappeared long before the
// watch would end.
func TestPeerVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withEverything()
		dial, stop := kubeapitest.Pipe(s)
		var first, second atomic.Bool
		var now atomic.Pointer[atomic.Bool] // of the next connection
		now.Store(&first)
		r := newREST(server{url: &url.URL{Scheme: "http", Host: "test"}}, func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return vanishing{conn, now.Load()}, err
		})
		r.http.Transport.(*http.Transport).Protocols = new(http.Protocols)
		r.http.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
		c, err := newClient(Config{Node: "node1"}, r)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		defer func() {
			cancel()
			stop()
			<-done
		}()
		time.Sleep(time.Minute)
		if n := count(s, "watch=true"); n != 1 || !c.State().Synced {
			t.Fatalf("%d watches, state %+v", n, c.State())
		}
		now.Store(&second)
		first.Store(true)
		time.Sleep(pingAfter + pingTimeout + 2*time.Second)
		if n := count(s, "watch=true"); n != 2 {
			t.Errorf("%d watches, want another one", n)
		}
	})
}
