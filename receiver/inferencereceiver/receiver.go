package inferencereceiver

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// owners knows the workloads of processes: the gpu extension.
type owners interface {
	Process(pid uint32) (workload.Workload, bool)
}

// inferenceReceiver reads the pages of engines, those that are listed and those that are found.
type inferenceReceiver struct {
	cfg  *Config
	set  receiver.Settings
	next consumer.Metrics
	open func(*inferenceReceiver) // sets find

	owners owners // nil: unknown
	find   finder // nil: only what is listed
	replay bool   // a tick waits for the readings of the one before
	slots  inference.Slots

	lookup    lookup
	resolved  time.Time  // the tick that looked up the names of listed targets
	resolving sync.Mutex // held by whoever does

	began   time.Time
	ticked  time.Time          // the last tick
	targets map[string]*target // by key
	trouble map[string]bool    // reasons why engines may be missing, as last logged
	listed  []*target
	engines atomic.Pointer[[]*target] // listed and found, for routing
	routing *routing                  // nil: not served
	cancel  context.CancelFunc
	running sync.WaitGroup // what follows the clock
	reading sync.WaitGroup
}

// Start implements component.Component. Without the gpu extension there is no discovery.
func (r *inferenceReceiver) Start(_ context.Context, host component.Host) error {
	view, err := ticks.Find(host)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	for i := range r.cfg.Targets {
		t, err := r.list(ctx, &r.cfg.Targets[i])
		if err != nil {
			cancel()
			return err
		}
		r.listed = append(r.listed, t)
	}
	r.engines.Store(&r.listed)
	if err := r.startRouting(ctx, host); err != nil {
		cancel()
		return err
	}
	r.cancel = cancel
	if view == nil {
		r.running.Go(func() { r.follow(ctx, clock(ctx, r.pace())) })
		return nil
	}
	r.owners, _ = view.(owners)
	r.open(r)
	subscription, unsubscribe := view.Subscribe()
	r.cancel = func() {
		cancel()
		unsubscribe()
	}
	r.running.Go(func() { r.follow(ctx, subscription) })
	return nil
}

// Shutdown implements component.Component.
func (r *inferenceReceiver) Shutdown(ctx context.Context) error {
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	var err error
	if r.routing != nil {
		err = r.routing.shutdown(ctx)
	}
	r.running.Wait()
	r.reading.Wait()
	if r.find != nil {
		r.find.Close()
	}
	for _, t := range slices.Concat(r.listed, values(r.targets)) {
		t.Client.CloseIdleConnections()
	}
	return err
}

func (r *inferenceReceiver) owner(pid uint32) (workload.Workload, bool) {
	if r.owners == nil {
		return workload.Workload{}, false
	}
	return r.owners.Process(pid)
}

// pace is the shortest interval of a listed target.
func (r *inferenceReceiver) pace() time.Duration {
	pace := r.cfg.Interval
	for i := range r.cfg.Targets {
		pace = min(pace, r.cfg.interval(&r.cfg.Targets[i]))
	}
	return pace
}

// clock returns ticks of a machine of which nothing is known.
func clock(ctx context.Context, every time.Duration) <-chan node.Tick {
	out := make(chan node.Tick)
	go func() {
		defer close(out)
		c := time.NewTicker(every)
		defer c.Stop()
		for now := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case out <- node.Tick{Time: now}:
			}
			select {
			case <-ctx.Done():
				return
			case now = <-c.C:
			}
		}
	}()
	return out
}

func (r *inferenceReceiver) follow(ctx context.Context, list <-chan node.Tick) {
	for t := range list {
		if r.began.IsZero() {
			r.began = t.Time
			r.resolved = t.Time
			if r.find != nil {
				r.resolve(ctx) // an engine must not be read twice until its name is known
			}
		}
		r.renew(ctx, t.Time)
		r.tick(ctx, &t)
		if r.replay {
			r.reading.Wait()
		}
	}
}

// tick begins to read what is due. It does not wait: an engine that does not answer costs only itself.
func (r *inferenceReceiver) tick(ctx context.Context, t *node.Tick) {
	var found []discover.Engine
	if r.find != nil && (r.replay || !t.Simulated) { // a simulated process has the pid of a real one
		found = r.find.Find(ctx, t)
		r.explain()
	}
	there, before, now := map[string]bool{}, map[*http.Client]*target{}, map[*http.Client]bool{}
	for _, old := range r.targets {
		before[old.Client] = old
	}
	for i := range found {
		now[found[i].Target.Client] = true
	}
	due := slices.Clone(r.listed)
	for i := range found {
		e := &found[i]
		if l := r.listing(e); l != nil {
			l.join(e) // who listed it knows better how to reach it
			continue
		}
		known := r.targets[e.ID]
		if known == nil || known.Client != e.Target.Client { // a new process may have the place of an old one
			old := known
			known = r.found(e)
			known.before, known.origin = old, before[e.Target.Client] // not nil if its owner is known now
			if known.origin == nil && old != nil && !now[old.Client] {
				known.origin = old
			}
			r.targets[e.ID] = known
		}
		known.join(e)
		there[e.ID] = true
		due = append(due, known)
	}
	for id, old := range r.targets {
		if there[id] {
			continue
		}
		delete(r.targets, id)
		r.reading.Go(func() { old.end(ctx, t) })
	}
	r.engines.Store(&due)
	slack := r.slack(t.Time)
	for _, target := range due {
		if target.due(t.Time, slack) {
			r.reading.Go(func() { target.round(ctx, t) })
		}
	}
}

// slack is how much too early a tick may be for a reading: half the time between ticks.
func (r *inferenceReceiver) slack(now time.Time) time.Duration {
	gap := now.Sub(r.ticked)
	if r.ticked.IsZero() || gap < 0 {
		gap = 0
	}
	r.ticked = now
	return gap / 2
}

// explain logs why engines may be missing, once per reason.
func (r *inferenceReceiver) explain() {
	f, ok := r.find.(interface{ Status() discover.Status })
	if !ok {
		return
	}
	s := f.Status()
	now := map[string]bool{}
	say := func(reason string, n int) {
		if now[reason] = true; !r.trouble[reason] {
			r.set.Logger.Info("Some inference engines may not be found", zap.String("reason", reason), zap.Int("count", n))
		}
	}
	if s.Err != nil {
		say(s.Err.Error(), 1)
	}
	if s.Unreadable > 0 {
		say("files of processes cannot be read, which needs the same user or CAP_SYS_PTRACE", s.Unreadable)
	}
	for _, u := range s.Unreachable {
		say(u.Reason, u.Sockets)
	}
	r.trouble = now
}

// list returns the target for an entry of the configuration.
func (r *inferenceReceiver) list(ctx context.Context, cfg *TargetConfig) (*target, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil // an engine is a neighbor
	transport.MaxResponseHeaderBytes = 64 << 10
	if u.Scheme == "https" {
		if transport.TLSClientConfig, err = cfg.TLS.LoadTLSConfig(ctx); err != nil {
			return nil, fmt.Errorf("cannot read the certificates for %s: %w", cfg.URL, err)
		}
	}
	headers := map[string]string{}
	for name, value := range cfg.Headers {
		headers[name] = string(value)
	}
	t := r.target(cfg.URL, inference.Target{URL: u, Client: inference.NewClient(transport, r.cfg.timeout(cfg)), Header: headers})
	t.interval, t.timeout = r.cfg.interval(cfg), r.cfg.timeout(cfg)
	t.unknown.Store(true)
	return t, nil
}

// found returns the target for an engine of this machine.
func (r *inferenceReceiver) found(e *discover.Engine) *target {
	t := r.target(e.ID, e.Target)
	t.log.Info("Found an inference engine", zap.Int("devices", len(e.Devices)))
	return t
}

func (r *inferenceReceiver) target(id string, at inference.Target) *target {
	t := &target{
		Target: at, interval: r.cfg.Interval, timeout: r.cfg.Timeout, tenants: r.cfg.TenantLabels, next: r.next, slots: r.slots,
		log: r.set.Logger.With(zap.String("engine", id), zap.String("url", at.URL.String())), emitter: newEmitter(id, at.URL, r.set.BuildInfo.Version),
	}
	t.emitter.growth.Watched = r.began
	return t
}

func values[K comparable, V any](m map[K]V) []V {
	out := make([]V, 0, len(m))
	for _, v := range m {
		out = append(out, v)
	}
	return out
}
