// Package events is the event log of a hub: findings, XIDs and ends of workloads, as JSON lines in a
// directory of bounded size.
package events

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Event is something that happened at a point in time, such as a finding, an XID or the end
// of a workload.
type Event struct {
	Time     time.Time `json:"time"`
	Name     string    `json:"name,omitempty"`     // OTLP event.name
	Severity string    `json:"severity,omitempty"` // TRACE, DEBUG, INFO, WARN, ERROR or FATAL
	Body     string    `json:"body,omitempty"`
	// Attributes are the record's attributes, supplemented by those of its resource, under
	// their OTLP names: gpu.uuid, host.name.
	Attributes map[string]string `json:"attributes,omitempty"`
}

// Query selects events of a log.
type Query struct {
	From, To time.Time // in (From, To]; a zero To means no upper bound
	Names    []string  // any of these; empty means all
	// Attributes must all match. An empty value means that the attribute must be absent.
	Attributes map[string]string
	Text       string // substring of body or name, case-insensitive; empty means any
	Limit      int    // 0 means DefaultLimit
}

// DefaultLimit is the number of events returned if a query sets no limit.
const DefaultLimit = 1000

// Log reads events.
type Log interface {
	// Events returns the selected events, newest first.
	Events(ctx context.Context, q Query) ([]Event, error)
}

func (q *Query) matches(e *Event) bool {
	if !e.Time.After(q.From) || !q.To.IsZero() && e.Time.After(q.To) || len(q.Names) > 0 && !slices.Contains(q.Names, e.Name) {
		return false
	}
	for key, want := range q.Attributes {
		if e.Attributes[key] != want {
			return false
		}
	}
	if q.Text == "" {
		return true
	}
	text := strings.ToLower(q.Text)
	return strings.Contains(strings.ToLower(e.Body), text) || strings.Contains(strings.ToLower(e.Name), text)
}
