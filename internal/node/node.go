// Package node owns the live state of one machine's accelerators. Its View reads every
// device concurrently on one clock, determines which workload holds which share of a device
// and what is wrong with it, and publishes each completed tick to its subscribers. A device
// that does not answer delays and affects no other.
//
// With a state directory, counts and ledgers survive a restart within one boot of the
// machine. The package needs no privilege itself; its sources do. It knows neither vendors
// nor metric names.
package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Source opens one vendor's reader. It may be opened again after Close: a pause closes it,
// and a driver may be installed while the agent runs.
type Source struct {
	Name string
	Open func(context.Context) (device.Reader, error)
}

// Config configures a View.
type Config struct {
	Sources      []Source
	Interval     time.Duration // between ticks
	SlowInterval time.Duration // between reads of slow values
	Rediscover   time.Duration // between discoveries; 0 means a minute
	// ProcessName returns the name of a process, or "" if it is unknown. Nil means no
	// names.
	ProcessName func(pid uint32) string
	// Expected is the number of physical devices that there should be; 0 means unspecified.
	Expected int
	// StateDir is the directory for persistent state; empty means that none is kept.
	StateDir string
	BootID   string // boot identifier of the kernel: state of another boot is discarded
	// Owners determines which workloads hold the devices and own the processes. Nil
	// disables attribution.
	Owners Owners
	// Ask, if not nil, is called shortly before each tick to make Owners refresh. It must
	// not block.
	Ask func()
	// Learn runs the background work of Owners until its context ends. Nil means there is
	// none.
	Learn func(context.Context)
	// Notify is called for each change of state, in order. It must not block.
	Notify func(Notice)

	Host      string // host name
	Simulated bool   // the sources are not real hardware
	// Resource returns additional attributes of this machine. It is called at each tick
	// because some become known late. The map is read-only. Nil means none.
	Resource func() map[string]string
}

// Owners knows the workloads of this machine; workload.Resolver implements it. It answers
// from memory and never blocks.
type Owners interface {
	Resolve(workload.Question) workload.Answer
	Process(pid uint32) (workload.Workload, bool)
	Container(id string) (workload.Workload, bool)
}

// Limits of Interval.
const (
	MinInterval = 100 * time.Millisecond
	MaxInterval = 5 * time.Minute
)

// askBefore is how long before a tick Owners is asked to refresh, so that a tick shows the
// holders just before it. A kubelet answers in some 10 ms.
const askBefore = 100 * time.Millisecond

// maxWait is the longest time that a tick waits for a device, and the first tick for
// discovery.
const maxWait = 5 * time.Second

// View reads the devices of this machine. Its methods are safe for concurrent use.
type View struct {
	cfg Config

	mu          sync.Mutex // held by Tick and Pause, never while waiting for a subscriber
	sources     []*source
	units       []*unit // every known device and partition, in order
	started     time.Time
	lastSlow    time.Time
	pausedUntil time.Time
	last        Tick
	state       *state // nil before the first tick
	health      health.Monitor
	absences    []Notice          // not yet reported by sayAbsent
	unsaved     bool              // changes not in the file yet, because a write was in progress
	store       *store            // nil: no state is kept
	missed      uint64            // number of lost events
	question    workload.Question // of the last tick
	owners      owners            // of the last tick
	attribution []workload.Status // of the last tick
	unknown     []string          // allocated devices that no reader knows, of the last tick

	inbox *inbox
	ticks Fanout
}

// New returns a View. Nothing is opened before the first Tick.
func New(cfg Config) *View {
	if cfg.Rediscover == 0 {
		cfg.Rediscover = time.Minute
	}
	if cfg.Notify == nil {
		cfg.Notify = func(Notice) {}
	}
	v := &View{cfg: cfg, inbox: newInbox()}
	v.health.Expected = cfg.Expected
	for _, s := range cfg.Sources {
		v.sources = append(v.sources, newSource(s))
	}
	return v
}

// Learn runs the background work of Owners until ctx ends. Run does so by itself.
func (v *View) Learn(ctx context.Context) {
	if v.cfg.Learn != nil {
		v.cfg.Learn(ctx)
	}
}

// Process returns the workload of a process on this machine, whether or not it uses a
// device.
func (v *View) Process(pid uint32) (workload.Workload, bool) {
	if v.cfg.Owners == nil {
		return workload.Workload{}, false
	}
	return v.cfg.Owners.Process(pid)
}

// Container returns the workload of a container on this machine.
func (v *View) Container(id string) (workload.Workload, bool) {
	if v.cfg.Owners == nil {
		return workload.Workload{}, false
	}
	return v.cfg.Owners.Container(id)
}

// Run ticks until ctx ends, then releases the drivers.
func (v *View) Run(ctx context.Context) error {
	var learning sync.WaitGroup
	learning.Go(func() { v.Learn(ctx) })
	defer learning.Wait()
	clock := time.NewTicker(v.cfg.Interval)
	defer clock.Stop()
	ask := time.NewTimer(0)
	defer ask.Stop()
	for now := time.Now(); ; {
		v.Tick(ctx, now)
		ask.Reset(v.cfg.Interval - min(askBefore, v.cfg.Interval/2))
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return v.Close()
			case <-ask.C:
				if v.cfg.Ask != nil {
					v.cfg.Ask()
				}
			case now = <-clock.C:
				waiting = false
			}
		}
	}
}

// Subscribe returns a channel of completed ticks; see Fanout.Subscribe.
func (v *View) Subscribe() (ticks <-chan Tick, cancel func()) { return v.ticks.Subscribe() }

// Tick reads every device once and returns when each has answered or missed its deadline.
// Run calls it; one-shot commands and tests call it directly. If ctx ends meanwhile, the
// tick is discarded and Tick returns the previous one.
func (v *View) Tick(ctx context.Context, now time.Time) Tick {
	v.mu.Lock()
	if v.started.IsZero() {
		v.started = now
	}
	v.keep(now)
	t := Tick{Time: now, Host: v.cfg.Host, Simulated: v.cfg.Simulated, Started: v.started}
	if v.cfg.Resource != nil {
		t.Resource = v.cfg.Resource()
	}
	tier := device.Fast
	if now.Before(v.pausedUntil) {
		t.Paused = true
	} else {
		v.resume()
		v.discover(ctx, now)
		tier = v.tier(now)
		t.Readings = v.read(ctx, now, tier)
		for _, c := range cuts(t.Readings) {
			c.device.Busy = c.busy()
		}
	}
	if ctx.Err() != nil {
		defer v.mu.Unlock()
		return v.last
	}
	v.tell(&t)
	v.collect(&t)
	v.attribute(&t, tier)
	news := v.judge(&t)
	t.Sources = v.statuses()
	v.last = t
	if tier == device.Slow || news || v.unsaved {
		v.unsaved = !v.save(now)
	}
	v.mu.Unlock()
	v.ticks.Publish(t)
	return t
}

// tell reports the changes in the state of devices and event streams.
func (v *View) tell(t *Tick) {
	for _, u := range v.units {
		for _, n := range u.notices() {
			v.cfg.Notify(n)
			if e, ok := eventOf(n, t.Time); ok {
				t.Events = append(t.Events, e)
			}
		}
	}
	for _, s := range v.sources {
		v.checkListener(s)
	}
}

func (v *View) resume() {
	if !v.pausedUntil.IsZero() {
		v.pausedUntil = time.Time{}
		v.cfg.Notify(Notice{Kind: Resumed})
	}
}

// tier returns the tier that is due at now.
func (v *View) tier(now time.Time) device.Tier {
	// Up to half an interval early counts as on time, because ticks are not exact.
	if !v.lastSlow.IsZero() && now.Sub(v.lastSlow) < v.cfg.SlowInterval-v.cfg.Interval/2 && !v.regranted() {
		return device.Fast
	}
	v.lastSlow = now
	return device.Slow
}

// read reads every device that is not still busy with an earlier call.
func (v *View) read(ctx context.Context, now time.Time, tier device.Tier) []Reading {
	for _, u := range v.units {
		u.ask(ctx, tier)
	}
	ctx, cancel := context.WithTimeout(ctx, min(v.cfg.Interval, maxWait))
	defer cancel()
	readings := make([]Reading, 0, len(v.units))
	for _, u := range v.units {
		wasUp := u.down == nil
		r := u.await(ctx, now)
		if wasUp && errors.Is(u.down, device.ErrLost) {
			u.source.due = true
		}
		r.Processes = v.name(r.Processes)
		readings = append(readings, r)
	}
	return readings
}

// name fills in process names that the reader does not know.
func (v *View) name(list []device.Process) []device.Process {
	if v.cfg.ProcessName == nil || len(list) == 0 {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		if list[i].Name == "" {
			list[i].Name = v.cfg.ProcessName(list[i].PID)
		}
	}
	return list
}

// Pause closes every reader, so that no device file is open, and resumes by itself after d;
// d <= 0 resumes now. It fails if a driver call hangs, and the error names the call.
func (v *View) Pause(ctx context.Context, now time.Time, d time.Duration) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d <= 0 {
		if !v.pausedUntil.IsZero() {
			v.pausedUntil = now // the next tick resumes
		}
		return nil
	}
	// No tick runs meanwhile, and a call in progress now has already missed a tick.
	ctx, cancel := context.WithTimeout(ctx, max(v.cfg.Interval, time.Second)/2)
	defer cancel()
	if err := v.release(ctx); err != nil {
		return err
	}
	v.pausedUntil = now.Add(d)
	v.cfg.Notify(Notice{Kind: Paused, For: d})
	return nil
}

// Close releases the drivers and writes the state. Events that are not part of a tick yet
// are left for the next run.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	return errors.Join(v.release(ctx), v.finish(time.Now()))
}

// release closes every reader once no call is in progress. If one reader cannot be closed,
// none is, because a partial release is useless.
func (v *View) release(ctx context.Context) error {
	var errs []error
	for _, s := range v.sources {
		if err := s.stopListening(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	for _, u := range v.units {
		if err := u.settle(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	for _, s := range v.sources {
		if err := s.settle(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		for _, s := range v.sources {
			v.listen(s)
		}
		return errors.Join(errs...)
	}
	for _, s := range v.sources {
		errs = append(errs, s.close())
	}
	// Partitions are dropped with their reader; GPUs stay known and are missing until
	// rediscovered.
	v.units = slices.DeleteFunc(v.units, func(u *unit) bool { return u.id.Parent != "" })
	for _, u := range v.units {
		u.dev = nil
	}
	return errors.Join(errs...)
}

func (v *View) statuses() []SourceStatus {
	list := make([]SourceStatus, len(v.sources))
	for i, s := range v.sources {
		list[i] = s.status()
	}
	return list
}
