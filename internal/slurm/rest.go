package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// REST is a client of slurmrestd at http://host:6820, https://... or
// unix:/run/slurmrestd.sock. It looks up the newest API version once, unless the address
// ends in a version such as /slurm/v0.0.41.
type REST struct {
	base  string // without a trailing slash
	token string // path of the JWT file; empty sends no token
	user  string // the token's user, for a slurmrestd that requires the name

	client *http.Client

	mu      sync.Mutex
	version string // API version such as v0.0.41; empty until known
}

// NewREST returns a client of the slurmrestd at address. token is the path of the file
// with the JWT, user the name of the token's user; both may be empty.
func NewREST(address, token, user string) (*REST, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil // a proxy must not see the token
	r := &REST{token: token, user: user}
	r.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the token must not follow a redirect
	}}
	if socket, ok := strings.CutPrefix(address, "unix:"); ok {
		socket = "/" + strings.TrimLeft(socket, "/")
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}
		address = "http://localhost"
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return nil, errors.New("slurmrestd address must be http://, https:// or unix:, without a user")
	}
	path := strings.TrimRight(u.Path, "/")
	if i := strings.Index(path, "/slurm/v"); i >= 0 {
		path, r.version = path[:i], path[i+len("/slurm/"):]
	}
	r.base = u.Scheme + "://" + u.Host + path
	return r, nil
}

// Get requests a path of the API, such as jobs of slurm or jobs/?start_time=1 of slurmdb,
// and passes the response body to parse.
func (r *REST) Get(ctx context.Context, api, path string, parse func(io.Reader) error) error {
	r.mu.Lock()
	defer r.mu.Unlock() // one request at a time
	if r.version == "" {
		if err := r.find(ctx); err != nil {
			return fmt.Errorf("slurmrestd: %w", err)
		}
	}
	body, err := r.get(ctx, "/"+api+"/"+r.version+"/"+path)
	if err != nil {
		return fmt.Errorf("slurmrestd: %w", err)
	}
	defer body.Close()
	limited := &io.LimitedReader{R: body, N: maxAnswer}
	err = parse(limited)
	if limited.N <= 0 {
		err = ErrTooLong
	}
	if err != nil {
		return fmt.Errorf("slurmrestd: %w", err)
	}
	return nil
}

// paths matches the paths in the OpenAPI description, with / plain or escaped as older
// versions write it.
var paths = regexp.MustCompile(`"(?:\\?/)slurm(?:\\?/)v0\.0\.([0-9]{1,3})(?:\\?/)jobs(?:\\?/)?"`)

// find sets the API version to the newest one that the OpenAPI description lists.
func (r *REST) find(ctx context.Context) error {
	body, err := r.get(ctx, "/openapi/v3")
	if err != nil {
		return err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, maxAnswer))
	if err != nil {
		return err
	}
	newest := 0
	for _, m := range paths.FindAllSubmatch(b, -1) {
		n, _ := strconv.Atoi(string(m[1])) // at most three digits
		newest = max(newest, n)
	}
	if newest == 0 {
		return errors.New("OpenAPI description lists no jobs path")
	}
	r.version = fmt.Sprintf("v0.0.%d", newest)
	return nil
}

// get returns a response body. Its errors never contain request headers.
func (r *REST) get(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if r.token != "" {
		b, err := ReadFile(r.token, 1<<16) // read every time because tokens are renewed
		if err != nil {
			return nil, fmt.Errorf("cannot read token: %w", err)
		}
		token := bytes.TrimSpace(b)
		token = bytes.TrimPrefix(token, []byte("SLURM_JWT=")) // as scontrol token writes it
		if len(token) == 0 || bytes.ContainsAny(token, " \t\r\n") {
			return nil, fmt.Errorf("no token in %s", r.token)
		}
		req.Header.Set("X-SLURM-USER-TOKEN", string(token))
	}
	if r.user != "" {
		req.Header.Set("X-SLURM-USER-NAME", r.user)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return resp.Body, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		err = fmt.Errorf("%s: %w", resp.Status, ErrDenied)
	case http.StatusNotFound:
		r.version = "" // slurmrestd may have been upgraded
		fallthrough
	default:
		path, _, _ = strings.Cut(path, "?")
		err = fmt.Errorf("%s for %s", resp.Status, path)
	}
	resp.Body.Close()
	return nil, err
}

// ErrDenied means that slurmrestd rejected the token.
var ErrDenied = errors.New("access denied")
