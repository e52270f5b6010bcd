package workloadprocessor

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/ticks"
)

// knowledge is shared by the processors of one configuration: what a gateway learns in a
// metrics pipeline is used in logs and traces pipelines.
type knowledge struct {
	cfg      *Config
	lexicon  *lexicon
	registry registry
	fleet    *fleet // set on a gateway
	here     *here  // set on a node
	release  func() // called by the last user

	mu     sync.Mutex
	users  int
	cancel func()
	done   sync.WaitGroup
}

func newKnowledge(cfg *Config, release func()) *knowledge {
	k := &knowledge{cfg: cfg, release: release}
	known := cfg.Attributes
	if cfg.Mode == modeGateway {
		known.PID, known.Container, known.PCI = nil, nil, nil // see fleet
		k.fleet = newFleet(cfg)
		k.registry = k.fleet
	} else {
		k.here = &here{}
		k.registry = k.here
	}
	k.lexicon = newLexicon(&known)
	return k
}

// start starts learning with the first user.
func (k *knowledge) start(host component.Host) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.here != nil && k.users == 0 {
		view, err := ticks.Find(host)
		if err != nil {
			return err
		}
		if view == nil {
			return errors.New("the workload processor needs the gpu extension: add it under extensions and to service::extensions, or set mode: gateway")
		}
		k.here.lookup, _ = view.(lookup)
		subscription, cancel := view.Subscribe()
		k.cancel = cancel
		k.done.Go(func() { k.here.learn(subscription) })
	}
	k.users++
	return nil
}

// stop stops learning with the last user.
func (k *knowledge) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.users--; k.users > 0 {
		return
	}
	if k.cancel != nil {
		k.cancel()
		k.done.Wait()
	}
	k.release()
}

// workloadProcessor is the processor of one pipeline.
type workloadProcessor struct {
	*knowledge

	meters  *meters
	started bool
}

func (p *workloadProcessor) start(_ context.Context, host component.Host) error {
	if err := p.knowledge.start(host); err != nil {
		return err
	}
	p.started = true
	return p.meters.observe(p.fleet)
}

func (p *workloadProcessor) shutdown(context.Context) error {
	if !p.started { // the Collector also shuts down components that failed to start
		return nil
	}
	p.started = false
	p.knowledge.stop()
	return p.meters.close()
}

// pass is the work on one batch. Its buffers are reused for each item: a point that names
// nothing must not allocate.
type pass struct {
	*workloadProcessor

	tally tally
	base  names // named by the resource
	names names // named by the item
}

// tally counts items by outcome.
type tally [outcomeCount]int64

// item adds the owner of a point, a span or a log record. What the item names takes
// precedence over its resource; the resource's device counts only with inherit. It reports
// whether the item is about a device.
func (p *pass) item(attrs pcommon.Map, inherit bool) bool {
	n := &p.names
	p.lexicon.read(attrs, n)
	device := n.device()
	if !device && inherit && p.base.device() {
		host, pid, container := n[roleHost], n[rolePID], n[roleContainer]
		*n = p.base
		n[roleHost], n[rolePID], n[roleContainer] = host, pid, container
		device = true
	}
	if !device && !n.runner() || attributed(attrs) {
		return device
	}
	if n[roleHost] == "" {
		n[roleHost] = p.base[roleHost]
	}
	p.settle(attrs, n)
	return device
}

// resource adds the owner to a resource: that of the sending process or container, and that
// of its device only with devices, because the series of a device must not end when its owner
// changes.
func (p *pass) resource(attrs pcommon.Map, devices bool) {
	n := &p.names
	*n = p.base
	if !devices {
		*n = names{roleHost: n[roleHost], rolePID: n[rolePID], roleContainer: n[roleContainer]}
	}
	if (n.runner() || n.device()) && !attributed(attrs) {
		p.settle(attrs, n)
	}
}

// settle adds the owner of n to attrs: of the process or container if known, which is more
// precise, otherwise of the device.
func (p *pass) settle(attrs pcommon.Map, n *names) {
	found := owner{outcome: unmatched}
	if n.runner() {
		found = p.registry.runner(n)
		// A pid that leads to another pod than the sender's belongs to another pid namespace.
		if found.outcome == matched && contradicts(attrs, found.tags) {
			found = owner{outcome: unmatched}
		}
	}
	if found.outcome != matched && n.device() {
		found = p.registry.device(n)
	}
	p.tally[found.outcome]++
	if found.outcome == matched {
		dress(attrs, found.tags)
	}
}
