//go:build linux

package demo

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver"
	"github.com/gpumeter/gpumeter/receiver/inferencereceiver"
)

// Sink receives the telemetry of a node.
type Sink struct {
	metrics consumer.Metrics
	logs    consumer.Logs // nil: logs are discarded
}

// feed is the gpu extension of one node. A Collector has a single one, but the demo has
// several nodes. Unlike a View, feed blocks until each subscriber has received a tick, so that
// none misses a tick of the history.
type feed struct {
	mu   sync.Mutex
	list []chan node.Tick
}

// Start implements component.Component.
func (*feed) Start(context.Context, component.Host) error { return nil }

// Shutdown implements component.Component.
func (*feed) Shutdown(context.Context) error { return nil }

// GetExtensions implements component.Host. The feed is the only extension.
func (f *feed) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("gpu"): f}
}

// Subscribe implements the interface that the gpu receiver expects of its extension.
func (f *feed) Subscribe() (ticks <-chan node.Tick, cancel func()) {
	c := make(chan node.Tick)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, c)
	return c, sync.OnceFunc(func() { close(c) })
}

func (f *feed) push(t node.Tick) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.list {
		c <- t
	}
}

// Node is one machine of the fleet: a View and the receivers of an agent.
type Node struct {
	view      *node.View
	feed      feed
	receivers []component.Component
	clock     *atomic.Int64 // of a simulated node, in Unix nanoseconds
	trainer   *trainer      // of a simulated node
}

// NewNode returns the simulated node m, booted at start, which sends its telemetry to to.
func NewNode(m Machine, start time.Time, to Sink, log *zap.Logger) (*Node, error) {
	clock := &atomic.Int64{}
	clock.Store(start.UnixNano())
	cfg := local.Config{
		Interval: Interval, SlowInterval: Interval, Host: m.Host, Resource: m.Labels,
		Sim: &sim.Config{
			Groups: m.Groups, Seed: hash(m.Host), Start: start,
			Now: func() time.Time { return time.Unix(0, clock.Load()) },
		},
	}
	n, err := newNode(cfg, to, log)
	if err != nil {
		return nil, err
	}
	n.clock, n.trainer = clock, newTrainer(&m, start, to)
	return n, nil
}

func newNode(cfg local.Config, to Sink, log *zap.Logger) (*Node, error) {
	view, err := local.Open(cfg, nil)
	if err != nil {
		return nil, err
	}
	n := &Node{view: view}
	ctx := context.Background() // nothing below blocks
	engines, err := local.Engines(cfg)
	if err != nil {
		return nil, err
	}
	inference := inferencereceiver.NewFactory()
	if engines != nil {
		inference = inferencereceiver.NewFactoryWithEngines(engines)
	}
	for _, f := range []receiver.Factory{gpureceiver.NewFactory(), inference} {
		set := receiver.Settings{ID: component.NewID(f.Type()), TelemetrySettings: component.TelemetrySettings{
			Logger: log, MeterProvider: noopmetric.NewMeterProvider(), TracerProvider: nooptrace.NewTracerProvider(),
		}}
		r, err := f.CreateMetrics(ctx, set, f.CreateDefaultConfig(), to.metrics)
		if err != nil {
			return nil, err
		}
		n.receivers = append(n.receivers, r)
		if to.logs == nil || f.LogsStability() == component.StabilityLevelUndefined {
			continue
		}
		if r, err := f.CreateLogs(ctx, set, f.CreateDefaultConfig(), to.logs); err != nil {
			return nil, err
		} else {
			n.receivers = append(n.receivers, r)
		}
	}
	for _, r := range n.receivers {
		if err := r.Start(ctx, &n.feed); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Tick reads a simulated node as of the given time. When it returns, the receivers have the
// tick.
func (n *Node) Tick(ctx context.Context, at time.Time) node.Tick {
	n.clock.Store(at.UnixNano())
	t := n.view.Tick(ctx, at)
	if t.Time.Equal(at) { // if ctx was canceled, t is the previous tick
		n.feed.push(t)
		n.trainer.tick(ctx, &t)
	}
	return t
}

// run reads a real node until ctx is canceled.
func (n *Node) run(ctx context.Context) error {
	ticks, cancel := n.view.Subscribe()
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- n.view.Run(ctx) }()
	for {
		select {
		case t := <-ticks:
			n.feed.push(t)
		case err := <-done:
			return err
		}
	}
}

// Close shuts down the receivers, which flush their data.
func (n *Node) Close() error {
	var errs []error
	for _, r := range n.receivers {
		errs = append(errs, r.Shutdown(context.Background()))
	}
	return errors.Join(errs...)
}

// steps returns the times of the readings of a history up to now, with a finer step in the
// last hour. Steps are shorter than the five-minute lookback of a query.
func steps(now time.Time, history time.Duration) []time.Time {
	const coarse, fine, recent = 4 * time.Minute, time.Minute, time.Hour
	var steps []time.Time
	for at := now.Add(-history); at.Before(now); {
		steps = append(steps, at)
		step := coarse
		if now.Sub(at) <= recent {
			step = fine
		}
		at = at.Add(step)
	}
	return steps
}

// simulation is the simulated part of the demo.
type simulation struct {
	nodes     []*Node
	scheduler *elected // nil: there is none
}

// newSimulation returns a fleet that was booted at start. What its scheduler counts begins at began.
func newSimulation(fleet []Machine, start, began time.Time, to Sink) (*simulation, error) {
	s := &simulation{}
	for _, m := range fleet {
		n, err := NewNode(m, start, to, zap.NewNop())
		if err != nil {
			return s, err
		}
		s.nodes = append(s.nodes, n)
	}
	var err error
	s.scheduler, err = newScheduler(fleet, start, began, to, zap.NewNop())
	return s, err
}

// seed replays the history of everything in step: a store may reject samples that are much older than the newest.
func (s *simulation) seed(ctx context.Context, steps []time.Time) {
	for _, at := range steps {
		if ctx.Err() != nil {
			return
		}
		s.tick(ctx, at)
	}
}

func (s *simulation) tick(ctx context.Context, at time.Time) {
	var done sync.WaitGroup
	for _, n := range s.nodes {
		done.Go(func() { n.Tick(ctx, at) })
	}
	done.Go(func() { s.scheduler.tick(at) })
	done.Wait()
}

// Close shuts down all receivers, which flush their data.
func (s *simulation) Close() error {
	var errs []error
	for _, n := range s.nodes {
		errs = append(errs, n.Close())
	}
	return errors.Join(append(errs, s.scheduler.Close())...)
}
