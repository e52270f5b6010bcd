// Package view computes the JSON behind the pages of the dashboard from a store of time
// series. The store may be the hub's own, a view of it restricted to one team, or any other
// that speaks PromQL: the pages are the same.
package view

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/cost/tokens"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/queue"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/fleet/sizing"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/triage"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/remote"
	"github.com/gpumeter/gpumeter/internal/slo"
)

// Options configure the handler. The zero value is usable.
type Options struct {
	Now     func() time.Time // clock, default time.Now
	Timeout time.Duration    // per request, default 30 s
	Rack    string           // label with the rack of a node, default "rack"
	Title   string           // name of the fleet, shown on the page
	Team    string           // the team to which the store is restricted, if any
	Zone    *time.Location   // of days and months, default UTC
	// ShortModel returns a model name without the vendor's name; nil leaves model names
	// unchanged.
	ShortModel func(model string) string
	Facts      sizing.Facts  // of models; nil: nobody knows what would be smaller
	Marks      *triage.Marks // what people said about findings; may be nil
	// Objectives returns how the service level objectives are met at a moment; nil if nobody judges them.
	Objectives func(ctx context.Context, at time.Time) (*slo.Report, error)
}

func (o *Options) shortModel(model string) string {
	if o.ShortModel == nil {
		return model
	}
	return o.ShortModel(model)
}

// Limits of one response. A page that needs more requests a shorter period.
const (
	maxEvents   = 1000
	maxPoints   = 400 // per line of a chart
	maxLines    = 24  // per chart
	maxSearch   = 40
	maxSpan     = 400 * 24 * time.Hour
	freshness   = 5 * time.Second // younger answers are served from the cache
	maxRemember = 16              // cached answers
	maxCharts   = 256
)

// errBad marks an invalid request.
var errBad = errors.New("bad request")

// errNone marks something that the store does not have.
var errNone = errors.New("not found")

type viewer struct {
	store    query.Store
	accounts Accounts
	log      events.Log
	opts     Options

	fleet  *fleet.Reader
	fleets memory[int64, *fleet.Fleet]
	bills  memory[span, *Bill]
	found  memory[span, []Finding]
	sizes  memory[span, *sizing.Report]
	served memory[int64, []serving.Row]
	// periods is what was served in a period.
	periods    memory[span, *tokens.Bill]
	tokenBills *tokens.Reader
	judged     memory[int64, *slo.Report]

	queues memory[int64, []queue.Cluster]
	waits  memory[span, []queue.Wait]
	// blocked is what was free in a period while jobs waited.
	blocked memory[span, []queue.Blocked]

	charts memory[string, *rangeAnswer]
	since  memory[int64, sinceAnswer]
}

// fleetAt returns the fleet at a moment. Requests within a few seconds of each other share a
// cached answer.
func (v *viewer) fleetAt(ctx context.Context, at time.Time) (*fleet.Fleet, error) {
	at = at.Truncate(freshness)
	return v.fleets.get(ctx, at.Unix(), v.opts.Now(), freshness, func(ctx context.Context) (*fleet.Fleet, error) { return v.fleet.At(ctx, at) })
}

// Handler serves fleet, workloads, gpu, workload, serving, queue, timeline, events, cost, waste, sizing, prices, search, range, since,
// usage and peaks below its mount point. log may be nil.
func Handler(store query.Store, accounts Accounts, log events.Log, o Options) http.Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Zone == nil {
		o.Zone = time.UTC
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	v := &viewer{
		store: store, accounts: accounts, log: log, opts: o,
		fleet: fleet.NewReader(store, fleet.Options{Rack: o.Rack, Price: accounts.Price, Restricted: o.Team != ""}),
	}
	v.charts.max = maxCharts
	v.tokenBills = tokens.NewReader(store, func(ctx context.Context, from, to time.Time) (*cost.Statement, error) {
		if v.accounts.Bill == nil {
			return &cost.Statement{From: from, To: to}, nil
		}
		b, err := v.accounts.Bill(ctx, from, to)
		if err != nil {
			return nil, err
		}
		return &b.Statement, nil
	}, fleet.MeterOptions{}, tokens.DefaultInputWeight)
	mux := http.NewServeMux()
	for name, answer := range map[string]func(context.Context, request) (any, error){
		"fleet":     v.fleetPage,
		"workloads": v.workloadsPage,
		"workload":  v.workloadPage,
		"serving":   v.servingPage,
		"queue":     v.queuePage,
		"timeline":  v.timelinePage,
		"gpu":       v.gpuPage,
		"events":    v.eventsPage,
		"cost":      v.costPage,
		"waste":     v.wastePage,
		"sizing":    v.sizingPage,
		"prices":    v.pricesPage,
		"search":    v.searchPage,
		"range":     v.rangePage,
		"since":     v.sincePage,

		remote.Page:      v.usagePage,
		remote.PeaksPage: v.peaksPage,
	} {
		mux.HandleFunc("GET /"+name, v.serve(answer))
	}
	return mux
}
