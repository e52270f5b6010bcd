package kube

import (
	"cmp"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Event is that a pod that asks for accelerators has started or ended.
type Event struct {
	Kind    EventKind
	Time    time.Time
	Pod     Pod
	Devices int64 // whole ones that it asks for
}

// EventKind is what happened to a pod.
type EventKind string

// The kinds of events.
const (
	EventStarted   EventKind = "started"   // its first container
	EventSucceeded EventKind = "succeeded" // it ended
	EventFailed    EventKind = "failed"    // it ended
	EventDeleted   EventKind = "deleted"   // before it ended
)

// maxEvents bounds the events that nobody has taken yet.
const maxEvents = 10_000

// Events returns what happened since the last call, each event at least once over all processes that watch one after the other.
func (c *Cluster) Events() []Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.events
	c.events = nil
	return list
}

func (c *Cluster) tell(kind EventKind, at time.Time, p *Pod) {
	if len(c.events) >= maxEvents {
		c.refused.events++
		return
	}
	c.events = append(c.events, Event{Kind: kind, Time: at, Pod: *p, Devices: p.Whole(c.vendors)})
}

// happened tells what is new about a pod. counted says that its start has counted now.
func (c *Cluster) happened(s sight, counted bool) {
	p := s.pod
	if counted || !p.Started.IsZero() && c.waits.again(s, p.Started) {
		c.tell(EventStarted, p.Started, p)
	}
	if p.State != scheduler.Finished {
		return
	}
	known := s.first // what is over in the first list was over before
	if s.old != nil {
		known = s.old.State == scheduler.Finished
	}
	if known && (p.Ended.IsZero() || !c.waits.again(s, p.Ended)) {
		return
	}
	at := p.Ended
	if at.IsZero() { // it never ran
		at = s.when()
	}
	c.tell(cmp.Or(p.Result, EventDeleted), at, p)
}

// deleted tells that a pod exists no more.
func (c *Cluster) deleted(p *Pod, now time.Time) {
	if p.State == scheduler.Finished {
		return
	}
	at := p.Ended
	if at.IsZero() {
		at = now
	}
	c.tell(EventDeleted, at, p)
}
