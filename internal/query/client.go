package query

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
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

// Config says where a store is and how to be let in.
type Config struct {
	// URL is what comes before /api/v1/query: http://prometheus:9090, and for Mimir with
	// its prefix, http://mimir/prometheus. A name and password in it are used.
	URL string
	// TokenFile has a bearer token, and is read for each question: tokens are renewed.
	TokenFile string
	// User and PasswordFile are for stores that want a password.
	User, PasswordFile string
	CAFile             string            // certificates to trust besides the system's
	Headers            map[string]string // such as X-Scope-OrgID of Mimir
	Timeout            time.Duration     // of one question; 0: a minute
	MaxBytes           int64             // of one answer; 0: 1 GiB
}

// maxPoints of a series in one answer: Prometheus refuses more than 11,000.
const maxPoints = 10000

// Client is a Store behind Prometheus' HTTP API: Prometheus, Mimir, Thanos,
// VictoriaMetrics, or a hub.
type Client struct {
	base     string
	password *url.Userinfo
	c        Config
	http     *http.Client
}

var _ Store = (*Client)(nil)

// Open returns a client. It asks nothing yet.
func Open(c Config) (*Client, error) {
	u, err := url.Parse(c.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("the address of the store must be like http://prometheus:9090") // it may have a password
	}
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	c.MaxBytes = cmp.Or(c.MaxBytes, 1<<30)
	for name, value := range c.Headers {
		if !validHeader(name, value) {
			return nil, fmt.Errorf("%.40q cannot be the name of a header, or what follows it its value", name)
		}
	}
	cl := &Client{password: u.User, c: c}
	u.User = nil
	cl.base = strings.TrimSuffix(strings.TrimRight(u.String(), "/"), "/api/v1")
	t := http.DefaultTransport.(*http.Transport).Clone()
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the certificates to trust: %w", err)
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

// sameHost follows redirects within a host only: another would get our headers.
func sameHost(req *http.Request, via []*http.Request) error {
	if first := via[0].URL; len(via) > 5 || req.URL.Host != first.Host || req.URL.Scheme != first.Scheme {
		return errors.New("it redirects to another place, which is not followed")
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

// Range implements Store. What has more points than a store gives at once is asked for in
// parts.
func (c *Client) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]Series, error) {
	if step < time.Millisecond {
		return nil, fmt.Errorf("a step of %v is too short", step)
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

// Raw implements Store, by a range selector at the end. Prometheus before 3.0 adds the
// sample at the left edge, which is left out here; values that are no numbers, which are
// how VictoriaMetrics may show the end of a series, are too.
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

// Duration writes d as PromQL does, in whole milliseconds.
func Duration(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

func seconds(t time.Time) string {
	ms := t.UnixMilli()
	return fmt.Sprintf("%d.%03d", ms/1000, ms%1000)
}

// joiner puts the parts of series together.
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

// ask posts a question and gives each series of the answer to each.
func (c *Client) ask(ctx context.Context, what string, form url.Values, each func(*element)) error {
	ctx, cancel := context.WithTimeout(ctx, c.c.Timeout)
	defer cancel()
	form.Set("timeout", strconv.Itoa(int(max(1, c.c.Timeout.Seconds())))+"s")
	form.Set("nocache", "1") // VictoriaMetrics: what came late is to be in the answer
	// A store of several parts, of which one is away, is to say so: half an answer would be
	// half a bill.
	form.Set("partial_response", "false")  // Thanos
	form.Set("deny_partial_response", "1") // VictoriaMetrics
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/api/v1/"+what, strings.NewReader(form.Encode()))
	if err != nil {
		return errors.New("the address of the store cannot be asked")
	}
	secrets, err := c.header(req)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the address
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v", c.c.Timeout)
		}
		return fmt.Errorf("the store at %s: %w", c.base, err)
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
		err = fmt.Errorf("the answer is over %d MiB: ask for a shorter time or fewer series", c.c.MaxBytes>>20)
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		err = fmt.Errorf("%s: a token or password may be missing or wrong", status(resp))
	case errors.As(err, new(storeError)):
	case resp.StatusCode != http.StatusOK:
		err = errors.New(status(resp))
	}
	if err != nil {
		return fmt.Errorf("the store at %s: %w", c.base, hide(err, secrets))
	}
	return nil
}

// status is that of an answer, in our words: a server may write anything after the code.
func status(resp *http.Response) string {
	return strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode))
}

// header sets what lets us in, and returns what must not be repeated.
func (c *Client) header(req *http.Request) (secrets []string, err error) {
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Cache-Control", "no-store") // Mimir and Thanos keep answers
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

// secret reads a file with one line.
func secret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot read the token or password: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1<<16))
	if err != nil {
		return "", fmt.Errorf("cannot read the token or password: %w", err)
	}
	s := strings.TrimSpace(string(text))
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
		return "", fmt.Errorf("%s has no token or password on one line", path)
	}
	return s, nil
}

// hide takes secrets out of what a server wrote: some repeat what they were sent.
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
