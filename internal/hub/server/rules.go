//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/rules"
	"github.com/gpumeter/gpumeter/internal/hub/share"
	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/internal/query"
)

// rulesEvery is the time between evaluations of the fleet rules.
const rulesEvery = time.Minute

// findingSeries is 1 for each active finding of a fleet rule.
const findingSeries = fleet.SeriesFinding

// watchFleet evaluates the fleet rules, the quotas and the objectives until ctx is canceled. It returns a
// function that returns the active alerts.
func (s *Server) watchFleet(ctx context.Context, store query.Store, q *quotas, o *objectives) func() []hub.Alert {
	w := &rules.Watch{}
	// Without quotas the fleet watch loads old quota findings, and so ends them.
	quota := func(rule string) bool { return len(q.sources) > 0 && rule == rules.OverQuota }
	burn := func(rule string) bool { return rule == rules.BudgetBurns }
	loadFleet := s.loader(w, func(rule string) bool { return !quota(rule) && !burn(rule) })
	s.serve.Go(func() {
		s.regularly(ctx, "Cannot evaluate the fleet rules", func(at time.Time) error {
			ctx, cancel := context.WithTimeout(ctx, rulesEvery/2)
			defer cancel()
			return errors.Join(loadFleet(ctx, at), s.judgeFleet(ctx, store, w, at))
		})
	})
	if len(q.sources) > 0 {
		loadQuotas := s.loader(&q.watch, quota)
		s.serve.Go(func() { // separately, because the bill of a month is slow
			s.regularly(ctx, "Cannot compare quotas with usage", func(at time.Time) error {
				ctx, cancel := context.WithTimeout(ctx, billEvery)
				defer cancel()
				return errors.Join(loadQuotas(ctx, at), s.judgeQuotas(ctx, store, q, at))
			})
		})
	}
	loadBurns := s.loader(&o.watch, burn)
	s.serve.Go(func() { // separately, because the windows of objectives are long
		s.regularly(ctx, "Cannot judge the service level objectives", func(at time.Time) error {
			ctx, cancel := context.WithTimeout(ctx, billEvery)
			defer cancel()
			return errors.Join(loadBurns(ctx, at), s.judgeObjectives(ctx, store, o, at))
		})
	})
	return func() []hub.Alert {
		return s.triaged(slices.Concat(w.Alerts(), q.watch.Alerts(), o.watch.Alerts()))
	}
}

// triaged marks the alerts that somebody acknowledged or silenced: clients notify about those
// that fire.
func (s *Server) triaged(list []hub.Alert) []hub.Alert {
	for i := range list {
		a := &list[i]
		m, ok := s.marks.Of(a.Annotations["finding"], a.ActiveAt.UTC().Format(time.RFC3339))
		if !ok {
			continue
		}
		a.State = "suppressed"
		a.Annotations["suppressed_by"], a.Annotations["comment"] = m.By, m.Comment
		if !m.Until.IsZero() {
			a.Annotations["suppressed_until"] = m.Until.Format(time.RFC3339)
		}
	}
	return list
}

// loader returns a function that loads the findings from before a restart of the hub. The
// function must be called until it succeeds, and then does nothing.
func (s *Server) loader(w *rules.Watch, of func(rule string) bool) func(context.Context, time.Time) error {
	loaded := s.store == nil // a backend has no events
	return func(ctx context.Context, at time.Time) error {
		if loaded {
			return nil
		}
		err := w.Load(ctx, s.store, at, of)
		loaded = err == nil
		return err
	}
}

// regularly calls f every minute until ctx is canceled. It logs only the first of consecutive
// failures.
func (s *Server) regularly(ctx context.Context, failure string, f func(time.Time) error) {
	clock := time.NewTicker(rulesEvery)
	defer clock.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
		err := f(time.Now())
		if err != nil && !failed && ctx.Err() == nil {
			s.log.Warn(failure, logging.Reason(err))
		}
		failed = err != nil
	}
}

// judgeFleet evaluates the rules once.
func (s *Server) judgeFleet(ctx context.Context, store query.Store, w *rules.Watch, at time.Time) error {
	found, err := w.Evaluate(ctx, store, at)
	if err != nil {
		return err
	}
	if s.store != nil {
		found = append(found, overShare(s.store, at)...)
	}
	return s.tell(ctx, w, found, at)
}

// overShare returns a finding for each node that exceeds its share of the hub.
func overShare(store *hub.Store, at time.Time) []rules.Finding {
	var out []rules.Finding
	for _, o := range store.Over(at) {
		f := rules.Finding{
			Rule: rules.OverShare, Severity: "WARN", Value: float64(o.Count),
			Labels: query.Labels{"share": o.What},
			Reason: fmt.Sprintf("%s: more than %d series; the hub has refused the samples of further ones since %s", o.Node, store.NodeSeries(), o.First.UTC().Format(time.RFC3339)),
			Action: "Find out which labels change all the time, starting with topk(10, count by (" + fleet.LabelName + ") ({" + fleet.Equals(fleet.LabelHost, o.Node.Name) + "})). If all series are needed, raise --max-series-per-node.",
		}
		if o.What == share.Events {
			f.Reason = fmt.Sprintf("%s: so many events that its oldest are deleted before their time, since %s", o.Node, o.First.UTC().Format(time.RFC3339))
			f.Action = "Find out which events the node repeats: the Health page lists them."
		}
		if o.Node.Name != "" {
			f.Labels[fleet.LabelHost] = o.Node.Name
		}
		if o.Node.Cluster != "" {
			f.Labels[fleet.LabelCluster] = o.Node.Cluster
		}
		out = append(out, f)
	}
	return out
}

// tell updates w, and writes the findings as events and series to the hub's own store, if any.
func (s *Server) tell(ctx context.Context, w *rules.Watch, found []rules.Finding, at time.Time) error {
	changes := w.Update(found, at)
	if s.store == nil {
		return nil
	}
	a := s.store.OwnAppender(ctx)
	s.store.Describe(findingSeries, hub.Family{Type: "gauge", Help: "1 for each active finding of a fleet rule, 0 if it is acknowledged or silenced."})
	var list []events.Event
	for i := range changes {
		list = append(list, changes[i].Event())
		if changes[i].Ended {
			a.End(findingLabels(&changes[i].Finding), at.UnixMilli())
		}
	}
	for _, c := range w.Active() {
		value := 1.0
		if _, known := s.marks.Of(c.ID(), c.Began()); known {
			value = 0
		}
		a.Gauge(findingLabels(&c.Finding), at.UnixMilli(), value)
	}
	if _, err := a.Commit(); err != nil {
		return err
	}
	return s.store.AppendEvents(ctx, list)
}

func findingLabels(f *rules.Finding) hub.Labels {
	l := maps.Clone(f.Labels)
	l["rule"] = f.Rule
	return seriesLabels(findingSeries, l)
}

// seriesLabels returns the label set of a series with the given name and labels.
func seriesLabels(name string, l map[string]string) hub.Labels {
	var b hub.LabelBuilder
	b.Add(fleet.LabelName, name)
	for k, v := range l {
		b.Add(k, v)
	}
	b.Sort()
	return b.Labels()
}
