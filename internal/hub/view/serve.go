package view

import (
	"bytes"
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

	"github.com/gpumeter/gpumeter/internal/cost"
)

// span is a period in Unix seconds.
type span struct{ from, to int64 }

// request is a parsed request of the page.
type request struct {
	at       time.Time // evaluation time of instant values
	from, to time.Time // period of everything else
	values   url.Values
}

func (v *viewer) serve(answer func(context.Context, request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), v.opts.Timeout)
		defer cancel()
		req, err := parse(r.URL.Query(), v.opts.Now().In(v.opts.Zone))
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
	return http.StatusBadGateway // the store, the hub's own or a foreign one, did not answer
}

// write sends body as JSON, compressed if the browser accepts gzip: a fleet of 10,000 GPUs is
// a megabyte uncompressed.
func write(w http.ResponseWriter, r *http.Request, code int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "cannot encode the response: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Add("Vary", "Accept-Encoding")
	if len(b) < 1400 || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		if code != http.StatusOK { // a 200 may still become a 503 if slow clients hold the memory
			w.WriteHeader(code)
		}
		_, _ = w.Write(b) // the client disconnected
		return
	}
	h.Set("Content-Encoding", "gzip")
	var zipped bytes.Buffer                              // a slow client keeps only this in memory
	z, _ := gzip.NewWriterLevel(&zipped, gzip.BestSpeed) // valid level
	_, _ = z.Write(b)                                    // into memory
	_ = z.Close()                                        // as above
	if code != http.StatusOK {
		w.WriteHeader(code)
	}
	_, _ = w.Write(zipped.Bytes()) // the client disconnected
}

// parse reads the times of a request: at, from and to in Unix seconds. to defaults to at, or
// to now without at; from defaults to a day before to. period names a day or month of the time zone
// of now instead.
func parse(values url.Values, now time.Time) (request, error) {
	r := request{values: values}
	if name := values.Get("period"); name != "" {
		var err error
		r.from, r.to, err = calendar(name, now)
		r.at = r.to
		return r, err
	}
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
		return r, fmt.Errorf("%w: from must be before to, by at most %d days", errBad, int(maxSpan.Hours()/24))
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
		return time.Time{}, fmt.Errorf("%w: %s=%q is not a Unix time in seconds", errBad, key, text)
	}
	return time.Unix(n, 0).In(fallback.Location()), nil
}

// calendar returns a day or month, up to now.
func calendar(name string, now time.Time) (from, to time.Time, err error) {
	year, month, day := now.Date()
	zone := now.Location()
	switch name {
	case "today":
		from, to = cost.DayOf(now), now
	case "yesterday":
		from, to = cost.Midnight(year, month, day-1, zone), cost.DayOf(now)
	case "month":
		from, to = cost.MonthOf(now), now
	case "last-month":
		from, to = cost.Midnight(year, month-1, 1, zone), cost.MonthOf(now)
	default:
		return from, to, fmt.Errorf("%w: period=%q is not one of today, yesterday, month, last-month", errBad, name)
	}
	if !from.Add(time.Minute).Before(to) { // the period has just begun: bills have whole minutes
		to = from.Add(time.Minute)
	}
	return from, to, nil
}

// memory is a cache of recent answers with a short lifetime. Concurrent requests for the same
// key share one computation.
type memory[K comparable, V any] struct {
	max  int // answers; 0 means maxRemember
	mu   sync.Mutex
	kept map[K]*memo[V]
}

type memo[V any] struct {
	done  chan struct{}
	made  time.Time
	value V
	err   error
}

// get returns the answer for key, computed at most age ago. The computation continues if the
// first requester disconnects: others may be waiting for it.
func (m *memory[K, V]) get(ctx context.Context, key K, now time.Time, age time.Duration, compute func(context.Context) (V, error)) (V, error) {
	m.mu.Lock()
	e := m.kept[key]
	mine := e == nil || now.Sub(e.made) > age
	if mine {
		if m.kept == nil || len(m.kept) >= cmp.Or(m.max, maxRemember) {
			m.kept = map[K]*memo[V]{} // waiters hold their own reference
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
		if e.err != nil { // not cached: the next request retries
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
