//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/extension/gpuextension"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// liveView is the single View of the process. The first gpu extension opens it; it outlives
// every reload of the pipelines.
type liveView struct {
	ctx context.Context //nolint:containedctx // lifetime of the process, not of a call
	log *zap.Logger
	// started, if set, is called when readings start.
	started func()

	relay

	mu    sync.Mutex
	cfg   local.Config
	view  *node.View
	start func()
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// open implements gpuextension.Opener.
func (l *liveView) open(cfg local.Config) (gpuextension.Feed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.view != nil {
		if !sameConfig(cfg, l.cfg) {
			l.log.Warn("Changes to extensions::gpu take effect when the agent restarts")
		}
		return l, nil
	}
	view, err := local.Open(cfg, func(n node.Notice) { gpuextension.Log(l.log, n) })
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.ctx)) // the pipelines must shut down first
	l.view, l.cfg, l.stop = view, cfg, cancel
	l.hold() // until the pipelines have started
	l.each(ctx, l.publish)
	l.start = sync.OnceFunc(func() {
		if l.started != nil {
			l.started()
		}
		if cfg.Simulate != "" {
			l.log.Warn("SIMULATED devices: none of these numbers are real", zap.String("model", cfg.Simulate))
		}
		l.done.Go(func() {
			if err := view.Run(ctx); err != nil {
				l.log.Warn("Cannot release the drivers", logging.Reason(err))
			}
		})
	})
	return l, nil
}

// each calls f with every tick until ctx is canceled.
func (l *liveView) each(ctx context.Context, f func(node.Tick)) {
	ticks, unsubscribe := l.view.Subscribe()
	l.done.Go(func() {
		for t := range ticks {
			f(t)
		}
	})
	context.AfterFunc(ctx, unsubscribe)
}

func sameConfig(a, b local.Config) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// Ready implements gpuextension.Feed.
func (l *liveView) Ready() {
	l.start()
	l.release()
}

// NotReady implements gpuextension.Feed.
func (l *liveView) NotReady() { l.hold() }

// Process implements gpuextension.Lookup.
func (l *liveView) Process(pid uint32) (workload.Workload, bool) { return l.view.Process(pid) }

// Container implements gpuextension.Lookup.
func (l *liveView) Container(id string) (workload.Workload, bool) { return l.view.Container(id) }

func (l *liveView) pause(ctx context.Context, d time.Duration) error {
	l.mu.Lock()
	view := l.view
	l.mu.Unlock()
	if view == nil {
		return errors.New("the agent has not started yet")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return view.Pause(ctx, time.Now(), d)
}

func (l *liveView) close() {
	l.mu.Lock()
	stop := l.stop
	l.mu.Unlock()
	if stop != nil {
		stop()
		l.done.Wait()
	}
}
