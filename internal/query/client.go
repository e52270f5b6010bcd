package query

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Config says where a store is and how to authenticate.
type Config struct {
	// URL is the part before /api/v1/query: http://prometheus:9090 or, for Mimir with its
	// prefix, http://mimir/prometheus. A user and password in it are used.
	URL string
	// TokenFile holds a bearer token. It is read for every query because tokens are renewed.
	TokenFile string
	// User and PasswordFile are for stores with basic authentication.
	User, PasswordFile string
	CAFile             string            // certificates to trust in addition to the system's
	Headers            map[string]string // such as Mimir's X-Scope-OrgID
	Timeout            time.Duration     // per request; 0 means one minute
	MaxBytes           int64             // per answer; 0 means 1 GiB
}

// maxPoints bounds the points per series in one answer: Prometheus rejects more than 11,000.
const maxPoints = 10000

// Client is a Store behind Prometheus' HTTP API: Prometheus, Mimir, Thanos,
// VictoriaMetrics, or a hub. It is safe for concurrent use.
type Client struct {
	base     string
	password *url.Userinfo
	c        Config
	http     *http.Client
}

var _ Store = (*Client)(nil)

// Open returns a client. It sends no request.
func Open(c Config) (*Client, error) {
	u, err := url.Parse(c.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("store address must be like http://prometheus:9090") // not repeated: it may contain a password
	}
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	c.MaxBytes = cmp.Or(c.MaxBytes, 1<<30)
	for name, value := range c.Headers {
		if !validHeader(name, value) {
			return nil, fmt.Errorf("header %.40q has an invalid name or value", name)
		}
	}
	cl := &Client{password: u.User, c: c}
	u.User = nil
	cl.base = strings.TrimSuffix(strings.TrimRight(u.String(), "/"), "/api/v1")
	t := http.DefaultTransport.(*http.Transport).Clone()
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read CA certificates: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", c.CAFile)
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	cl.http = &http.Client{Transport: t, CheckRedirect: sameHost}
	return cl, nil
}

// sameHost follows redirects only within the same host: another host would get our headers.
func sameHost(req *http.Request, via []*http.Request) error {
	if first := via[0].URL; len(via) > 5 || req.URL.Host != first.Host || req.URL.Scheme != first.Scheme {
		return errors.New("refusing a redirect to another host")
	}
	return nil
}

func validHeader(name, value string) bool {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r) }
	return name != "" && !strings.ContainsFunc(name, bad) && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// Instant implements Store.
func (c *Client) Instant(ctx context.Context, expr string, at time.Time) ([]Sample, error) {
	var out []Sample
	err := c.ask(ctx, "query", url.Values{"query": {expr}, "time": {seconds(at)}}, func(e *element) {
		if e.Value != nil {
			out = append(out, Sample{Labels: e.Metric, Time: e.Value.Time, Value: e.Value.Value})
		}
	})
	return out, err
}

// Range implements Store. It splits a range with more points than a store returns at once.
func (c *Client) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]Series, error) {
	if step < time.Millisecond {
		return nil, fmt.Errorf("step of %v is too short", step)
	}
	var j joiner
	for !start.After(end) {
		last := start.Add((maxPoints - 1) * step)
		if last.After(end) {
			last = end
		}
		form := url.Values{"query": {expr}, "start": {seconds(start)}, "end": {seconds(last)}, "step": {seconds(time.UnixMilli(step.Milliseconds()))}}
		if err := c.ask(ctx, "query_range", form, func(e *element) { j.add(e.Metric, e.Values) }); err != nil {
			return nil, err
		}
		start = last.Add(step)
	}
	return j.list, nil
}

// Raw implements Store with a range selector. Prometheus before 3.0 includes the sample at
// the left edge, which is dropped here, as are NaN values, with which VictoriaMetrics may
// mark the end of a series.
func (c *Client) Raw(ctx context.Context, selector string, from, to time.Time) ([]Series, error) {
	from, to = from.Truncate(time.Millisecond), to.Truncate(time.Millisecond)
	if !from.Before(to) {
		return nil, nil
	}
	var j joiner
	expr := selector + "[" + Duration(to.Sub(from)) + "]"
	err := c.ask(ctx, "query", url.Values{"query": {expr}, "time": {seconds(to)}}, func(e *element) {
		kept := e.Values[:0]
		for _, p := range e.Values {
			if p.Time.After(from) && !p.Time.After(to) && !math.IsNaN(p.Value) {
				kept = append(kept, p)
			}
		}
		if len(kept) > 0 {
			j.add(e.Metric, kept)
		}
	})
	return j.list, err
}

// Duration formats d for PromQL, in whole milliseconds.
func Duration(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

func seconds(t time.Time) string {
	ms := t.UnixMilli()
	return fmt.Sprintf("%d.%03d", ms/1000, ms%1000)
}

// joiner concatenates the parts of a split range by series.
type joiner struct {
	list []Series
	at   map[string]int
}

func (j *joiner) add(labels Labels, points []Point) {
	if j.at == nil {
		j.at = map[string]int{}
	}
	key := labels.Key()
	i, ok := j.at[key]
	if !ok {
		i = len(j.list)
		j.at[key] = i
		j.list = append(j.list, Series{Labels: labels})
	}
	s := &j.list[i]
	if s.Points == nil {
		s.Points = points
		return
	}
	s.Points = append(s.Points, points...)
}

// ask posts a query and calls each for every series of the answer.
func (c *Client) ask(ctx context.Context, what string, form url.Values, each func(*element)) error {
	ctx, cancel := context.WithTimeout(ctx, c.c.Timeout)
	defer cancel()
	form.Set("timeout", strconv.Itoa(int(max(1, c.c.Timeout.Seconds())))+"s")
	form.Set("nocache", "1") // VictoriaMetrics: include late samples
	// A distributed store must fail if one of its parts is down: a partial answer would yield
	// a partial bill.
	form.Set("partial_response", "false")  // Thanos
	form.Set("deny_partial_response", "1") // VictoriaMetrics
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/api/v1/"+what, strings.NewReader(form.Encode()))
	if err != nil {
		return errors.New("invalid store address")
	}
	secrets, err := c.header(req)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // drop the address, which may contain a password
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v", c.c.Timeout)
		}
		return fmt.Errorf("cannot query store at %s: %w", c.base, err)
	}
	defer resp.Body.Close()
	body := &io.LimitedReader{R: resp.Body, N: c.c.MaxBytes}
	if resp.StatusCode != http.StatusOK {
		body.N = min(body.N, 1<<16)
	}
	err = decode(body, each)
	switch {
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	case body.N <= 0:
		err = fmt.Errorf("answer exceeds %d MiB: query a shorter range or fewer series", c.c.MaxBytes>>20)
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		err = fmt.Errorf("%s: a token or password may be missing or wrong", status(resp))
	case errors.As(err, new(storeError)):
	case resp.StatusCode != http.StatusOK:
		err = errors.New(status(resp))
	}
	if err != nil {
		return fmt.Errorf("cannot query store at %s: %w", c.base, hide(err, secrets))
	}
	return nil
}

// maxPage bounds an answer of get: a day of 200,000 workloads.
const maxPage = 256 << 20

// Page returns the answer of a hub to a path of its page's API, such as prices. ok is false if
// the store is no hub.
func (c *Client) Page(ctx context.Context, path string) (body []byte, ok bool, err error) {
	return c.get(ctx, "/api/page/"+path)
}

// Listed returns the labels of the series that a selector matches in a period. Stores round the period as
// they like, VictoriaMetrics to days.
func (c *Client) Listed(ctx context.Context, selector string, from, to time.Time) ([]Labels, error) {
	body, ok, err := c.get(ctx, "/api/v1/series?"+url.Values{"match[]": {selector}, "start": {seconds(from)}, "end": {seconds(to)}}.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct{ Data []Labels }
	if !ok || json.Unmarshal(body, &answer) != nil {
		return nil, fmt.Errorf("the store at %s does not list series", c.base)
	}
	return answer.Data, nil
}

// get returns the answer to a path. ok is false if the store does not have that path.
func (c *Client) get(ctx context.Context, path string) (body []byte, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, false, errors.New("invalid store address")
	}
	secrets, err := c.header(req)
	if err != nil {
		return nil, false, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // drop the address, which may contain a password
		}
		return nil, false, fmt.Errorf("cannot query store at %s: %w", c.base, hide(err, secrets))
	}
	defer resp.Body.Close()
	isJSON := strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json")
	if isJSON && (resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests) {
		return nil, false, fmt.Errorf("cannot query store at %s: %s", c.base, status(resp))
	}
	if resp.StatusCode != http.StatusOK || !isJSON {
		return nil, false, nil // any other store answers in its own way
	}
	if body, err = io.ReadAll(io.LimitReader(resp.Body, maxPage+1)); err != nil {
		return nil, false, fmt.Errorf("cannot query store at %s: %w", c.base, hide(err, secrets))
	}
	if len(body) > maxPage {
		return nil, false, fmt.Errorf("the answer of the store at %s is longer than %d MiB", c.base, maxPage>>20)
	}
	return body, true, nil
}

// status returns the status in Go's words: a server may send any text after the code.
func status(resp *http.Response) string {
	return strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode))
}

// header sets the credentials and returns the secrets that errors must not repeat.
func (c *Client) header(req *http.Request) (secrets []string, err error) {
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Cache-Control", "no-store") // Mimir and Thanos cache answers
	for name, value := range c.c.Headers {
		req.Header.Set(name, value)
		secrets = append(secrets, value)
	}
	if c.password != nil {
		password, _ := c.password.Password()
		req.SetBasicAuth(c.password.Username(), password)
		secrets = append(secrets, password)
	}
	if c.c.PasswordFile != "" {
		password, err := secret(c.c.PasswordFile)
		if err != nil {
			return nil, err
		}
		req.SetBasicAuth(c.c.User, password)
		secrets = append(secrets, password)
	}
	if c.c.TokenFile != "" {
		token, err := secret(c.c.TokenFile)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		secrets = append(secrets, token)
	}
	return secrets, nil
}

// secret reads a one-line file.
func secret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot read token or password: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1<<16))
	if err != nil {
		return "", fmt.Errorf("cannot read token or password: %w", err)
	}
	s := strings.TrimSpace(string(text))
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
		return "", fmt.Errorf("%s must contain a token or password on one line", path)
	}
	return s, nil
}

// hide removes secrets from a server's message: some servers echo the request.
func hide(err error, secrets []string) error {
	text := err.Error()
	for _, s := range secrets {
		if len(s) >= 4 && strings.Contains(text, s) {
			text = strings.ReplaceAll(text, s, "***")
			err = errors.New(text)
		}
	}
	return err
}
