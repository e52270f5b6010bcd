package hubexporter

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
)

// Store is the destination of all data.
type Store interface {
	Appender(ctx context.Context) *hub.Appender
	AppendEvents(ctx context.Context, list []events.Event) error
	Describe(name string, f hub.Family)
}

// Writer writes OTLP into a store. It is safe for concurrent use.
type Writer struct {
	store      Store
	converters sync.Pool
	room       int // bytes available for the samples of one call
}

// NewWriter returns a Writer. promote are the resource attributes that become labels; nil
// means DefaultResourceLabels.
func NewWriter(store Store, promote []string) *Writer {
	if promote == nil {
		promote = DefaultResourceLabels()
	}
	return &Writer{store: store, room: maxSeriesBytes, converters: sync.Pool{New: func() any { return newConverter(promote) }}}
}

// Metrics writes all of md, or nothing if it returns an error; then the call may be retried.
// Data that can never be stored is counted in the result.
func (w *Writer) Metrics(ctx context.Context, md pmetric.Metrics) (hub.Result, error) {
	c := w.converters.Get().(*converter)
	defer w.converters.Put(c)
	a := w.store.Appender(ctx)
	c.convert(md, w.store, a, w.room)
	return a.Commit()
}

// Logs writes all of ld, or nothing if it returns an error. Records beyond the limit of one
// call are counted as refused.
func (w *Writer) Logs(ctx context.Context, ld plog.Logs) error {
	_, err := w.logs(ctx, ld)
	return err
}

func (w *Writer) logs(ctx context.Context, ld plog.Logs) (hub.Result, error) {
	list, lost := eventsOf(ld)
	foreign, why := permitted(ctx, &list)
	if err := w.store.AppendEvents(ctx, list); err != nil {
		return hub.Result{}, err
	}
	r := hub.Result{Accepted: len(list), Refused: lost.records + foreign, Why: why}
	if foreign > 0 {
		w.store.Appender(ctx).Note(hub.Foreign, foreign, why)
	}
	if lost.records > 0 {
		r.Why = cmp.Or(r.Why, tooManyRecords)
		w.store.Appender(ctx).Note(hub.Invalid, lost.records, tooManyRecords)
	}
	if lost.attributes > 0 {
		w.store.Appender(ctx).Note(hub.BadLabel, lost.attributes, "log record attributes were too long or too many and were truncated or dropped")
	}
	return r, nil
}

// permitted removes the events of other machines than the sender's token is bound to, and returns
// their number and a reason.
func permitted(ctx context.Context, list *[]events.Event) (n int, why string) {
	bound := access.BindingsOf(ctx)
	if bound == nil {
		return 0, ""
	}
	before := len(*list)
	*list = slices.DeleteFunc(*list, func(e events.Event) bool {
		m := access.Machine{Host: e.Attributes["host.name"], Node: e.Attributes["k8s.node.name"], Cluster: e.Attributes["k8s.cluster.name"]}
		if bound.Permit(m) {
			return false
		}
		if why == "" {
			why = "event " + quoted(e.Name) + " is of another machine than the token, which is for " + bound.String() + ": " + m.String()
		}
		return true
	})
	return before - len(*list), why
}
