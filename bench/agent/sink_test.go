//go:build bench

package agent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// sink accepts OTLP and counts the bytes of metrics.
type sink struct {
	*httptest.Server

	mu              sync.Mutex
	requests, bytes int64
}

func newSink(t *testing.T) *sink {
	t.Helper()
	s := &sink{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		// Smaller requests are the agent's own metrics.
		if strings.HasSuffix(r.URL.Path, "/v1/metrics") && n > 1500 {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.requests++
			s.bytes += n
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *sink) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests, s.bytes = 0, 0
}

// perRequest returns kB per request; the agent sends one request per tick.
func (s *sink) perRequest() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests == 0 {
		return 0
	}
	return float64(s.bytes) / float64(s.requests) / 1000
}
