package hub

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

// EventQuery selects events.
type EventQuery struct {
	From, To time.Time // in (From, To]; a zero To means no upper bound
	Names    []string  // any of these; empty means all
	// Attributes must all match. An empty value means that the attribute must be absent.
	Attributes map[string]string
	Text       string // substring of body or name, case-insensitive; empty means any
	Limit      int    // 0 means DefaultEventLimit
}

// DefaultEventLimit is the number of events returned if a query sets no limit.
const DefaultEventLimit = 1000

// EventLog stores events.
type EventLog interface {
	AppendEvents(ctx context.Context, events []Event) error
	// Events returns the selected events, newest first.
	Events(ctx context.Context, q EventQuery) ([]Event, error)
}

func (q *EventQuery) matches(e *Event) bool {
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
