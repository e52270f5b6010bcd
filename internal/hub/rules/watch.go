package rules

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/triage"
	"github.com/gpumeter/gpumeter/internal/query"
)

// patience is the number of consecutive evaluations after which a finding opens or closes.
const patience = 2

// Event name and service name of the hub's findings.
const (
	eventName   = "gpu.finding"
	serviceName = "gpumeter-hub"
)

// Watch tracks findings across evaluations. It is safe for concurrent use.
type Watch struct {
	mu  sync.Mutex
	all map[string]*state
}

type state struct {
	Finding

	since  time.Time
	seen   int // consecutive evaluations with the finding; negative: without
	active bool
}

// Change is a finding that opens or closes.
type Change struct {
	Finding

	Since, Time time.Time
	Ended       bool
}

// Evaluate is the package's Evaluate, except that missing nodes and devices remain findings
// until they are back.
func (w *Watch) Evaluate(ctx context.Context, store query.Store, at time.Time) ([]Finding, error) {
	return evaluate(ctx, store, w.Active(), at)
}

// Update records the result of Evaluate at a moment and returns the changes.
func (w *Watch) Update(found []Finding, at time.Time) []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[string]*state{}
	}
	var out []Change
	now := map[string]bool{}
	for i := range found {
		key := found[i].Key()
		now[key] = true
		s := w.all[key]
		if s == nil {
			s = &state{since: at}
			w.all[key] = s
		}
		s.Finding, s.seen = found[i], max(s.seen, 0)+1
		if s.seen >= patience && !s.active {
			s.active = true
			out = append(out, Change{s.Finding, s.since, at, false})
		}
	}
	for key, s := range w.all {
		if now[key] {
			continue
		}
		s.seen = min(s.seen, 0) - 1
		if s.active && s.seen > -patience {
			continue
		}
		if s.active {
			out = append(out, Change{s.Finding, s.since, at, true})
		}
		delete(w.all, key)
	}
	slices.SortFunc(out, func(a, b Change) int { return cmp.Compare(a.Key(), b.Key()) })
	return out
}

// Active returns the open findings with their start, ordered by key.
func (w *Watch) Active() []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Change
	for _, s := range w.all {
		if s.active {
			out = append(out, Change{Finding: s.Finding, Since: s.since})
		}
	}
	slices.SortFunc(out, func(a, b Change) int { return cmp.Compare(a.Key(), b.Key()) })
	return out
}

// Alerts returns the open findings in the format of the Prometheus API.
func (w *Watch) Alerts() []hub.Alert {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := []hub.Alert{}
	for _, s := range w.all {
		if !s.active {
			continue
		}
		a := hub.Alert{
			Labels: map[string]string{"alertname": s.Rule, "severity": s.Severity}, Annotations: map[string]string{"summary": s.Reason, "description": s.Action},
			State: "firing", ActiveAt: s.since.UTC(), Value: strconv.FormatFloat(s.Value, 'e', -1, 64),
		}
		maps.Copy(a.Labels, s.Labels)
		a.Annotations["finding"] = (&Change{Finding: s.Finding, Since: s.since}).ID()
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b hub.Alert) int {
		return cmp.Or(cmp.Compare(a.Labels["alertname"], b.Labels["alertname"]), cmp.Compare(a.Annotations["summary"], b.Annotations["summary"]))
	})
	return out
}

// attributes maps labels to OpenTelemetry attributes. Other labels are not exported.
var attributes = map[string]string{
	fleet.LabelUUID: "gpu.uuid", fleet.LabelIndex: "gpu.index", fleet.LabelModel: "gpu.model",
	fleet.LabelHost: "host.name", fleet.LabelNode: "k8s.node.name", fleet.LabelCluster: "k8s.cluster.name", fleet.LabelNamespace: "k8s.namespace.name",
	fleet.LabelKind: "gpu.workload.kind", fleet.LabelWorkload: "gpu.workload.name", fleet.LabelTeam: "gpu.workload.team",
	labelSenders:            "gpumeter.senders",
	fleet.LabelCommunicator: "comm_id_hash", fleet.LabelRank: "rank", fleet.LabelRanks: "nranks",
	fleet.LabelServedModel: "gen_ai.request.model", fleet.LabelObjective: "gpumeter.slo.objective", fleet.LabelBurnSeverity: "gpumeter.slo.severity",
	fleet.LabelSlurmCluster: "slurm.cluster", fleet.LabelSlurmJob: "slurm.job.id", fleet.LabelSlurmUser: "slurm.user", fleet.LabelSlurmAccount: "slurm.account", fleet.LabelUser: "user.name",
}

// burnKey tells the objectives of workloads apart, also those of two teams or users with one name, and a page from a ticket: the one
// that follows the other is news.
func burnKey(l query.Labels) string {
	parts := []string{}
	for _, name := range []string{
		fleet.LabelKind, fleet.LabelCluster, fleet.LabelSlurmCluster, fleet.LabelTeam, fleet.LabelUser, fleet.LabelNamespace, fleet.LabelWorkload, fleet.LabelSlurmJob, fleet.LabelServedModel, fleet.LabelObjective, fleet.LabelBurnSeverity,
	} {
		parts = append(parts, l[name])
	}
	return strings.Join(parts, "/")
}

// ID identifies the finding for people who acknowledge it.
func (c *Change) ID() string { return triage.ID(c.Event().Attributes) }

// Began returns when the finding began, as its event says it.
func (c *Change) Began() string { return c.Since.UTC().Format(time.RFC3339) }

// Event returns the change as an event in the format of an agent's findings.
func (c *Change) Event() events.Event {
	e := events.Event{
		Time: c.Time, Name: eventName, Severity: c.Severity, Body: c.Reason + ". " + c.Action,
		Attributes: map[string]string{
			"gpu.finding.rule": c.Rule, "gpu.finding.reason": c.Reason, "gpu.finding.action": c.Action, "gpu.finding.state": "open",
			"gpu.finding.severity": map[string]string{"WARN": "warning", "ERROR": "critical"}[c.Severity],
			"gpu.finding.since":    c.Began(), "service.name": serviceName,
		},
	}
	if rank := c.Labels[fleet.LabelRank]; rank != "" {
		e.Attributes["gpu.finding.key"] = c.Labels[fleet.LabelCommunicator] + "/" + rank
	}
	if c.Rule == NotAllocated { // several workloads may use one device
		e.Attributes["gpu.finding.key"] = c.Labels[fleet.LabelKind] + "/" + c.Labels[fleet.LabelNamespace] + "/" + c.Labels[fleet.LabelWorkload]
	}
	if senders := c.Labels[labelSenders]; senders != "" { // a node may have a device in common with several others
		e.Attributes["gpu.finding.key"] = senders
	}
	if quota := c.Labels["quota"]; quota != "" {
		e.Attributes["gpu.finding.key"] = c.Labels["source"] + "/" + quota + "/" + c.Labels["unit"]
	}
	if c.Rule == OverShare {
		e.Attributes["gpu.finding.key"] = c.Labels["share"]
	}
	if c.Rule == BudgetBurns {
		e.Attributes["gpu.finding.key"] = burnKey(c.Labels)
	}
	if c.Ended {
		e.Severity, e.Body = "INFO", "resolved: "+c.Reason
		if missed(c.Rule) && c.Time.Sub(c.Since) >= missedFor {
			e.Body = "expired: " + c.Reason
		}
		e.Attributes["gpu.finding.state"] = "closed"
		e.Attributes["gpu.finding.duration"] = strconv.FormatFloat(c.Time.Sub(c.Since).Seconds(), 'f', -1, 64)
	}
	for label, value := range c.Labels {
		if name, ok := attributes[label]; ok {
			e.Attributes[name] = value
		}
	}
	return e
}
