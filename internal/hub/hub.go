// Package hub is the fleet's store: Prometheus' database and PromQL on a folder, a bounded
// log of events, and the HTTP API that Grafana, the page and the reports ask. It knows no
// Collector: exporter/hubexporter turns OTLP into what is appended here.
package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/compression"

	"github.com/gpumeter/gpumeter/internal/query"
)

// What a Store does unless its Options say otherwise.
const (
	DefaultRetention    = 30 * 24 * time.Hour
	DefaultOutOfOrder   = 24 * time.Hour
	DefaultMaxSeries    = 2_000_000
	DefaultMaxSamples   = 20_000_000 // 16 bytes each
	DefaultQueryTimeout = 30 * time.Second
	DefaultQueries      = 8
	DefaultEventBytes   = 256 << 20
)

// Options of a Store. The zero value is a good default.
type Options struct {
	Retention  time.Duration // of samples and events
	MaxBytes   int64         // of samples on disk, oldest go first; 0: no limit
	EventBytes int64         // of events on disk, oldest go first
	OutOfOrder time.Duration // how far behind the newest sample one may be
	MaxSeries  int           // in memory; a sample of one more is refused

	MaxSamples   int           // that one query may hold in memory
	QueryTimeout time.Duration // waiting for its turn is part of it
	Queries      int           // at the same time

	Log *slog.Logger     // nil: none
	Now func() time.Time // nil: time.Now
}

func (o *Options) defaults() {
	orDefault(&o.Retention, DefaultRetention)
	orDefault(&o.EventBytes, DefaultEventBytes)
	orDefault(&o.OutOfOrder, DefaultOutOfOrder)
	orDefault(&o.MaxSeries, DefaultMaxSeries)
	orDefault(&o.MaxSamples, DefaultMaxSamples)
	orDefault(&o.QueryTimeout, DefaultQueryTimeout)
	orDefault(&o.Queries, DefaultQueries)
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

func orDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

var _ query.Store = (*Store)(nil)

// Store keeps samples and events in one folder. It is safe for concurrent use.
type Store struct {
	opt      Options
	db       *tsdb.DB
	engine   *promql.Engine
	parser   parser.Parser
	turns    turns     // of queries
	elements sync.Pool // of *[]element
	names    names
	registry *prometheus.Registry
	events   *EventFile
	lock     *os.File
	refused  *Refusals
	families families
	wbl      *failures // of the log of samples out of order

	commitMu sync.Mutex
	buffers  sync.Pool // of *[]pending

	// starts are the start times of counters that have their zero, by series.
	startsMu sync.Mutex
	starts   map[storage.SeriesRef]int64
	// before is the newest sample that there was when the store was opened, in ms.
	before int64
	// full says that a series was refused and none has been deleted since.
	full atomic.Bool
	open atomic.Bool
}

// Open opens the store in dir, and creates it if there is none. One process at a time
// can have it.
func Open(dir string, o Options) (*Store, error) {
	o.defaults()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("cannot make the folder of the store: %w", err)
	}
	s := &Store{
		opt: o, registry: prometheus.NewRegistry(), parser: parser.NewParser(parser.Options{}),
		starts: map[storage.SeriesRef]int64{}, refused: NewRefusals(), turns: make(turns, o.Queries),
	}
	s.wbl = &failures{Registerer: s.registry}
	var err error
	if s.lock, err = takeLock(dir); err != nil {
		return nil, err
	}
	if err := mend(filepath.Join(dir, "tsdb"), o.Log); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot mend the store in %s: %w", dir, err), s.lock.Close())
	}
	if s.db, err = tsdb.Open(filepath.Join(dir, "tsdb"), o.Log, s.wbl, s.tsdbOptions(), nil); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open the store in %s: %w", dir, err), s.lock.Close())
	}
	s.before = s.db.Head().MaxTime()
	if s.events, err = OpenEvents(filepath.Join(dir, "events"), EventOptions{MaxBytes: o.EventBytes, Retention: o.Retention, Now: o.Now}); err != nil {
		return nil, errors.Join(err, s.db.Close(), s.lock.Close())
	}
	s.engine = promql.NewEngine(promql.EngineOpts{
		Logger: o.Log, Reg: s.registry, Parser: s.parser,
		MaxSamples: o.MaxSamples, Timeout: o.QueryTimeout, ActiveQueryTracker: s.turns,
		LookbackDelta: lookback, EnableAtModifier: true, EnableNegativeOffset: true,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
	})
	s.register()
	s.open.Store(true)
	return s, nil
}

// lookback is how old the newest sample of a series may be for an answer; Prometheus'
// default.
const lookback = 5 * time.Minute

func (s *Store) tsdbOptions() *tsdb.Options {
	o := tsdb.DefaultOptions()
	o.RetentionDuration = s.opt.Retention.Milliseconds()
	o.MaxBytes = s.opt.MaxBytes
	o.OutOfOrderTimeWindow = s.opt.OutOfOrder.Milliseconds()
	o.MaxBlockDuration = max(o.MinBlockDuration, min(o.RetentionDuration/10, (31*24*time.Hour).Milliseconds())) // as Prometheus does
	o.WALCompression = compression.Snappy
	o.SeriesLifecycleCallback = (*lifecycle)(s)
	return o
}

// register adds what the store says of itself. The metrics of the database and of the
// engine keep Prometheus' names, so that its dashboards and alerts work.
func (s *Store) register() {
	s.registry.MustRegister(s.refused, s.events.collector(),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpumeter_hub_series", Help: "Series in memory."},
			func() float64 { return float64(s.db.Head().NumSeries()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpumeter_hub_series_limit", Help: "Series in memory above which new ones are refused."},
			func() float64 { return float64(s.opt.MaxSeries) }),
	)
}

// Registry has the metrics of the store, for others to add theirs.
func (s *Store) Registry() *prometheus.Registry { return s.registry }

// Refusals counts what the store, and whoever stands before it, did not do.
func (s *Store) Refusals() *Refusals { return s.refused }

// AppendEvents adds events to the log. Once it returns nil they survive a kill.
func (s *Store) AppendEvents(ctx context.Context, events []Event) error {
	return s.events.AppendEvents(ctx, events)
}

// Events returns the events that q asks for, newest first.
func (s *Store) Events(ctx context.Context, q EventQuery) ([]Event, error) {
	return s.events.Events(ctx, q)
}

// NumSeries returns how many series are in memory.
func (s *Store) NumSeries() uint64 { return s.db.Head().NumSeries() }

// Size returns how many bytes of samples are on disk.
func (s *Store) Size() int64 {
	n := s.db.Head().Size()
	for _, b := range s.db.Blocks() {
		n += b.Size()
	}
	return n
}

// Close writes what is left to write and gives the folder free.
func (s *Store) Close() error { return errors.Join(s.db.Close(), s.events.Close(), s.lock.Close()) }

// errFull is the answer to one series too many.
type errFull struct{ limit int }

func (e errFull) Error() string {
	return fmt.Sprintf("the hub has %d series, which is its limit: start it with a higher --max-series if it has the memory, or send to a larger store and give its address with --backend", e.limit)
}

// lifecycle is told of series by the database.
type lifecycle Store

// PreCreation implements tsdb.SeriesLifecycleCallback. What is on disk already is let in.
func (l *lifecycle) PreCreation(labels.Labels) error {
	s := (*Store)(l)
	if s.open.Load() && s.db.Head().NumSeries() >= uint64(s.opt.MaxSeries) {
		if !s.full.Swap(true) {
			s.opt.Log.Warn(errFull{s.opt.MaxSeries}.Error())
		}
		return errFull{s.opt.MaxSeries}
	}
	return nil
}

// PostCreation implements tsdb.SeriesLifecycleCallback.
func (*lifecycle) PostCreation(labels.Labels) {}

// PostDeletion implements tsdb.SeriesLifecycleCallback.
func (l *lifecycle) PostDeletion(gone map[chunks.HeadSeriesRef]labels.Labels) {
	s := (*Store)(l)
	s.startsMu.Lock()
	defer s.startsMu.Unlock()
	for ref := range gone {
		delete(s.starts, storage.SeriesRef(ref))
	}
	s.full.Store(false)
}
