package inference

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
)

// maxPage bounds a page after decompression. The largest that is known, of a Ray head, has half a megabyte.
const maxPage = 4 << 20

// maxLines bounds its lines, each of which takes memory beyond its length. The largest known have 2,000.
const maxLines = 50_000

// maxAnswer bounds what an engine says about itself.
const maxAnswer = 1 << 20

// usual is more than most answers have: a buffer that grows takes several times as much.
const usual = 64 << 10

// UserAgent is who asks.
const UserAgent = "gpumeter"

// Format is how an engine writes down what it does.
type Format string

const (
	// Prometheus is a metrics page, for promtext.Scan and Read.
	Prometheus Format = ""
	// Ollama is Ollama's list of loaded models, for ReadOllama: it has no metrics page.
	Ollama Format = "ollama"
)

// Target is the metrics page of an engine.
type Target struct {
	URL    *url.URL
	Client *http.Client
	Header map[string]string
	// Format is how to read what Page returns.
	Format Format
}

// ErrNotPage reports an answer that is no metrics page. It is not asked for again: trtllm-serve has a
// JSON list at /metrics, and whoever reads it empties it.
var ErrNotPage = errors.New("the answer is a list in JSON, not a metrics page: trtllm-serve has its page at /prometheus/metrics")

// ErrJSON reports another answer that is no metrics page, such as a proxy's that has no engine behind it for now.
var ErrJSON = errors.New("the answer is JSON, not a metrics page")

// ErrTooLarge reports an answer that is larger than any page.
var ErrTooLarge = errors.New("the answer is too large")

// StatusError reports an answer without a page. What the server calls the code is not repeated.
type StatusError struct{ Code int }

func (e *StatusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the answer is %d %s", e.Code, http.StatusText(e.Code)))
}

// NewClient returns a client for targets. It follows no redirects: they could lead anywhere.
func NewClient(transport http.RoundTripper, timeout time.Duration) *http.Client {
	return &http.Client{Transport: transport, Timeout: timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Page returns the page.
func (t *Target) Page(ctx context.Context) ([]byte, error) {
	if t.Format == Ollama {
		b, _, err := t.get(ctx, t.URL, "application/json", maxAnswer)
		return b, err
	}
	b, kind, err := t.get(ctx, t.URL, "text/plain;version=0.0.4;q=1,*/*;q=0.1", maxPage)
	if kind == "application/json" {
		if b = bytes.TrimLeft(b, " \t\r\n"); len(b) == 0 || b[0] == '[' { // however much of it was read
			return nil, ErrNotPage
		}
		return nil, cmp.Or(err, ErrJSON)
	}
	if err == nil && bytes.Count(b, []byte("\n")) > maxLines {
		return nil, fmt.Errorf("%w: it has more than %d lines", ErrTooLarge, maxLines)
	}
	return b, err
}

// Ask returns what the engine answers at another path.
func (t *Target) Ask(ctx context.Context, path string) ([]byte, error) {
	u := *t.URL
	u.Path, u.RawPath, u.RawQuery = path, "", ""
	b, _, err := t.get(ctx, &u, "application/json", maxAnswer)
	return b, err
}

// get returns an answer and its type. With an error they are what is known of them.
func (t *Target) get(ctx context.Context, u *url.URL, accept string, limit int64) (answered []byte, kind string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("User-Agent", UserAgent)
	for name, value := range t.Header {
		if strings.EqualFold(name, "Host") {
			r.Host = value
		} else {
			r.Header.Set(name, value)
		}
	}
	answer, err := t.Client.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, "", &StatusError{answer.StatusCode}
	}
	if kind, _, err = mime.ParseMediaType(answer.Header.Get("Content-Type")); err != nil {
		kind = ""
	}
	b := bytes.NewBuffer(make([]byte, 0, usual))
	_, err = b.ReadFrom(io.LimitReader(answer.Body, limit+1))
	if err == nil && int64(b.Len()) > limit {
		err = fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, limit)
	}
	return b.Bytes(), kind, err
}

// Empties reports whether the page may be that of trtllm-serve which is empty once it was read, behind a proxy or not.
func (t *Target) Empties() bool {
	p := path.Clean("/" + t.URL.Path)
	return strings.HasSuffix(p, "/metrics") && !strings.HasSuffix(p, "/prometheus/metrics")
}

// IsTensorRT reports whether a list of models, as at /v1/models, is of trtllm-serve: its /metrics must not be read,
// which empties it.
func IsTensorRT(models []byte) bool {
	var list struct {
		Data []struct {
			OwnedBy string `json:"owned_by"`
		} `json:"data"`
	}
	if json.Unmarshal(models, &list) != nil {
		return false // a page for people
	}
	for _, m := range list.Data {
		if m.OwnedBy == "tensorrt_llm" {
			return true
		}
	}
	return false
}

// Drains returns ErrNotPage if the page is that of trtllm-serve which is empty once it was read, and asks for
// something else to find out. Any other error leaves it open.
func (t *Target) Drains(ctx context.Context) error {
	if path.Clean("/"+t.URL.Path) != "/metrics" {
		return nil
	}
	b, err := t.Ask(ctx, "/v1/models")
	if err == nil && IsTensorRT(b) {
		return ErrNotPage
	}
	var status *StatusError
	if errors.As(err, &status) || errors.Is(err, ErrTooLarge) { // another program
		return nil
	}
	return err
}

// About is what an engine says of itself beside its page. What it does not say is empty.
type About struct{ Model, Version string }

// abouts are where engines say something of themselves.
var abouts = map[string][]string{
	"vllm": {"/version"}, "tensorrt_llm": {"/version"}, "nvidia_nim": {"/v1/version"}, "tgi": {"/info"}, "tei": {"/info"},
	"llama_cpp": {"/v1/models", "/props"}, "triton": {"/v2"}, ollama: {"/api/version"},
}

// About asks an engine about itself: for its version, and for its model if its page does not name that. provider is
// one of the Providers of a Reading. An engine that answers otherwise, or not there, has nothing to say.
func (t *Target) About(ctx context.Context, provider string) (About, error) {
	var out About
	for _, at := range abouts[provider] {
		b, err := t.Ask(ctx, at)
		var status *StatusError
		if errors.As(err, &status) && status.Code < http.StatusInternalServerError {
			continue
		}
		if err != nil {
			return out, fmt.Errorf("cannot ask at %s: %w", at, err)
		}
		more := about(b)
		out.Model, out.Version = cmp.Or(out.Model, more.Model), cmp.Or(out.Version, more.Version)
	}
	return out, nil
}

// about reads what an engine says of itself.
func about(b []byte) About {
	var answer struct {
		ID      any `json:"model_id"`
		Version any `json:"version"`
		Release any `json:"release"`    // NIM: version is that of its API
		Build   any `json:"build_info"` // llama.cpp
		Data    []struct {
			ID any `json:"id"`
		} `json:"data"`
	}
	if json.Unmarshal(b, &answer) != nil {
		return About{}
	}
	if len(answer.Data) > 0 {
		answer.ID = answer.Data[0].ID
	}
	out := About{Model: short(answer.ID), Version: cmp.Or(short(answer.Release), short(answer.Build), short(answer.Version))}
	if strings.HasSuffix(out.Model, ".gguf") { // the path of a file
		out.Model = path.Base(out.Model)
	}
	return out
}

// short returns a text that is short enough for an attribute, or "".
func short(v any) string {
	text, _ := v.(string)
	if len(text) > maxValue {
		return ""
	}
	return text
}
