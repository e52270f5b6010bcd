//go:build e2e

package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// apiServer is the API of a cluster, used as its administrator.
type apiServer struct {
	t      *testing.T
	url    string
	ca     string // path of the file
	client *http.Client
}

var errNotFound = errors.New("not found")

// do sends a request and decodes the response into answer, which may be nil.
func (a apiServer) do(method, path, contentType, body string, answer any) error {
	if a.client == nil { // it has no certificate yet
		return errors.New("the API server has not started")
	}
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+asAdmin)
	req.Header.Set("Content-Type", contentType)
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s: %w", path, errNotFound)
	case resp.StatusCode >= http.StatusMultipleChoices:
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	case answer == nil:
		return nil
	}
	return json.NewDecoder(bytes.NewReader(text)).Decode(answer)
}

func (a apiServer) get(path string, answer any) error {
	return a.do(http.MethodGet, path, "", "", answer)
}

// create creates an object from YAML and returns its UID.
func (a apiServer) create(path, object string) string {
	a.t.Helper()
	var made struct{ Metadata struct{ UID string } }
	if err := a.do(http.MethodPost, path, "application/yaml", object, &made); err != nil {
		a.t.Fatal(err)
	}
	return made.Metadata.UID
}

// patch merges the JSON object into the object at path.
func (a apiServer) patch(path, object string) {
	a.t.Helper()
	if err := a.do(http.MethodPatch, path, "application/merge-patch+json", object, nil); err != nil {
		a.t.Fatal(err)
	}
}

func (a apiServer) remove(path string) {
	a.t.Helper()
	if err := a.do(http.MethodDelete, path, "", "", nil); err != nil {
		a.t.Fatal(err)
	}
}

// trust creates a client that trusts the server's self-signed certificate.
func (a *apiServer) trust() error {
	text, err := os.ReadFile(a.ca)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return fmt.Errorf("%s has no certificate", a.ca)
	}
	a.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	return nil
}

// kubeconfig writes a kubeconfig for the user of token.
func (a apiServer) kubeconfig(dir, token string) string {
	a.t.Helper()
	path := filepath.Join(dir, token+".kubeconfig")
	write(a.t, path, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: e2e, user: {token: %q}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
current-context: e2e
`, a.url, a.ca, token))
	return path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
