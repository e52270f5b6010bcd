//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/rules"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/slo"
)

// Names of the series about objectives, with what they say.
var objectiveHelp = map[string]string{
	fleet.SeriesBurnRate:   "How fast the error budget of an objective burns in a window: at 1 it lasts exactly as long as its own window.",
	fleet.SeriesBudgetLeft: "Part of the error budget of an objective that is left, below 0 if it is overspent.",
	fleet.SeriesObjective:  "Part of requests, or of time, that an objective wants to be good.",
	fleet.SeriesThreshold:  "Time up to which a request is good, of objectives about latency.",
}

// judgedKept is for how long the last judgement stands for the present, if the next ones take long.
const judgedKept = billEvery

// objectives judges the objectives of a file. It is safe for concurrent use.
type objectives struct {
	log    *zap.Logger
	path   string    // empty: no file
	follow *followed // nil without a file
	watch  rules.Watch

	mu    sync.Mutex
	file  *slo.File
	judge *slo.Judge // of file
	last  *slo.Report

	written map[string]hub.Labels // used only by the goroutine that calls judgeObjectives
}

// objectives reads the file of objectives.
func (h *Options) objectives(log *zap.Logger) (*objectives, error) {
	o := &objectives{log: log, path: h.Objectives}
	if o.path != "" {
		o.follow = follow(o.path, "objectives file", "objectives")
	}
	return o, o.read()
}

// read reads the file. If it is not valid, the objectives from before stay.
func (o *objectives) read() error {
	file := slo.Empty()
	if o.path != "" {
		text, err := os.ReadFile(o.path)
		if err != nil {
			return fmt.Errorf("cannot read --objectives: %w", err)
		}
		if file, err = slo.Parse(text); err != nil {
			return fmt.Errorf("--objectives %s: %w", o.path, err)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.file, o.judge, o.last = file, slo.NewJudge(file), nil
	return nil
}

// state returns a line for /readyz if the file is not in use as it is.
func (o *objectives) state() []string {
	if o.follow == nil {
		return nil
	}
	return o.follow.state()
}

// run reads the file again when it changes, until ctx is canceled.
func (o *objectives) run(ctx context.Context) {
	if o.follow != nil {
		o.follow.run(ctx, o.read, o.log)
	}
}

// at returns how the objectives are met at a moment: as they were last judged, else as the store has it from
// judging them then. Judging the past would ask for a month of it, each time that somebody looks at a page.
func (o *objectives) at(ctx context.Context, store query.Store, at time.Time) (*slo.Report, error) {
	o.mu.Lock()
	file, last := o.file, o.last
	o.mu.Unlock()
	if last != nil && at.Sub(last.At) >= -2*rulesEvery && at.Sub(last.At) <= judgedKept {
		return last, nil
	}
	return file.Recorded(ctx, store, at)
}

// look judges the objectives at a moment.
func (o *objectives) look(ctx context.Context, store query.Store, at time.Time) (*slo.Report, error) {
	o.mu.Lock()
	judge := o.judge
	o.mu.Unlock()
	r, err := judge.Look(ctx, store, at)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.judge == judge { // the file did not change meanwhile
		o.last = r
	}
	return r, err
}

// judgeObjectives judges the objectives once. If the hub has its own store, it writes burn rates and budgets as series, and
// budgets that burn too fast as events.
func (s *Server) judgeObjectives(ctx context.Context, store query.Store, o *objectives, at time.Time) error {
	r, err := o.look(ctx, store, at)
	if s.store != nil {
		err = errors.Join(err, s.writeObjectives(ctx, o, r, at))
	}
	return errors.Join(err, s.tell(ctx, &o.watch, burning(r, o.watch.Active()), at))
}

func (s *Server) writeObjectives(ctx context.Context, o *objectives, r *slo.Report, at time.Time) error {
	a := s.store.OwnAppender(ctx)
	written := map[string]hub.Labels{}
	for _, g := range objectiveGauges(r) {
		l := seriesLabels(g.Name, g.Labels)
		written[l.String()] = l
		a.Gauge(l, at.UnixMilli(), g.Value)
	}
	for key, l := range o.written {
		if _, ok := written[key]; !ok {
			a.End(l, at.UnixMilli())
		}
	}
	for name, help := range objectiveHelp {
		s.store.Describe(name, hub.Family{Type: "gauge", Help: help})
	}
	if _, err := a.Commit(); err != nil {
		return fmt.Errorf("cannot write burn rates: %w", err)
	}
	o.written = written
	return nil
}

// objectiveGauges returns what is known about the objectives of a report. What is unknown has no series.
func objectiveGauges(r *slo.Report) []hub.Gauge {
	var out []hub.Gauge
	for i := range r.Rows {
		row := &r.Rows[i]
		for j := range row.Results {
			x := &row.Results[j]
			add := func(name string, v optional.Float, more ...string) {
				if f, ok := v.Get(); ok {
					out = append(out, hub.Gauge{Name: name, Help: objectiveHelp[name], Labels: objectiveLabels(row, x, more...), Value: f})
				}
			}
			for w, burn := range x.Burn {
				add(fleet.SeriesBurnRate, burn, fleet.LabelBurnWindow, slo.WindowName(w))
			}
			add(fleet.SeriesBudgetLeft, x.Budget)
			add(fleet.SeriesObjective, optional.Of(x.Target))
			if x.Threshold > 0 {
				add(fleet.SeriesThreshold, optional.Of(x.Threshold.Seconds()))
			}
		}
	}
	return out
}

// gauges returns the series for the hub's /metrics, where they can be scraped even with --backend.
func (o *objectives) gauges() []hub.Gauge {
	o.mu.Lock()
	last := o.last
	o.mu.Unlock()
	if last == nil {
		return nil
	}
	return objectiveGauges(last)
}

// objectiveLabels returns the labels that identify an objective of the model of a workload.
func objectiveLabels(row *slo.Row, x *slo.Result, more ...string) query.Labels {
	l := query.Labels{fleet.LabelServedModel: row.Model, fleet.LabelObjective: x.Name}
	maps.Copy(l, row.Labels)
	for i := 0; i < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	return l
}

// burning returns a finding for each error budget that burns too fast. An open one stays while a failing store neither
// confirms nor refutes it.
func burning(r *slo.Report, open []rules.Change) []rules.Finding {
	before := map[string]rules.Finding{}
	for i := range open {
		before[open[i].Key()] = open[i].Finding
	}
	var out []rules.Finding
	for i := range r.Rows {
		row := &r.Rows[i]
		for j := range row.Results {
			x := &row.Results[j]
			stays := func(s slo.Severity) (rules.Finding, bool) {
				key := (&rules.Finding{Rule: rules.BudgetBurns, Labels: burnLabels(row, x, s)}).Key()
				f, is := before[key]
				delete(before, key)
				return f, is && x.Undecided(s, r.Unread)
			}
			page, pages := stays(slo.Page)
			ticket, tickets := stays(slo.Ticket)
			switch a, burns := x.Alert(); {
			case burns && (a.Severity == slo.Page || !pages):
				out = append(out, finding(r, row, x, &a))
			case pages:
				out = append(out, page)
			case tickets:
				out = append(out, ticket)
			}
		}
	}
	if r.Partial { // their rows may be missing
		for _, key := range slices.Sorted(maps.Keys(before)) {
			out = append(out, before[key])
		}
	}
	return out[:min(len(out), maxOver)]
}

func finding(r *slo.Report, row *slo.Row, x *slo.Result, a *slo.Alert) rules.Finding {
	f := rules.Finding{
		Rule: rules.BudgetBurns, Severity: map[slo.Severity]string{slo.Page: "ERROR", slo.Ticket: "WARN"}[a.Severity], Value: a.Burn, Labels: burnLabels(row, x, a.Severity),
		Reason: fmt.Sprintf("%s misses its objective %q: its %d-day error budget burns at %s the sustainable rate over %s, %s over %s",
			servedBy(row), x.Text(), r.Window/(24*time.Hour), times(a.Burn), slo.WindowName(a.Long), times(a.Now), slo.WindowName(a.Short)),
		Action: slo.Unexplained.Advice(),
	}
	if x.Kind != slo.Errors && x.Kind != slo.Availability && len(row.Limits) > 0 {
		f.Reason += "; the time is lost to: " + slo.Sentence(row.Limits)
		f.Action = row.Limits[0].Cause.Advice()
	}
	return f
}

func burnLabels(row *slo.Row, x *slo.Result, s slo.Severity) query.Labels {
	return objectiveLabels(row, x, fleet.LabelBurnSeverity, string(s))
}

func servedBy(row *slo.Row) string {
	if row.Owner.ID == "" {
		return row.Model
	}
	return row.Model + " of " + fleet.InCluster(row.Owner.Label(), row.Owner.Cluster)
}

// times returns a burn rate as a multiple.
func times(burn float64) string {
	return strconv.FormatFloat(math.Round(burn*10)/10, 'f', -1, 64) + "x"
}
