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
)

// Opener returns a View that somebody else closes, and what starts its clock, which may
// be called again. gpumeter's own binary has one that outlives a reload of the pipelines.
type Opener func(local.Config) (view *node.View, start func(), err error)

// NewFactory returns the factory of the extension, which opens the View itself.
func NewFactory() extension.Factory { return NewFactoryWithView(nil) }

// NewFactoryWithView returns a factory whose extensions offer the View of open.
func NewFactoryWithView(open Opener) extension.Factory {
	return extension.NewFactory(metadata.Type, createDefaultConfig,
		func(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
			return &gpuExtension{cfg: cfg.(*Config).Local(), log: set.Logger, open: open}, nil
		}, metadata.ExtensionStability)
}

var _ extensioncapabilities.PipelineWatcher = (*gpuExtension)(nil)

type gpuExtension struct {
	cfg  local.Config
	log  *zap.Logger
	open Opener

	view  *node.View
	start func()
	stop  func() error
}

// Start implements component.Component. The clock starts with Ready: an agent that
// cannot start says so and nothing else, and no receiver misses the first tick.
func (e *gpuExtension) Start(context.Context, component.Host) (err error) {
	if e.open != nil {
		e.view, e.start, err = e.open(e.cfg)
		return err
	}
	e.start = e.run
	e.view, err = local.Open(e.cfg, func(n node.Notice) { Log(e.log, n) })
	return err
}

func (e *gpuExtension) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	var closed error
	done.Go(func() { closed = e.view.Run(ctx) })
	e.stop = func() error {
		cancel()
		done.Wait()
		return closed
	}
}

// Ready implements extensioncapabilities.PipelineWatcher.
func (e *gpuExtension) Ready() error {
	e.start()
	return nil
}

// NotReady implements extensioncapabilities.PipelineWatcher.
func (e *gpuExtension) NotReady() error { return nil }

// Shutdown implements component.Component.
func (e *gpuExtension) Shutdown(context.Context) error {
	if e.stop == nil {
		return nil
	}
	return e.stop()
}

// Subscribe returns the ticks of the View, see node.View.Subscribe.
func (e *gpuExtension) Subscribe() (ticks <-chan node.Tick, cancel func()) { return e.view.Subscribe() }

// Log writes a change of state to log.
func Log(log *zap.Logger, n node.Notice) {
	var fields []zap.Field
	if n.Device.UUID != "" {
		fields = append(fields, zap.String("gpu.uuid", n.Device.Physical()), zap.String("gpu.model", n.Device.Model))
	}
	if n.Device.Parent != "" {
		fields = append(fields, zap.String("gpu.partition.id", n.Device.UUID))
	}
	// No hardware is a normal state: its error says where we looked, and is no alarm.
	if n.Err != nil && !errors.Is(n.Err, context.Canceled) {
		fields = append(fields, zap.String("reason", n.Err.Error()))
	}
	if n.Bad() {
		log.Warn(n.String(), fields...)
		return
	}
	log.Info(n.String(), fields...)
}
