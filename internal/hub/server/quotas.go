//go:build linux

package server

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/rules"
	"github.com/gpumeter/gpumeter/internal/hub/triage"
	"github.com/gpumeter/gpumeter/internal/hub/view"
	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/slo"
)

// How often the quotas are read, and how often the bill of the month is computed.
const (
	quotasEvery = 5 * time.Minute
	billEvery   = 10 * time.Minute
	// maxOver is the maximum number of simultaneous findings.
	maxOver = 1000
)

// Names of the quota series.
const (
	quotaUsed  = fleet.SeriesQuotaUsed
	quotaLimit = fleet.SeriesQuotaLimit
)

var quotaHelp = map[string]string{
	quotaUsed:  "Used amount of a quota: GPUs held now, or GPU hours or money since the start of the month.",
	quotaLimit: "Limit of a quota.",
}

// quotaSource is one value of --quotas with the result of its last read.
type quotaSource struct {
	from  string
	list  []cost.Quota
	err   string
	stale *stale
}

// quotas holds the quotas of teams and their usage. It is safe for concurrent use.
type quotas struct {
	log     *zap.Logger
	prices  pricing
	zone    *time.Location // of months
	vendors device.Vendors
	watch   rules.Watch
	// followPrices reads the price file again when it changes; both are nil without a file.
	followPrices func(context.Context)
	priceFile    *followed
	objectives   *objectives // of inference; nil in tests of money

	mu      sync.Mutex
	sources []quotaSource
	uses    []cost.Use

	// Used only by the goroutine that calls look.
	read, billed time.Time
	billedBy     int // state of the prices
	month        cost.Month
	bill         cost.Statement
	written      map[string]hub.Labels
}

// newQuotas reads the sources. An unreadable file is an error; an unreachable Kubernetes or
// Slurm is retried later.
func newQuotas(ctx context.Context, from []string, vendors device.Vendors, prices cost.Prices, log *zap.Logger) (*quotas, error) {
	q := &quotas{log: log, prices: pricing{prices: prices}, zone: time.UTC, vendors: vendors, read: time.Now()}
	for _, f := range from {
		kept := &stale{what: "quotas", name: filepath.Base(f)}
		if !isQuotaFile(f) {
			kind, _, _ := strings.Cut(f, ":") // what follows is a path
			kept = &stale{what: "quotas", name: kind, service: true}
		}
		q.sources = append(q.sources, quotaSource{from: f, stale: kept})
	}
	for i := range q.sources {
		if err := q.refresh(ctx, i); err != nil && isQuotaFile(from[i]) {
			return nil, fmt.Errorf("--quotas %s: %w", from[i], err)
		}
	}
	return q, nil
}

// refresh reads one source. If it cannot be read, the previous quotas stay valid, and the error
// is logged once.
func (q *quotas) refresh(ctx context.Context, i int) error {
	list, err := ReadQuotas(ctx, q.sources[i].from, q.vendors)
	if err == nil {
		err = cost.SameCurrency(list, q.prices.current())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.sources[i]
	s.stale.read(err, time.Now())
	switch {
	case err != nil && s.err == "":
		s.err = logging.OneLine(err)
		q.log.Warn("Cannot read quotas", zap.String("from", s.from), zap.String("reason", s.err))
	case err == nil && s.err != "":
		s.err = ""
		q.log.Info("Quotas can be read again", zap.String("from", s.from))
	}
	if err == nil {
		s.list = list
	}
	return err
}

// state returns lines for /readyz about prices and quotas that are not up to date.
func (q *quotas) state() []string {
	var out []string
	if q.priceFile != nil {
		out = q.priceFile.state()
	}
	for i := range q.sources {
		out = append(out, q.sources[i].stale.state()...)
	}
	return out
}

// all returns the quotas of all sources.
func (q *quotas) all() []cost.Quota {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []cost.Quota
	for _, s := range q.sources {
		out = append(out, s.list...)
	}
	return out
}

// look refreshes quotas and the bill if they are due, and compares quotas with usage.
func (q *quotas) look(ctx context.Context, store query.Store, at time.Time) error {
	if at.Sub(q.read) >= quotasEvery {
		q.read = at
		for i := range q.sources {
			_ = q.refresh(ctx, i) // refresh logs the error
		}
	}
	all := q.all()
	prices, _, state := q.prices.get()
	if slices.ContainsFunc(all, func(x cost.Quota) bool { return x.Hours != nil || x.Money != nil }) && (at.Sub(q.billed) >= billEvery || q.billedBy != state) {
		bill, err := q.month.Bill(ctx, store, prices, at.In(q.zone).Truncate(time.Second), cost.Options{})
		if err != nil {
			return err
		}
		q.bill, q.billed, q.billedBy = bill, at, state
	}
	held, err := fleet.Held(ctx, store, at, nil)
	if err != nil {
		return err
	}
	uses := cost.Check(all, q.bill, held)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.uses = uses
	return nil
}

func (q *quotas) used() []cost.Use {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.uses
}

// over returns a finding for each exceeded quota.
func over(uses []cost.Use, currency string) []rules.Finding {
	var out []rules.Finding
	for i := range uses {
		u := &uses[i]
		if !u.Over || len(out) == maxOver {
			continue
		}
		unit := map[string]string{"gpus": "GPUs", "gpu_hours": "GPU hours this month", "money": currency + " this month"}[u.What]
		out = append(out, rules.Finding{
			Rule: rules.OverQuota, Severity: "WARN", Value: u.Used, Labels: quotaLabels(u),
			Reason: fmt.Sprintf("%s uses %s %s, its quota is %s", u.Quota, decimal(u.Used), unit, decimal(u.Limit)),
			Action: "Find workloads that can wait or stop, or raise the quota.",
		})
	}
	return out
}

func decimal(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// judgeQuotas evaluates the quotas once. If the hub has its own store, it writes usage and
// limits as series, and exceeded quotas as events.
func (s *Server) judgeQuotas(ctx context.Context, store query.Store, q *quotas, at time.Time) error {
	if err := q.look(ctx, store, at); err != nil {
		return err
	}
	uses := q.used()
	if s.store != nil {
		if err := s.writeQuotas(ctx, q, uses, at); err != nil {
			return err
		}
	}
	return s.tell(ctx, &q.watch, over(uses, q.prices.current().Currency), at)
}

func (s *Server) writeQuotas(ctx context.Context, q *quotas, uses []cost.Use, at time.Time) error {
	a := s.store.OwnAppender(ctx)
	written := map[string]hub.Labels{}
	for i := range uses {
		for name, value := range map[string]float64{quotaUsed: uses[i].Used, quotaLimit: uses[i].Limit} {
			l := seriesLabels(name, quotaLabels(&uses[i]))
			written[l.String()] = l
			a.Gauge(l, at.UnixMilli(), value)
		}
	}
	for key, l := range q.written {
		if _, ok := written[key]; !ok {
			a.End(l, at.UnixMilli())
		}
	}
	for name, help := range quotaHelp {
		s.store.Describe(name, hub.Family{Type: "gauge", Help: help})
	}
	if _, err := a.Commit(); err != nil {
		return err
	}
	q.written = written
	return nil
}

// quotaLabels returns the labels that identify a use.
func quotaLabels(u *cost.Use) map[string]string {
	l := map[string]string{"quota": u.Quota, "source": u.Source, "unit": u.What}
	maps.Copy(l, access.Scope{Team: u.Team, Namespace: u.Namespace, Cluster: u.Cluster}.Labels())
	return l
}

// gauges returns the quotas for the hub's /metrics, where they can be scraped even with
// --backend.
func (q *quotas) gauges() []hub.Gauge {
	var out []hub.Gauge
	for _, u := range q.used() {
		l := quotaLabels(&u)
		out = append(out, hub.Gauge{Name: quotaUsed, Help: quotaHelp[quotaUsed], Labels: l, Value: u.Used},
			hub.Gauge{Name: quotaLimit, Help: quotaHelp[quotaLimit], Labels: l, Value: u.Limit})
	}
	return out
}

// view returns the constructor of the page's API handler for a scope, with the current quotas. A
// team or namespace sees its own quotas, and others that it uses.
func (q *quotas) view(title string, marks *triage.Marks) func(access.Scope, query.Store, events.Log) http.Handler {
	return func(scope access.Scope, store query.Store, log events.Log) http.Handler {
		return &repriced{pricing: &q.prices, build: func(prices cost.Prices, broken string) http.Handler {
			return q.page(title, scope, store, log, marks, prices, broken)
		}}
	}
}

// page returns the page's API handler of a scope under the current prices.
func (q *quotas) page(title string, scope access.Scope, store query.Store, log events.Log, marks *triage.Marks, prices cost.Prices, broken string) http.Handler {
	accounts := view.Cost(store, prices, nil)
	if broken != "" {
		accounts.Notes = []string{"The price file was changed and is not valid: the prices are those from before the change."}
		if scope.All() { // the reason may name other teams
			accounts.Notes[0] += " " + broken
		}
	}
	if !scope.All() {
		accounts.Cover = nil
	}
	if len(q.sources) > 0 {
		accounts.Quotas = func(ctx context.Context, at time.Time) ([]view.Quota, error) {
			all := q.all()
			if len(all) == 0 {
				return nil, nil
			}
			list, err := view.Cost(store, prices, all).Quotas(ctx, at)
			if scope.All() || err != nil {
				return list, err
			}
			own := map[string]bool{}
			for i := range all {
				own[all[i].Name] = own[all[i].Name] || all[i].Matches(scope.Labels())
			}
			return slices.DeleteFunc(list, func(u view.Quota) bool { return !own[u.Team] && u.Used == 0 }), nil
		}
	}
	o := view.Options{Title: title, Team: scope.String(), ShortModel: q.vendors.ShortModel, Facts: q.vendors, Marks: marks, Zone: q.zone}
	if q.objectives != nil {
		o.Objectives = func(ctx context.Context, at time.Time) (*slo.Report, error) { return q.objectives.at(ctx, store, at) }
	}
	return view.Handler(store, accounts, log, o)
}
