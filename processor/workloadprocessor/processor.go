package workloadprocessor

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/ticks"
)

// knowledge is what the processors of one configuration share: what a gateway learns in a
// pipeline of metrics is for those of logs and traces.
type knowledge struct {
	cfg      *Config
	lexicon  *lexicon
	registry registry
	fleet    *fleet // of a gateway
	here     *here  // of a node
	release  func() // when nobody uses it any more

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

// start begins to learn with the first of its users.
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

// stop ends it with the last of them.
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

// workloadProcessor is in one pipeline.
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
	if !p.started { // the Collector stops those that failed to start, too
		return nil
	}
	p.started = false
	p.knowledge.stop()
	return p.meters.close()
}

// pass is the work on one batch. What it has is used again for each item: a point that
// names nothing must cost nothing.
type pass struct {
	*workloadProcessor

	tally tally
	base  names // of the resource
	names names // of the item
}

// tally counts items by what became of them.
type tally [outcomeCount]int64

// item says whose a point, a span or a log record is. What it names itself goes before
// what its resource does; the device of the resource counts with inherit only. It returns
// whether it is about a device.
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

// resource says whose everything below a resource is. It is the process or container
// that sends it, and its device with devices only: the series of a device must not end
// because its owner changes.
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

// settle adds to attrs whose n is: of the process or container if it is known, which is
// more exact, else of the device.
func (p *pass) settle(attrs pcommon.Map, n *names) {
	found := owner{outcome: unmatched}
	if n.runner() {
		found = p.registry.runner(n)
		// A number that leads to another pod than the sender says is in is another number.
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
