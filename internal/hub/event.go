package hub

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Event is something that happened at a moment, such as a finding, an XID or the end of a
// workload.
type Event struct {
	Time     time.Time `json:"time"`
	Name     string    `json:"name,omitempty"`     // event.name of OTLP
	Severity string    `json:"severity,omitempty"` // TRACE, DEBUG, INFO, WARN, ERROR or FATAL
	Body     string    `json:"body,omitempty"`
	// Attributes are those of the record and, where it has none of that name, of its
	// resource, with OTLP's names: gpu.uuid, host.name.
	Attributes map[string]string `json:"attributes,omitempty"`
}

// EventQuery says which events are wanted.
type EventQuery struct {
	From, To time.Time // in (From, To]; the zero To is the end
	Names    []string  // any of these; empty: all
	// Attributes must all be there and equal; "" as a value means that there is none.
	Attributes map[string]string
	Text       string // in the body or the name, whatever the case; empty: any
	Limit      int    // 0: DefaultEventLimit
}

// DefaultEventLimit is how many events a query returns unless it asks for more or less.
const DefaultEventLimit = 1000

// EventLog keeps events.
type EventLog interface {
	AppendEvents(ctx context.Context, events []Event) error
	// Events returns those that q asks for, newest first.
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
