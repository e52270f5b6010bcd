// Package view computes what the page shows, as JSON, from a store of time series. The
// store may be the hub's own, one that answers for a single team, or any other that
// speaks PromQL: the page is the same.
package view

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/query"
)

// EventLog is where events are kept.
type EventLog interface {
	// Events returns those that q asks for, newest first.
	Events(ctx context.Context, q hub.EventQuery) ([]hub.Event, error)
}

// Options are what a hub may set. The zero value is good.
type Options struct {
	Now     func() time.Time // the clock
	Timeout time.Duration    // of one answer, 30 s
	Rack    string           // label that names the rack of a node, "rack"
	Title   string           // of this fleet, shown on the page
	Team    string           // whose store this is, if it is one team's only
	// ShortModel returns the name of a model without the words of its vendor; nil leaves
	// names as they are.
	ShortModel func(model string) string
}

func (o *Options) shortModel(model string) string {
	if o.ShortModel == nil {
		return model
	}
	return o.ShortModel(model)
}

// Limits of one answer. A page that needs more asks for less time.
const (
	maxEvents   = 1000
	maxPoints   = 400 // of one line of a chart
	maxLines    = 24  // of one chart
	maxSearch   = 40
	maxSpan     = 400 * 24 * time.Hour
	freshness   = 5 * time.Second // answers that are younger are given again
	maxRemember = 16              // answers that are kept for that
	maxPictures = 256
)

// errBad is what is wrong with a request.
var errBad = errors.New("bad request")

// errNone is a thing that the store does not know.
var errNone = errors.New("not found")

type viewer struct {
	store    query.Store
	accounts Accounts
	events   EventLog
	opts     Options

	fleet  *fleet.Reader
	fleets memory[int64, *fleet.Fleet]
	bills  memory[span, *Bill]
	found  memory[span, []Finding]

	pictures memory[string, *rangeAnswer]
}

// fleetAt returns the fleet at a moment. Moments within a few seconds of each other share
// an answer.
func (v *viewer) fleetAt(ctx context.Context, at time.Time) (*fleet.Fleet, error) {
	at = at.Truncate(freshness)
	return v.fleets.get(ctx, at.Unix(), v.opts.Now(), freshness, func(ctx context.Context) (*fleet.Fleet, error) { return v.fleet.At(ctx, at) })
}

// Handler answers the page's questions at fleet, workloads, gpu, workload, events, cost,
// search and range, below where it is mounted. events may be nil.
func Handler(store query.Store, accounts Accounts, events EventLog, o Options) http.Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	v := &viewer{
		store: store, accounts: accounts, events: events, opts: o,
		fleet: fleet.NewReader(store, fleet.Options{Rack: o.Rack, Rate: accounts.Rate}),
	}
	v.pictures.max = maxPictures
	mux := http.NewServeMux()
	for name, answer := range map[string]func(context.Context, request) (any, error){
		"fleet":     v.fleetPage,
		"workloads": v.workloadsPage,
		"workload":  v.workloadPage,
		"gpu":       v.gpuPage,
		"events":    v.eventsPage,
		"cost":      v.costPage,
		"search":    v.searchPage,
		"range":     v.rangePage,
	} {
		mux.HandleFunc("GET /"+name, v.serve(answer))
	}
	return mux
}
