// Package hub is the fleet's store: Prometheus' TSDB and PromQL engine in a directory, a
// bounded event log, and the HTTP API used by Grafana, the dashboard and the reports.
//
// A Store needs exclusive access to its directory and no privileges. Every limit (series,
// queries, samples, bytes, body sizes) has a counter in gpumeter_hub_refused_total. The
// package does not know the Collector or OTLP: exporter/hubexporter converts OTLP to what is
// appended here. Rules are in internal/hub/rules, the dashboard's API in internal/hub/view.
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

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/folder"
	"github.com/gpumeter/gpumeter/internal/hub/days"
	"github.com/gpumeter/gpumeter/internal/hub/disk"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/growth"
	"github.com/gpumeter/gpumeter/internal/hub/rollup"
	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// Defaults of Options.
const (
	DefaultRetention    = 30 * 24 * time.Hour
	DefaultKeepUsage    = 1826 * 24 * time.Hour // five years, as long as books are often kept
	DefaultOutOfOrder   = 24 * time.Hour
	DefaultMaxSeries    = 2_000_000
	DefaultMaxSamples   = 20_000_000 // 16 bytes per sample
	DefaultQueryBytes   = 1 << 30
	DefaultQueryTimeout = 30 * time.Second
	DefaultQueries      = 8
	DefaultEventBytes   = 256 << 20
)

// Options configures a Store. Zero values mean the defaults.
type Options struct {
	Retention  time.Duration // of samples and events
	KeepUsage  time.Duration // of the usage of past days; at least Retention
	MaxBytes   int64         // of samples on disk, deleted oldest first; 0: no limit
	EventBytes int64         // of events on disk, deleted oldest first
	OutOfOrder time.Duration // maximum age of a sample relative to the newest one
	MaxSeries  int           // in memory; samples of further series are rejected
	NodeSeries int           // of one node; default: share.DefaultSeries

	MaxSamples   int           // samples that one query may hold in memory
	QueryBytes   int64         // bytes of labels that one query may hold in memory
	QueryTimeout time.Duration // including the time spent waiting in the queue
	Queries      int           // maximum number of concurrent queries

	Log *slog.Logger     // nil: no logging
	Now func() time.Time // nil: time.Now
}

func (o *Options) defaults() {
	orDefault(&o.Retention, DefaultRetention)
	orDefault(&o.KeepUsage, DefaultKeepUsage)
	o.KeepUsage = max(o.KeepUsage, o.Retention)
	orDefault(&o.EventBytes, DefaultEventBytes)
	orDefault(&o.OutOfOrder, DefaultOutOfOrder)
	orDefault(&o.MaxSeries, DefaultMaxSeries)
	orDefault(&o.NodeSeries, share.DefaultSeries(o.MaxSeries))
	orDefault(&o.MaxSamples, DefaultMaxSamples)
	orDefault(&o.QueryBytes, DefaultQueryBytes)
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

var _ fleet.Keeper = (*Store)(nil)

// Store holds samples and events in one directory. It is safe for concurrent use.
type Store struct {
	dir      string
	opt      Options
	db       *tsdb.DB
	engine   *promql.Engine
	parser   parser.Parser
	turns    *turns    // limits concurrent queries
	elements sync.Pool // holds *[]element
	names    names
	registry *prometheus.Registry
	events   *events.File
	lock     *os.File
	refused  *Refusals
	families families
	nodes    *share.Nodes
	wbl      *failures // failed writes of the out-of-order log

	commitMu sync.Mutex
	own      bool      // the commit in progress has the hub's own series
	buffers  sync.Pool // holds *[]pending

	unwritten atomic.Int64 // samples in chunks that may not be on disk yet
	damagedMu sync.Mutex
	damaged   []disk.Damage
	stopScrub context.CancelFunc
	scrubbing sync.WaitGroup

	// starts holds the start times of counters whose zero is stored, by series.
	startsMu sync.Mutex
	starts   map[storage.SeriesRef]int64
	days     *days.Days // usage by the hour
	rollup   *rollup.Rollup
	// before is the time of the newest sample when the store was opened, in ms.
	before int64
	// full is set when a series was rejected and none has been deleted since.
	full atomic.Bool
	open atomic.Bool
}

// Open opens the store in dir and creates it if necessary. Only one process can open it at
// a time.
func Open(dir string, o Options) (*Store, error) {
	o.defaults()
	if err := folder.Make(dir, 0o750); err != nil {
		return nil, fmt.Errorf("cannot use the store directory: %w", err)
	}
	if why := folder.Shared(dir); why != "" {
		o.Log.Warn("other users can change the data of the hub", "directory", dir, "reason", why)
	}
	s := &Store{
		dir: dir, opt: o, registry: prometheus.NewRegistry(), parser: parser.NewParser(parser.Options{}),
		starts: map[storage.SeriesRef]int64{}, refused: NewRefusals(), turns: newTurns(o.Queries),
		nodes: share.NewNodes(o.NodeSeries),
	}
	s.wbl = &failures{Registerer: s.registry}
	var err error
	if s.lock, err = takeLock(dir); err != nil {
		return nil, err
	}
	if err := s.mend(); err != nil {
		return nil, errors.Join(err, dropLock(s.lock))
	}
	if s.db, err = tsdb.Open(filepath.Join(dir, "tsdb"), o.Log, s.wbl, s.tsdbOptions(), nil); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open the store in %s: %w", dir, err), dropLock(s.lock))
	}
	s.before = s.db.Head().MaxTime()
	if s.events, err = events.Open(filepath.Join(dir, "events"), events.Options{MaxBytes: o.EventBytes, Retention: o.Retention, Now: o.Now, Evicted: s.evicted}); err != nil {
		return nil, errors.Join(err, s.db.Close(), dropLock(s.lock))
	}
	if s.days, err = days.Open(filepath.Join(dir, days.Folder), s, days.Options{Samples: s.Samples, Devices: s.Devices, Keep: o.KeepUsage, Log: o.Log}); err != nil {
		return nil, errors.Join(err, s.events.Close(), s.db.Close(), dropLock(s.lock))
	}
	s.engine = promql.NewEngine(promql.EngineOpts{
		Logger: o.Log, Reg: s.registry, Parser: s.parser,
		MaxSamples: o.MaxSamples, Timeout: o.QueryTimeout, ActiveQueryTracker: s.turns,
		LookbackDelta: lookback, EnableAtModifier: true, EnableNegativeOffset: true,
		NoStepSubqueryIntervalFn: func(int64) int64 { return growth.DefaultSubqueryStep.Milliseconds() },
	})
	s.rollup = s.newRollup()
	s.register()
	s.open.Store(true)
	ctx, stop := context.WithCancel(context.Background())
	s.stopScrub = stop
	s.scrubbing.Go(func() { s.scrub(ctx) })
	return s, nil
}

// lookback is the maximum age of the newest sample of a series in an instant query;
// Prometheus' default.
const lookback = 5 * time.Minute

func (s *Store) tsdbOptions() *tsdb.Options {
	o := tsdb.DefaultOptions()
	o.RetentionDuration = s.opt.Retention.Milliseconds()
	o.MaxBytes = s.opt.MaxBytes
	o.OutOfOrderTimeWindow = s.opt.OutOfOrder.Milliseconds()
	o.MaxBlockDuration = max(o.MinBlockDuration, min(o.RetentionDuration/10, (31*24*time.Hour).Milliseconds())) // as Prometheus does
	o.NewCompactorFunc = newCompactor
	o.MaxBlockChunkSegmentSize = disk.SegmentSize(s.dir)
	o.WALCompression = compression.Snappy
	o.SeriesLifecycleCallback = (*lifecycle)(s)
	return o
}

// register adds the store's own metrics. The metrics of the database and the engine keep
// Prometheus' names, so Prometheus' dashboards and alerts work.
func (s *Store) register() {
	s.registry.MustRegister(s.damageGauges()...)
	s.registry.MustRegister(s.refused, s.events,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpumeter_hub_series", Help: "Series in memory."},
			func() float64 { return float64(s.db.Head().NumSeries()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpumeter_hub_series_limit", Help: "Series in memory above which new ones are refused."},
			func() float64 { return float64(s.opt.MaxSeries) }),
	)
}

// Registry returns the registry of the store's metrics, to which others may add.
func (s *Store) Registry() *prometheus.Registry { return s.registry }

// Refusals returns the counters of everything the store and its front ends refused.
func (s *Store) Refusals() *Refusals { return s.refused }

// AppendEvents adds events to the log. Once it returns nil, they survive a kill.
func (s *Store) AppendEvents(_ context.Context, list []events.Event) error {
	if len(list) == 0 {
		return nil
	}
	if err := s.room(); err != nil {
		return fmt.Errorf("cannot write events: %w", err)
	}
	return s.events.Append(list)
}

// Events returns the events selected by q, newest first.
func (s *Store) Events(ctx context.Context, q events.Query) ([]events.Event, error) {
	return s.events.Events(ctx, q)
}

// NumSeries returns the number of series in memory.
func (s *Store) NumSeries() uint64 { return s.db.Head().NumSeries() }

// Size returns the bytes of samples on disk.
func (s *Store) Size() int64 {
	n := s.db.Head().Size()
	for _, b := range s.db.Blocks() {
		n += b.Size()
	}
	return n
}

// Close flushes pending data and releases the directory.
func (s *Store) Close() error {
	s.stopScrub()
	s.scrubbing.Wait()
	return errors.Join(s.closeDB(), s.events.Close(), dropLock(s.lock))
}

// errFull is returned for a new series beyond the limit.
type errFull struct{ limit int }

func (e errFull) Error() string {
	return fmt.Sprintf("series limit of %d reached: raise --max-series if there is enough memory, or use a larger store with --backend", e.limit)
}

// lifecycle receives callbacks about series from the database.
type lifecycle Store

// PreCreation implements tsdb.SeriesLifecycleCallback. Series already on disk are accepted.
func (l *lifecycle) PreCreation(of labels.Labels) error {
	s := (*Store)(l)
	if !s.open.Load() {
		return nil
	}
	if s.db.Head().NumSeries() >= uint64(s.opt.MaxSeries) {
		if !s.full.Swap(true) {
			s.opt.Log.Warn(errFull{s.opt.MaxSeries}.Error())
		}
		return errFull{s.opt.MaxSeries}
	}
	if node := nodeOf(of); !s.own && s.nodes.Full(node) {
		return errNodeFull{node, s.opt.NodeSeries}
	}
	return nil
}

// PostCreation implements tsdb.SeriesLifecycleCallback.
func (l *lifecycle) PostCreation(of labels.Labels) { l.nodes.Add(nodeOf(of), 1) }

// PostDeletion implements tsdb.SeriesLifecycleCallback.
func (l *lifecycle) PostDeletion(gone map[chunks.HeadSeriesRef]labels.Labels) {
	s := (*Store)(l)
	s.startsMu.Lock()
	defer s.startsMu.Unlock()
	for ref, of := range gone {
		delete(s.starts, storage.SeriesRef(ref))
		s.nodes.Add(nodeOf(of), -1)
	}
	s.full.Store(false)
}
