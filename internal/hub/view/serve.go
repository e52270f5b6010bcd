package view

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// span is a period of time, in seconds since 1970.
type span struct{ from, to int64 }

// request is what the page asks for.
type request struct {
	at       time.Time // the moment of things that have one value
	from, to time.Time // the period of things that have many
	values   url.Values
}

func (v *viewer) serve(answer func(context.Context, request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), v.opts.Timeout)
		defer cancel()
		req, err := parse(r.URL.Query(), v.opts.Now())
		var body any
		if err == nil {
			body, err = answer(ctx, req)
		}
		code := http.StatusOK
		if err != nil {
			code = status(err)
			body = map[string]string{"error": err.Error()}
		}
		write(w, r, code, body)
	}
}

func status(err error) int {
	switch {
	case errors.Is(err, errBad):
		return http.StatusBadRequest
	case errors.Is(err, errNone):
		return http.StatusNotFound
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway // the store, ours or not, did not answer
}

// write sends body as JSON, made smaller where the browser takes it: a fleet of 10,000
// GPUs is a megabyte without.
func write(w http.ResponseWriter, r *http.Request, code int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "cannot write the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Add("Vary", "Accept-Encoding")
	if len(b) < 1400 || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.WriteHeader(code)
		_, _ = w.Write(b) // the client disconnected
		return
	}
	h.Set("Content-Encoding", "gzip")
	w.WriteHeader(code)
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // valid level
	_, _ = z.Write(b)                              // as above
	_ = z.Close()                                  // as above
}

// parse reads the times of a request: at, from and to in seconds since 1970, where to is
// at or now if it is not given, and from a day before.
func parse(values url.Values, now time.Time) (request, error) {
	r := request{values: values}
	to, err := moment(values, "to", now)
	if err != nil {
		return r, err
	}
	if r.at, err = moment(values, "at", to); err != nil {
		return r, err
	}
	if values.Get("to") == "" {
		to = r.at
	}
	r.to = to
	if r.from, err = moment(values, "from", to.Add(-24*time.Hour)); err != nil {
		return r, err
	}
	if !r.from.Before(r.to) || r.to.Sub(r.from) > maxSpan {
		return r, fmt.Errorf("%w: from must be before to, and at most %d days", errBad, int(maxSpan.Hours()/24))
	}
	return r, nil
}

func moment(values url.Values, key string, fallback time.Time) (time.Time, error) {
	text := values.Get(key)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > 1<<33 {
		return time.Time{}, fmt.Errorf("%w: %s=%q is not a number of seconds since 1970", errBad, key, text)
	}
	return time.Unix(n, 0), nil
}

// memory keeps the latest answers for a short time. Those who ask for the same at the
// same time wait for one answer.
type memory[K comparable, V any] struct {
	max  int // answers; 0: maxRemember
	mu   sync.Mutex
	kept map[K]*memo[V]
}

type memo[V any] struct {
	done  chan struct{}
	made  time.Time
	value V
	err   error
}

// get returns what compute gives for key, or gave not longer than age ago. Whoever asked
// first may go away: others may wait for the answer, and the next one wants it.
func (m *memory[K, V]) get(ctx context.Context, key K, now time.Time, age time.Duration, compute func(context.Context) (V, error)) (V, error) {
	m.mu.Lock()
	e := m.kept[key]
	mine := e == nil || now.Sub(e.made) > age
	if mine {
		if m.kept == nil || len(m.kept) >= cmp.Or(m.max, maxRemember) {
			m.kept = map[K]*memo[V]{} // who waits has its own reference
		}
		e = &memo[V]{done: make(chan struct{}), made: now}
		m.kept[key] = e
	}
	m.mu.Unlock()
	if mine {
		lasting := context.WithoutCancel(ctx)
		if deadline, ok := ctx.Deadline(); ok {
			var cancel context.CancelFunc
			lasting, cancel = context.WithDeadline(lasting, deadline)
			defer cancel()
		}
		e.value, e.err = compute(lasting)
		if e.err != nil { // the next one tries again
			m.mu.Lock()
			if m.kept[key] == e {
				delete(m.kept, key)
			}
			m.mu.Unlock()
		}
		close(e.done)
		return e.value, e.err
	}
	select {
	case <-e.done:
		return e.value, e.err
	case <-ctx.Done():
		var none V
		return none, ctx.Err()
	}
}
