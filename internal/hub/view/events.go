package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/triage"
)

// event is an entry of the timeline.
type event struct {
	Time     int64  `json:"time"` // Unix milliseconds
	Name     string `json:"name"`
	Severity string `json:"severity"`
	Text     string `json:"text"`

	GPU   string       `json:"gpu,omitempty"`
	Index string       `json:"index,omitempty"`
	Model string       `json:"model,omitempty"`
	Node  string       `json:"node,omitempty"`
	Owner *fleet.Owner `json:"owner,omitempty"`

	Rule   string `json:"rule,omitempty"`   // of a finding only
	State  string `json:"state,omitempty"`  // open or closed, active or over
	Action string `json:"action,omitempty"` // remedy
	ID     string `json:"id,omitempty"`     // of an open finding
	Mark   *mark  `json:"mark,omitempty"`   // of an open finding that somebody acknowledged or silenced
}

// mark is what somebody said about a finding.
type mark struct {
	By      string `json:"by"`
	Comment string `json:"comment,omitempty"`
	Until   int64  `json:"until,omitempty"` // Unix seconds, for a silence
}

type eventsAnswer struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
	Kept bool  `json:"kept"` // the hub has an event log; a foreign store has none
	More bool  `json:"more"` // the period has older events
	// Simulated is about the devices at the end of the period.
	Simulated simulation `json:"simulated"`
	Open      []event    `json:"open"` // findings open at the end of the period
	Events    []event    `json:"events"`
}

const (
	openFor     = 30 * 24 * time.Hour // findings that opened earlier are ignored
	maxFindings = 20_000              // records read to find them
)

func (v *viewer) eventsPage(ctx context.Context, r request) (any, error) {
	a := eventsAnswer{From: r.from.Unix(), To: r.to.Unix(), Kept: v.log != nil, Open: []event{}, Events: []event{}}
	if v.log == nil {
		return a, nil
	}
	limit := maxEvents
	if text := r.values.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%w: limit=%q is not a positive number", errBad, text)
		}
		limit = min(n, maxEvents)
	}
	q := events.Query{From: r.from, To: r.to, Attributes: map[string]string{}, Limit: limit + 1}
	if name := r.values.Get("name"); name != "" {
		q.Names = []string{name}
	}
	if uuid := r.values.Get("gpu"); uuid != "" {
		q.Attributes["gpu.uuid"] = uuid
	}
	if node := r.values.Get("node"); node != "" {
		q.Attributes["host.name"] = node
	}
	id := r.values.Get("workload")
	if id != "" {
		kind, name, _, err := fleet.ParseOwner(id)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errBad, err)
		}
		q.Attributes["gpu.workload.kind"], q.Attributes["gpu.workload.name"] = kind, name
	}
	list, err := v.log.Events(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("cannot read events: %w", err)
	}
	if a.More = len(list) > limit; a.More {
		list = list[:limit]
	}
	f, err := v.fleetAt(ctx, r.at)
	if err == nil { // without a fleet events keep only the identity in their own record
		a.Simulated = simulationOf(f, nil)
	}
	known := namesOf(f)
	for i := range list {
		e := shown(&list[i])
		known.complete(&e)
		if id == "" || e.Owner != nil && e.Owner.ID == id {
			a.Events = append(a.Events, e)
		}
	}
	if a.Open, err = v.open(ctx, r.to, q.Attributes); err != nil {
		return nil, err
	}
	for i := range a.Open {
		known.complete(&a.Open[i])
	}
	return a, nil
}

// names indexes the workloads of the fleet by kind and name; the value is nil if several
// workloads share both.
type names map[[2]string]*fleet.Owner

// namesOf returns the index of a fleet, which may be nil.
func namesOf(f *fleet.Fleet) names {
	n := names{}
	if f == nil {
		return n
	}
	for i := range f.Owners {
		o := &f.Owners[i]
		key := [2]string{o.Kind, o.Name}
		if _, ok := n[key]; ok {
			o = nil
		}
		n[key] = o
	}
	return n
}

// complete fills in the identity of a workload of which the record has only kind and name,
// as the records of the fleet rules do.
func (n names) complete(e *event) {
	if e.Owner == nil || e.Owner.Namespace != "" || e.Owner.Job != "" {
		return
	}
	if o := n[[2]string{e.Owner.Kind, e.Owner.Name}]; o != nil {
		whole := *o
		e.Owner = &whole
	}
}

func shown(e *events.Event) event {
	at := e.Attributes
	s := event{
		Time: e.Time.UnixMilli(), Name: e.Name, Severity: e.Severity, Text: e.Body,
		GPU: at["gpu.uuid"], Index: at["gpu.index"], Model: at["gpu.model"], Node: cmp.Or(at["k8s.node.name"], at["host.name"]),
		Rule: at["gpu.finding.rule"], State: cmp.Or(at["gpu.finding.state"], at["gpu.throttle.state"]), Action: cmp.Or(at["gpu.finding.action"], at["gpu.xid.action"]),
	}
	labels := map[string]string{}
	for name, text := range at {
		labels[strings.ReplaceAll(name, ".", "_")] = text
	}
	if o, ok := fleet.OwnerOf(labels); ok {
		s.Owner = &o
	}
	return s
}

func rank(severity string) int {
	return slices.Index([]string{"INFO", "WARN", "ERROR", "FATAL"}, severity)
}

// open returns the findings open at a moment according to the event log.
func (v *viewer) open(ctx context.Context, at time.Time, attributes map[string]string) ([]event, error) {
	list, err := v.log.Events(ctx, events.Query{From: at.Add(-openFor), To: at, Names: []string{"gpu.finding"}, Attributes: attributes, Limit: maxFindings})
	if err != nil {
		return nil, fmt.Errorf("cannot read events: %w", err)
	}
	open := []event{}
	for _, found := range triage.Open(list) {
		e := shown(&found)
		e.ID = triage.ID(found.Attributes)
		if m, ok := v.opts.Marks.Of(e.ID, found.Attributes["gpu.finding.since"]); ok {
			e.Mark = &mark{By: m.By, Comment: m.Comment}
			if !m.Until.IsZero() {
				e.Mark.Until = m.Until.Unix()
			}
		}
		open = append(open, e)
	}
	slices.SortStableFunc(open, func(a, b event) int { return cmp.Compare(rank(b.Severity), rank(a.Severity)) })
	return open, nil
}
