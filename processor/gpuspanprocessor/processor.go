package gpuspanprocessor

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sender"
	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/internal/timeline"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// memory is shared by the processors of one configuration: joules are given once, whatever
// pipeline a span comes by.
type memory struct {
	cfg       *Config
	throttled device.Buckets // those of gpu_throttled
	timeline  timeline.Timeline
	board     *spans.Board
	finder    atomic.Pointer[sender.Finder] // nil until the start
	clock     func() time.Time
	release   func() // called by the last user

	mu     sync.Mutex
	users  int
	cancel func()
	done   sync.WaitGroup
}

func newMemory(cfg *Config, release func()) *memory {
	k := &memory{cfg: cfg, clock: time.Now, release: release}
	for _, name := range cfg.Events.Throttled {
		k.throttled |= buckets[name]
	}
	return k
}

// nobody is the Lookup of an extension that knows no workloads.
type nobody struct{}

func (nobody) Process(uint32) (workload.Workload, bool)   { return workload.Workload{}, false }
func (nobody) Container(string) (workload.Workload, bool) { return workload.Workload{}, false }

// start starts learning with the first user.
func (k *memory) start(host component.Host) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.users == 0 {
		view, err := ticks.Need(host, "gpuspan processor")
		if err != nil {
			return err
		}
		lookup, ok := view.(sender.Lookup)
		if !ok {
			lookup = nobody{}
		}
		k.board = &spans.Board{} // seen by nobody
		if b, ok := view.(interface{ Spans() *spans.Board }); ok {
			k.board = b.Spans()
		}
		f := sender.New(lookup, filepath.Join("/", k.cfg.Root, "proc"), "/proc/self")
		k.finder.Store(f)
		subscription, cancel := view.Subscribe()
		k.cancel = cancel
		k.done.Go(func() {
			for t := range subscription {
				f.See(&t)
				k.timeline.See(&t)
			}
		})
	}
	k.users++
	return nil
}

// stop stops learning with the last user.
func (k *memory) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.users--; k.users > 0 {
		return
	}
	k.cancel()
	k.done.Wait()
	k.release()
}

// spanProcessor is the processor of one pipeline.
type spanProcessor struct {
	*memory

	meters  *meters
	started bool
}

func (p *spanProcessor) start(_ context.Context, host component.Host) error {
	if err := p.memory.start(host); err != nil {
		return err
	}
	p.started = true
	return p.meters.observe(p.memory)
}

func (p *spanProcessor) shutdown(context.Context) error {
	if !p.started { // the Collector also shuts down components that failed to start
		return nil
	}
	p.started = false
	p.memory.stop()
	return p.meters.close()
}

// peer returns the address that a batch came from.
func peer(ctx context.Context) net.Addr {
	if a := sender.Peer(ctx); a != nil {
		return a
	}
	return client.FromContext(ctx).Addr
}
