package inference

import (
	"bytes"
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
var ErrNotPage = errors.New("the answer is JSON, not a metrics page: trtllm-serve has its page at /prometheus/metrics")

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
		return t.get(ctx, t.URL, "application/json", maxAnswer, anyType)
	}
	b, err := t.get(ctx, t.URL, "text/plain;version=0.0.4;q=1,*/*;q=0.1", maxPage, func(kind string) error {
		if kind == "application/json" {
			return ErrNotPage
		}
		return nil
	})
	if err == nil && bytes.Count(b, []byte("\n")) > maxLines {
		return nil, fmt.Errorf("%w: it has more than %d lines", ErrTooLarge, maxLines)
	}
	return b, err
}

// Ask returns what the engine answers at another path.
func (t *Target) Ask(ctx context.Context, path string) ([]byte, error) {
	u := *t.URL
	u.Path, u.RawPath, u.RawQuery = path, "", ""
	return t.get(ctx, &u, "application/json", maxAnswer, anyType)
}

func anyType(string) error { return nil }

func (t *Target) get(ctx context.Context, u *url.URL, accept string, limit int64, check func(contentType string) error) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("User-Agent", "gpumeter")
	for name, value := range t.Header {
		r.Header.Set(name, value)
	}
	answer, err := t.Client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, &StatusError{answer.StatusCode}
	}
	kind, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	if err != nil {
		kind = ""
	}
	if err := check(kind); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, limit)
	}
	return b, nil
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

// Model returns the model of an engine whose page does not name it, empty if it does not say. provider
// is one of the Providers of a Reading.
func (t *Target) Model(ctx context.Context, provider string) (string, error) {
	var at string
	var answer struct {
		ID   string `json:"model_id"`
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	switch provider {
	case "tgi", "tei":
		at = "/info"
	case "llama_cpp":
		at = "/v1/models"
	default:
		return "", nil
	}
	b, err := t.Ask(ctx, at)
	if err != nil {
		return "", fmt.Errorf("cannot ask for the model: %w", err)
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		return "", fmt.Errorf("cannot parse the model at %s: %w", at, err)
	}
	if len(answer.Data) > 0 {
		answer.ID = answer.Data[0].ID
	}
	if strings.HasSuffix(answer.ID, ".gguf") { // the path of a file
		return path.Base(answer.ID), nil
	}
	return answer.ID, nil
}
