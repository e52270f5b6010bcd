package triage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
)

// Limits of the search for open findings.
const (
	openFor   = 30 * 24 * time.Hour
	maxEvents = 20_000
)

// finding is an open finding in the answer to GET /api/findings.
type finding struct {
	ID       string            `json:"id"`
	Severity string            `json:"severity"`
	Text     string            `json:"text"`
	Mark     *Mark             `json:"mark,omitempty"`
	Labels   map[string]string `json:"attributes"`
}

// errUnknown is answered with 404.
var errUnknown = errors.New("no open finding has this ID: see GET /api/findings")

// errInput is answered with 400.
var errInput = errors.New("bad request")

// Handler serves
//
//	GET    /api/findings                        the open findings
//	POST   /api/findings/{id}/acknowledge       comment=TEXT
//	POST   /api/findings/{id}/silence           for=DURATION or until=RFC3339, comment=TEXT
//	DELETE /api/findings/{id}                   removes the mark
//
// The caller has checked the grant.
func (m *Marks) Handler(log events.Log) func(http.ResponseWriter, *http.Request, access.Grant) {
	return func(w http.ResponseWriter, r *http.Request, g access.Grant) {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /api/findings", func(w http.ResponseWriter, r *http.Request) {
			list, err := m.list(r.Context(), log)
			respond(w, list, err)
		})
		mux.HandleFunc("POST /api/findings/{id}/acknowledge", func(w http.ResponseWriter, r *http.Request) {
			x, err := m.mark(r, log, g.Name, func(x *Mark, since string) error {
				x.Since = since
				return nil
			})
			respond(w, x, err)
		})
		mux.HandleFunc("POST /api/findings/{id}/silence", func(w http.ResponseWriter, r *http.Request) {
			x, err := m.mark(r, log, g.Name, func(x *Mark, _ string) (err error) {
				x.Until, err = m.until(r)
				return err
			})
			respond(w, x, err)
		})
		mux.HandleFunc("DELETE /api/findings/{id}", func(w http.ResponseWriter, r *http.Request) {
			respond(w, struct{}{}, m.set(Mark{Finding: r.PathValue("id")}, true))
		})
		mux.ServeHTTP(w, r)
	}
}

// open returns the events of the open findings.
func (m *Marks) open(ctx context.Context, log events.Log) ([]events.Event, error) {
	now := m.now()
	list, err := log.Events(ctx, events.Query{From: now.Add(-openFor), To: now, Names: []string{"gpu.finding"}, Limit: maxEvents})
	if err != nil {
		return nil, fmt.Errorf("cannot read events: %w", err)
	}
	return Open(list), nil
}

func (m *Marks) list(ctx context.Context, log events.Log) ([]finding, error) {
	open, err := m.open(ctx, log)
	out := []finding{}
	for i := range open {
		a := open[i].Attributes
		f := finding{ID: ID(a), Severity: open[i].Severity, Text: open[i].Body, Labels: a}
		if x, ok := m.Of(f.ID, a["gpu.finding.since"]); ok {
			f.Mark = &x
		}
		out = append(out, f)
	}
	return out, err
}

// mark marks an open finding.
func (m *Marks) mark(r *http.Request, log events.Log, by string, fill func(x *Mark, since string) error) (Mark, error) {
	open, err := m.open(r.Context(), log)
	if err != nil {
		return Mark{}, err
	}
	x := Mark{Finding: r.PathValue("id"), By: by, At: m.now().UTC().Truncate(time.Second), Comment: r.FormValue("comment")}
	if len(x.Comment) > maxComment {
		return x, fmt.Errorf("%w: a comment may have %d bytes", errInput, maxComment)
	}
	for i := range open {
		if a := open[i].Attributes; ID(a) == x.Finding {
			if err := fill(&x, a["gpu.finding.since"]); err != nil {
				return x, err
			}
			return x, m.set(x, false)
		}
	}
	return x, errUnknown
}

// until returns the end of a silence.
func (m *Marks) until(r *http.Request) (time.Time, error) {
	now := m.now()
	var end time.Time
	var err error
	switch d, t := r.FormValue("for"), r.FormValue("until"); {
	case d != "" && t == "":
		var n time.Duration
		n, err = time.ParseDuration(d)
		end = now.Add(n)
	case t != "" && d == "":
		end, err = time.Parse(time.RFC3339, t)
	default:
		err = errors.New("set one of for, such as 8h, and until, such as 2026-01-02T15:04:05Z")
	}
	if err == nil && (!end.After(now) || end.Sub(now) > maxSilence) {
		err = fmt.Errorf("a silence must end within %d days", maxSilence/(24*time.Hour))
	}
	if err != nil {
		return end, fmt.Errorf("%w: %w", errInput, err)
	}
	return end.UTC().Truncate(time.Second), nil
}

// respond writes the form of Prometheus' API.
func respond(w http.ResponseWriter, data any, err error) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case err == nil:
		_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": data}) // a client that disconnected is not an error
		return
	case errors.Is(err, errUnknown):
		w.WriteHeader(http.StatusNotFound)
	case errors.Is(err, errInput):
		w.WriteHeader(http.StatusBadRequest)
	default:
		w.WriteHeader(http.StatusInternalServerError)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "error", "error": err.Error()})
}
