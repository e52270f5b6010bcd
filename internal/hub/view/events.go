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
	"github.com/gpumeter/gpumeter/internal/hub"
)

// event is a line of the time line.
type event struct {
	Time     int64  `json:"time"` // in milliseconds
	Name     string `json:"name"`
	Severity string `json:"severity"`
	Text     string `json:"text"`

	GPU   string       `json:"gpu,omitempty"`
	Index string       `json:"index,omitempty"`
	Model string       `json:"model,omitempty"`
	Node  string       `json:"node,omitempty"`
	Owner *fleet.Owner `json:"owner,omitempty"`

	Rule   string `json:"rule,omitempty"`   // of a finding
	State  string `json:"state,omitempty"`  // open or closed, active or over
	Action string `json:"action,omitempty"` // what to do
}

type eventsAnswer struct {
	From   int64   `json:"from"`
	To     int64   `json:"to"`
	Kept   bool    `json:"kept"` // there is a log; a foreign store has none
	More   bool    `json:"more"` // there are older ones in this time
	Open   []event `json:"open"` // what is wrong at the end of this time
	Events []event `json:"events"`
}

const (
	openFor     = 30 * 24 * time.Hour // a finding that began before is not looked for
	maxFindings = 20_000              // records that are looked at for that
)

func (v *viewer) eventsPage(ctx context.Context, r request) (any, error) {
	a := eventsAnswer{From: r.from.Unix(), To: r.to.Unix(), Kept: v.events != nil, Open: []event{}, Events: []event{}}
	if v.events == nil {
		return a, nil
	}
	limit := maxEvents
	if text := r.values.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%w: limit=%q is not a number above 0", errBad, text)
		}
		limit = min(n, maxEvents)
	}
	q := hub.EventQuery{From: r.from, To: r.to, Attributes: map[string]string{}, Limit: limit + 1}
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
	list, err := v.events.Events(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("cannot read events: %w", err)
	}
	if a.More = len(list) > limit; a.More {
		list = list[:limit]
	}
	known := v.names(ctx, r.at)
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

// names are the workloads of the fleet by kind and name; nil if several have it.
type names map[[2]string]*fleet.Owner

// names returns those of a moment. Without an answer events have what they say themselves.
func (v *viewer) names(ctx context.Context, at time.Time) names {
	n := names{}
	f, err := v.fleetAt(ctx, at)
	if err != nil {
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

// complete says the whole identity of a workload of which a record has a part, such as
// those of rules over the fleet.
func (n names) complete(e *event) {
	if e.Owner == nil || e.Owner.Namespace != "" || e.Owner.Job != "" {
		return
	}
	if o := n[[2]string{e.Owner.Kind, e.Owner.Name}]; o != nil {
		whole := *o
		e.Owner = &whole
	}
}

func shown(e *hub.Event) event {
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

// open returns what is wrong at a moment, by the log: what was found, and is not over.
func (v *viewer) open(ctx context.Context, at time.Time, attributes map[string]string) ([]event, error) {
	list, err := v.events.Events(ctx, hub.EventQuery{From: at.Add(-openFor), To: at, Names: []string{"gpu.finding"}, Attributes: attributes, Limit: maxFindings})
	if err != nil {
		return nil, fmt.Errorf("cannot read events: %w", err)
	}
	open := []event{}
	seen := map[[4]string]bool{}
	for i := range list { // newest first: what was said last counts
		l := list[i].Attributes
		key := [4]string{l["host.name"], l["gpu.uuid"] + l["gpu.partition.id"], l["gpu.finding.rule"], l["gpu.finding.key"]}
		if seen[key] {
			continue
		}
		seen[key] = true
		if e := shown(&list[i]); e.State == "open" {
			open = append(open, e)
		}
	}
	slices.SortStableFunc(open, func(a, b event) int { return cmp.Compare(rank(b.Severity), rank(a.Severity)) })
	return open, nil
}
