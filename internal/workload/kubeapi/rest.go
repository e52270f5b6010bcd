package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// callTimeout bounds every request except those for pods.
	callTimeout = 15 * time.Second
	// maxAnswer bounds the size of an answer, except for pods. The ResourceSlices of a node
	// with 128 devices in 7 partitions each are 2 MB.
	maxAnswer = 16 << 20
	// maxStatus bounds how much of an error response is read.
	maxStatus = 64 << 10
	// maxRetryAfter bounds how long a server can make the client wait.
	maxRetryAfter = 10 * time.Minute

	dialTimeout   = 10 * time.Second
	headerTimeout = 10 * time.Second // also for a watch: its header arrives at once
	// pingAfter is how long a connection may be silent before its peer is probed, and
	// pingTimeout how long the peer has to answer. A watch may be silent for its whole
	// duration.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second

	metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
	plainJSON    = "application/json"
)

// dialer opens a connection, like net.Dialer.DialContext.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// rest sends requests to the API server.
type rest struct {
	server server
	http   *http.Client
}

// newREST returns a rest for s, over the network unless dial is given.
func newREST(s server, dial dialer) *rest {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: pingAfter, Interval: pingTimeout / 3, Count: 3, // for HTTP/1, which has no pings
		}}).DialContext
	}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial, TLSClientConfig: s.tls,
		TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: headerTimeout,
		MaxIdleConns: 4, IdleConnTimeout: 90 * time.Second,
		// Setting TLSClientConfig disables HTTP/2 otherwise.
		ForceAttemptHTTP2: true, HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	if s.proxy != nil {
		t.Proxy = http.ProxyURL(s.proxy)
	}
	return &rest{server: s, http: &http.Client{
		Transport: t,
		// Credentials are for this server only, never for a redirect target.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (r *rest) close() { r.http.CloseIdleConnections() }

// open returns the response body for path. The error is a *statusError if the server
// rejected the request.
func (r *rest) open(ctx context.Context, accept string, path []string, query url.Values) (io.ReadCloser, error) {
	return r.do(ctx, http.MethodGet, accept, path, query, nil)
}

// do sends a request. body is JSON, or nil.
func (r *rest) do(ctx context.Context, method, accept string, path []string, query url.Values, body []byte) (io.ReadCloser, error) {
	for _, segment := range path {
		// Names come from objects that users create. The server rejects such names itself.
		if segment == "" || segment == "." || segment == ".." || strings.ContainsAny(segment, "/?#%") {
			return nil, fmt.Errorf("%q is not a valid path segment", segment)
		}
	}
	u := r.server.url.JoinPath(path...)
	verb := strings.ToLower(method)
	where := u.Redacted()
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("cannot %s %s: invalid URL", verb, where) // err may contain a password
	}
	switch {
	case method == http.MethodPatch:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	case body != nil:
		req.Header.Set("Content-Type", plainJSON)
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("User-Agent", "gpumeter")
	if err := r.server.authorize(req); err != nil {
		return nil, fmt.Errorf("cannot %s %s: %w", verb, where, err)
	}
	res, err := r.http.Do(req)
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // the url.Error contains the whole query
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		e.Source = nil // the port differs each time, and who logs what has changed would log it each time
	}
	if err != nil {
		return nil, fmt.Errorf("cannot %s %s: %w", verb, where, err)
	}
	if res.StatusCode == http.StatusOK || res.StatusCode == http.StatusCreated {
		return res.Body, nil
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxStatus)) // best effort
	if res.StatusCode == http.StatusUnauthorized {
		// The next request must use the newest token and certificate.
		r.server.forget()
		defer r.close()
	}
	return nil, parseStatus(b, res.StatusCode, res.Header.Get("Retry-After"))
}

// get returns the JSON at path.
func (r *rest) get(ctx context.Context, accept string, path []string, query url.Values) ([]byte, error) {
	return r.call(ctx, http.MethodGet, accept, path, query, nil)
}

// call sends a request and returns the answer.
func (r *rest) call(ctx context.Context, method, accept string, path []string, query url.Values, object []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, err := r.do(ctx, method, accept, path, query, object)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the answer of /%s: %w", strings.Join(path, "/"), err)
	}
	if len(b) > maxAnswer {
		return nil, fmt.Errorf("answer of /%s is longer than %d bytes", strings.Join(path, "/"), maxAnswer)
	}
	return b, nil
}

// statusError is an error response of the server.
type statusError struct {
	code       int
	message    string
	tooNew     bool // the requested version does not exist yet
	retryAfter time.Duration
}

// Error implements error.
func (e *statusError) Error() string {
	if e.message != "" {
		return e.message
	}
	return strings.TrimSpace(fmt.Sprintf("server answers %d %s", e.code, http.StatusText(e.code)))
}

// parseStatus parses a Status object. A proxy in front of the server may send something
// else.
func parseStatus(b []byte, code int, retryAfter string) *statusError {
	e := &statusError{code: code}
	var status struct {
		Kind    string `json:"kind"`
		Message string `json:"message"`
		Details struct {
			RetryAfterSeconds int `json:"retryAfterSeconds"`
			Causes            []struct {
				Reason string `json:"reason"`
			} `json:"causes"`
		} `json:"details"`
	}
	seconds := 0
	if json.Unmarshal(b, &status) == nil && status.Kind == "Status" {
		e.message, seconds = status.Message, status.Details.RetryAfterSeconds
		for _, c := range status.Details.Causes {
			e.tooNew = e.tooNew || c.Reason == "ResourceVersionTooLarge"
		}
	}
	if s, err := strconv.Atoi(retryAfter); err == nil {
		seconds = s
	}
	most := int(maxRetryAfter / time.Second)
	e.retryAfter = time.Duration(min(max(seconds, 0), most)) * time.Second
	return e
}

// code returns the status code of an error response, or 0.
func code(err error) int {
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.code
	}
	return 0
}

// retryAfter returns how long the server asked to wait.
func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.retryAfter
	}
	return 0
}

// expired reports whether the server cannot continue from a version: it is too old, or the
// server was restored and has not reached it yet.
func expired(err error) bool {
	e, ok := errors.AsType[*statusError](err)
	return ok && (e.code == http.StatusGone || e.tooNew)
}

func notFound(err error) bool { return code(err) == http.StatusNotFound }

func denied(err error) bool {
	c := code(err)
	return c == http.StatusForbidden || c == http.StatusUnauthorized
}

// groupPath returns the path of the resources of an apiVersion such as v1 or apps/v1.
func groupPath(apiVersion string) []string {
	if group, version, ok := strings.Cut(apiVersion, "/"); ok {
		return []string{"apis", group, version}
	}
	return []string{"api", apiVersion}
}
