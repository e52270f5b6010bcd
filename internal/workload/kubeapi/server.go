package kubeapi

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// serviceAccount is where the kubelet mounts the credentials of a pod.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// server is how to reach an API server, and with which credentials. No error contains a
// secret.
type server struct {
	url   *url.URL
	tls   *tls.Config // nil: Go's default
	proxy *url.URL    // nil: from the environment
	// namespace is that of the pod, empty outside of a cluster.
	namespace string

	token          string
	tokenFile      *tokenFile // takes precedence over token
	user, password string
}

// newServer returns the server in kubeconfig, or that of the pod's service account.
func newServer(kubeconfig string) (server, error) {
	if kubeconfig == "" {
		// The kubelet passes the address only this way, so it is not a setting.
		return podServer(serviceAccount, os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")) //nolint:forbidigo // see above
	}
	b, err := os.ReadFile(kubeconfig)
	if err != nil {
		return server{}, err
	}
	k, err := parseKubeconfig(b)
	if err != nil {
		return server{}, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	s, err := k.server(filepath.Dir(kubeconfig))
	if err != nil {
		return server{}, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return s, nil
}

// podServer returns the server for the service account in dir.
func podServer(dir, host, port string) (server, error) {
	if host == "" || port == "" {
		return server{}, ErrNotInCluster
	}
	s := server{
		url:       &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)},
		tokenFile: &tokenFile{path: filepath.Join(dir, "token")},
	}
	if _, err := s.tokenFile.get(); err != nil {
		return server{}, err
	}
	if b, err := os.ReadFile(filepath.Join(dir, "namespace")); err == nil {
		s.namespace = strings.TrimSpace(string(b))
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return server{}, err
	}
	s.tls, err = tlsConfig(ca)
	return s, err
}

// tlsConfig trusts the certificates in ca, or the system's if ca is empty.
func tlsConfig(ca []byte) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("certificate authority of the API server is not a certificate")
		}
	}
	return t, nil
}

// server returns the server described by k. Its paths are relative to dir.
func (k kubeconfig) server(dir string) (s server, err error) {
	if s.url, err = serverURL(k.cluster.Server); err != nil {
		return server{}, err
	}
	if k.cluster.ProxyURL != "" {
		if s.proxy, err = url.Parse(k.cluster.ProxyURL); err != nil {
			return server{}, errors.New("proxy-url is not a URL") // the URL may contain a password
		}
	}
	ca, err := content(dir, k.cluster.CAData, k.cluster.CA)
	if err != nil {
		return server{}, err
	}
	if k.cluster.Insecure && len(ca) > 0 {
		return server{}, errors.New("has both a certificate authority and insecure-skip-tls-verify")
	}
	if s.tls, err = tlsConfig(ca); err != nil {
		return server{}, err
	}
	s.tls.ServerName, s.tls.InsecureSkipVerify = k.cluster.ServerName, k.cluster.Insecure
	if err := k.user.certificate(dir, s.tls); err != nil {
		return server{}, err
	}
	s.token, s.user, s.password = k.user.Token, k.user.Username, k.user.Password
	if k.user.TokenFile != "" {
		s.tokenFile = &tokenFile{path: in(dir, k.user.TokenFile)}
		if _, err := s.tokenFile.get(); err != nil {
			return server{}, err
		}
	}
	return s, nil
}

// serverURL parses an address. It may contain a password, which must not appear in an
// error.
func serverURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("cluster server is not an https:// or http:// URL")
	}
	u.RawQuery, u.Fragment = "", ""
	return u, nil
}

// certificate makes t present the user's certificate, if there is one. A certificate file
// is read for each connection, because it may be renewed.
func (u user) certificate(dir string, t *tls.Config) error {
	load := func() (*tls.Certificate, error) {
		cert, err := content(dir, u.CertData, u.Cert)
		if err != nil {
			return nil, err
		}
		key, err := content(dir, u.KeyData, u.Key)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cannot use the client certificate: %w", err)
		}
		return &pair, nil
	}
	if len(u.CertData) == 0 && u.Cert == "" && len(u.KeyData) == 0 && u.Key == "" {
		return nil
	}
	if _, err := load(); err != nil {
		return err
	}
	t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return nil
}

// content returns data, or the content of file, or nil.
func content(dir string, data []byte, file string) ([]byte, error) {
	if len(data) > 0 || file == "" {
		return data, nil
	}
	return os.ReadFile(in(dir, file))
}

func in(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}

// authorize adds the credentials to a request.
func (s *server) authorize(r *http.Request) error {
	token := s.token
	if s.tokenFile != nil {
		var err error
		if token, err = s.tokenFile.get(); err != nil {
			return err
		}
	}
	switch {
	case token != "":
		r.Header.Set("Authorization", "Bearer "+token)
	case s.user != "":
		r.SetBasicAuth(s.user, s.password)
	}
	return nil
}

// forget makes authorize read the token file again.
func (s *server) forget() {
	if s.tokenFile != nil {
		s.tokenFile.forget()
	}
}

// tokenFresh is how long a token is used before its file is read again: the kubelet
// replaces the token long before it expires, without notice.
const tokenFresh = time.Minute

// tokenFile is a token in a file that is replaced from time to time.
type tokenFile struct {
	path  string
	mu    sync.Mutex
	token string
	read  time.Time
}

func (f *tokenFile) get() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.token != "" && time.Since(f.read) < tokenFresh {
		return f.token, nil
	}
	b, err := os.ReadFile(f.path)
	token := string(bytes.TrimSpace(b))
	if err == nil && token == "" {
		err = fmt.Errorf("token file %s is empty", f.path)
	}
	if err != nil && f.token == "" {
		return "", err
	}
	// While the file is being replaced, the old token is still valid.
	f.token, f.read = cmp.Or(token, f.token), time.Now()
	return f.token, nil
}

func (f *tokenFile) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read = time.Time{}
}
