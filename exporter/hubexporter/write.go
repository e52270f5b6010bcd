package hubexporter

import (
	"context"
	"sync"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// Store is where everything goes.
type Store interface {
	Appender(ctx context.Context) *hub.Appender
	AppendEvents(ctx context.Context, events []hub.Event) error
	Describe(name string, f hub.Family)
}

// Writer writes OTLP into a store. It is safe for concurrent use.
type Writer struct {
	store      Store
	converters sync.Pool
	room       int // bytes that the samples of one call may take
}

// NewWriter returns one. promote are the resource attributes that become labels; nil:
// DefaultResourceLabels.
func NewWriter(store Store, promote []string) *Writer {
	if promote == nil {
		promote = DefaultResourceLabels()
	}
	return &Writer{store: store, room: maxSeriesBytes, converters: sync.Pool{New: func() any { return newConverter(promote) }}}
}

// Metrics writes all of md, or nothing and returns an error, after which it may be sent
// again. What can never be written is counted in the result.
func (w *Writer) Metrics(ctx context.Context, md pmetric.Metrics) (hub.Result, error) {
	c := w.converters.Get().(*converter)
	defer w.converters.Put(c)
	a := w.store.Appender(ctx)
	c.convert(md, w.store, a, w.room)
	return a.Commit()
}

// Logs writes all of ld, or nothing and returns an error. Records beyond what one call
// may bring are counted as refused.
func (w *Writer) Logs(ctx context.Context, ld plog.Logs) error {
	_, err := w.logs(ctx, ld)
	return err
}

func (w *Writer) logs(ctx context.Context, ld plog.Logs) (hub.Result, error) {
	events, lost := eventsOf(ld)
	if err := w.store.AppendEvents(ctx, events); err != nil {
		return hub.Result{}, err
	}
	r := hub.Result{Accepted: len(events), Refused: lost.records}
	if r.Refused > 0 {
		r.Why = tooManyRecords
		w.store.Appender(ctx).Note(hub.Invalid, r.Refused, r.Why)
	}
	if lost.attributes > 0 {
		w.store.Appender(ctx).Note(hub.BadLabel, lost.attributes, "a log record has attributes that are too long or too many, they are cut or left out")
	}
	return r, nil
}
