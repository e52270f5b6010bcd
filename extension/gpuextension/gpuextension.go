package gpuextension

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/extension/gpuextension/internal/metadata"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Feed is the source of ticks. Ready and NotReady say when the pipelines can take ticks; both
// may be called repeatedly.
type Feed interface {
	Subscribe() (ticks <-chan node.Tick, cancel func())
	Ready()
	NotReady()
}

// Opener returns a Feed that the caller closes. In gpumeter's own binary the Feed outlives a
// reload of the pipelines.
type Opener func(local.Config) (Feed, error)

// NewFactory returns a factory whose extensions open the View themselves.
func NewFactory() extension.Factory { return NewFactoryWithView(nil) }

// NewFactoryWithView returns a factory whose extensions use the Feed returned by open.
func NewFactoryWithView(open Opener) extension.Factory {
	return extension.NewFactory(metadata.Type, createDefaultConfig,
		func(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
			return &gpuExtension{cfg: cfg.(*Config).Local(), set: set.TelemetrySettings, open: open}, nil
		}, metadata.ExtensionStability)
}

var _ extensioncapabilities.PipelineWatcher = (*gpuExtension)(nil)

type gpuExtension struct {
	statuses
	workload.Reports

	cfg  local.Config
	set  component.TelemetrySettings
	open Opener

	spans spans.Board // of applications

	feed      Feed
	own       *ownView // the feed, if the extension owns it
	hush      func()   // stops the status reports
	reporting sync.WaitGroup
}

// Start implements component.Component. The clock starts with Ready, so that a failing start
// reports only its own error, and no receiver misses the first tick.
func (e *gpuExtension) Start(_ context.Context, host component.Host) (err error) {
	if e.open != nil {
		e.feed, err = e.open(e.cfg)
	} else {
		err = e.openOwn()
	}
	if err != nil {
		return err
	}
	ticks, cancel := e.feed.Subscribe()
	e.hush = cancel
	e.reporting.Go(func() { report(host, ticks) })
	return e.register(e.set.MeterProvider)
}

func (e *gpuExtension) openOwn() error {
	view, err := local.Open(e.cfg, func(n node.Notice) { Log(e.set.Logger, n) })
	if err != nil {
		return err
	}
	e.own = &ownView{View: view}
	e.feed = e.own
	return nil
}

// ownView is a View with the lifetime of the extension.
type ownView struct {
	*node.View

	stop func() error
}

// Ready implements Feed.
func (v *ownView) Ready() {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	var closed error
	done.Go(func() { closed = v.Run(ctx) })
	v.stop = func() error {
		cancel()
		done.Wait()
		return closed
	}
}

// NotReady implements Feed.
func (*ownView) NotReady() {}

// Ready implements extensioncapabilities.PipelineWatcher.
func (e *gpuExtension) Ready() error {
	e.feed.Ready()
	return nil
}

// NotReady implements extensioncapabilities.PipelineWatcher. The Collector also calls it for
// an extension that has not started.
func (e *gpuExtension) NotReady() error {
	if e.feed != nil {
		e.feed.NotReady()
	}
	return nil
}

// Shutdown implements component.Component.
func (e *gpuExtension) Shutdown(context.Context) error {
	if e.hush != nil {
		e.hush()
		e.reporting.Wait()
	}
	err := e.unregister()
	if e.own != nil && e.own.stop != nil {
		err = errors.Join(err, e.own.stop())
	}
	return err
}

// Subscribe returns the ticks of the View; see node.View.Subscribe.
func (e *gpuExtension) Subscribe() (ticks <-chan node.Tick, cancel func()) { return e.feed.Subscribe() }

// Spans returns what is known of the spans of applications: the gpuspan processor fills it, and receivers
// link to them and report slow ones.
func (e *gpuExtension) Spans() *spans.Board { return &e.spans }

// Lookup is what a Feed may know about workloads besides its ticks.
type Lookup interface {
	Process(pid uint32) (workload.Workload, bool)
	Container(id string) (workload.Workload, bool)
}

// Process returns the workload of a process of this machine; see node.View.Process.
func (e *gpuExtension) Process(pid uint32) (workload.Workload, bool) {
	if l, ok := e.feed.(Lookup); ok {
		return l.Process(pid)
	}
	return workload.Workload{}, false
}

// Container returns the workload of a container of this machine.
func (e *gpuExtension) Container(id string) (workload.Workload, bool) {
	if l, ok := e.feed.(Lookup); ok {
		return l.Container(id)
	}
	return workload.Workload{}, false
}

// Log logs a change of state.
func Log(log *zap.Logger, n node.Notice) {
	var fields []zap.Field
	if n.Device.UUID != "" {
		fields = append(fields, zap.String("gpu.uuid", n.Device.Physical()), zap.String("gpu.model", n.Device.Model))
	}
	if n.Device.Parent != "" {
		fields = append(fields, zap.String("gpu.partition.id", n.Device.UUID))
	}
	// Missing hardware is normal: the error lists the searched paths and is not an alarm.
	if n.Err != nil && !errors.Is(n.Err, context.Canceled) {
		fields = append(fields, zap.String("reason", n.Err.Error()))
	}
	if n.Bad() {
		log.Warn(n.String(), fields...)
		return
	}
	log.Info(n.String(), fields...)
}
