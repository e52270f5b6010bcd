// Package node owns the live state of one machine's accelerators. Its View ticks by
// one clock, asks every device in parallel, and hands each completed tick to whoever
// subscribed. A device that does not answer costs nobody but itself.
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

// Source opens one vendor's reader. It may be opened again after Close: a pause closes
// it, and a driver may be installed while we run.
type Source struct {
	Name string
	Open func(context.Context) (device.Reader, error)
}

// Config configures a View.
type Config struct {
	Sources      []Source
	Interval     time.Duration // between ticks
	SlowInterval time.Duration // between reads of slow values
	Rediscover   time.Duration // between discoveries; 0 is a minute
	// ProcessName names the process with the given pid, empty if it cannot. Nil: no names.
	ProcessName func(pid uint32) string
	// Expected is the number of physical devices there should be; 0 if unknown.
	Expected int
	// StateDir is the folder of what outlives the process; empty: nothing does.
	StateDir string
	BootID   string // of the kernel: a state of another boot is not gone on with
	// Owners says who holds the devices and whose the processes are. Nil: nobody knows,
	// and nothing is said of workloads.
	Owners Owners
	// Ask, if not nil, is called a moment before each tick: it makes Owners learn what is
	// new. It must not wait.
	Ask func()
	// Learn is what Owners learns by, until its context ends. Nil: it needs nothing.
	Learn func(context.Context)
	// Notify is told of each change of state, in order, and must not block.
	Notify func(Notice)

	Host      string // name of this machine
	Simulated bool   // the sources are not real hardware
	// Resource returns more attributes of this machine, called at each tick because some
	// come late. Nobody changes the map. Nil: none.
	Resource func() map[string]string
}

// Owners knows the workloads of this machine, as workload.Resolver does. It answers from
// memory, at once.
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

// askBefore is how long before a tick Owners is told to learn what is new, so that a tick
// shows who had the devices just before it. A kubelet answers in some 10 ms.
const askBefore = 100 * time.Millisecond

// maxWait is the longest a tick waits for a device, and a first tick for discovery.
const maxWait = 5 * time.Second

// View reads the devices of this machine. Its methods may be called concurrently.
type View struct {
	cfg Config

	mu          sync.Mutex // held by Tick and Pause, never while waiting for a subscriber
	sources     []*source
	units       []*unit // every device and partition known, in order
	started     time.Time
	lastSlow    time.Time
	pausedUntil time.Time
	last        Tick
	state       *state // nil before the first tick
	health      health.Monitor
	absences    []Notice          // that discover has not told yet
	unsaved     bool              // there is news that is not in the file: one was being written
	store       *store            // nil: the state is not kept
	missed      uint64            // events
	question    workload.Question // of the last tick
	owners      owners            // of the last tick
	attribution []workload.Status // of the last tick

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

// Learn finds out who holds the devices until ctx ends. Run does so by itself.
func (v *View) Learn(ctx context.Context) {
	if v.cfg.Learn != nil {
		v.cfg.Learn(ctx)
	}
}

// Process returns the workload of a process of this machine, on a device or not.
func (v *View) Process(pid uint32) (workload.Workload, bool) {
	if v.cfg.Owners == nil {
		return workload.Workload{}, false
	}
	return v.cfg.Owners.Process(pid)
}

// Container returns the workload of a container of this machine.
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

// Subscribe returns a channel of completed ticks, see Fanout.
func (v *View) Subscribe() (ticks <-chan Tick, cancel func()) { return v.ticks.Subscribe() }

// Tick reads every device once and returns when each has answered or missed its
// deadline. Run calls it; commands that read once and tests call it themselves. If ctx
// ends meanwhile the tick is dropped, and Tick returns the one before.
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

// tell passes on what became of the devices.
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
		v.attend(s)
	}
}

func (v *View) resume() {
	if !v.pausedUntil.IsZero() {
		v.pausedUntil = time.Time{}
		v.cfg.Notify(Notice{Kind: Resumed})
	}
}

// tier returns what is due at now.
func (v *View) tier(now time.Time) device.Tier {
	// Half an interval early is on time: ticks come at their own pace.
	if !v.lastSlow.IsZero() && now.Sub(v.lastSlow) < v.cfg.SlowInterval-v.cfg.Interval/2 && !v.regranted() {
		return device.Fast
	}
	v.lastSlow = now
	return device.Slow
}

// read asks every device that is not still busy with an earlier question.
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

// name returns the list with the names its reader does not know.
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

// Pause closes every reader, so that no device file is open, and resumes by itself
// after d; d of 0 resumes now. A driver call that hangs makes it impossible: the error
// names it.
func (v *View) Pause(ctx context.Context, now time.Time, d time.Duration) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d <= 0 {
		if !v.pausedUntil.IsZero() {
			v.pausedUntil = now // the next tick resumes
		}
		return nil
	}
	// The clock stands still meanwhile, and what is in progress now has missed a tick.
	ctx, cancel := context.WithTimeout(ctx, max(v.cfg.Interval, time.Second)/2)
	defer cancel()
	if err := v.release(ctx); err != nil {
		return err
	}
	v.pausedUntil = now.Add(d)
	v.cfg.Notify(Notice{Kind: Paused, For: d})
	return nil
}

// Close releases the drivers and writes the state. Events that no tick had are left for
// the next run to read.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	return errors.Join(v.release(ctx), v.finish(time.Now()))
}

// release closes every reader once nothing is in progress on it. If one cannot be
// closed, none is: half a release helps nobody.
func (v *View) release(ctx context.Context) error {
	var errs []error
	for _, s := range v.sources {
		if err := s.hush(ctx); err != nil {
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
	// A partition is gone with its reader; a GPU stays known, and missing until seen.
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
