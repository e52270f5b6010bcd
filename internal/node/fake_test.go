package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// machine is a vendor's fake hardware and driver that tests can break.
type machine struct {
	mu       sync.Mutex
	devices  []*gpu
	openErr  error
	listErr  error
	opens    int
	closes   int
	lists    int
	listGate chan struct{} // closed: a discovery may return; nil: it returns at once
}

func (m *machine) open(context.Context) (device.Reader, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.openErr != nil {
		return nil, m.openErr
	}
	m.opens++
	return m, nil
}

func (m *machine) Devices(context.Context) ([]device.Device, error) {
	m.mu.Lock()
	gate := m.listGate
	m.lists++
	m.mu.Unlock()
	if gate != nil {
		<-gate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []device.Device
	for _, g := range m.devices {
		list = append(list, g)
	}
	return list, m.listErr
}

func (m *machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closes++
	return nil
}

// listed returns the number of discoveries so far.
func (m *machine) listed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lists
}

func (m *machine) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// gpu is one device of a machine.
type gpu struct {
	id device.ID

	mu       sync.Mutex
	hang     chan struct{} // closed: the call returns; nil: it returns at once
	slowHang chan struct{} // the same for slow reads
	err      error
	slowErr  error // returned by slow reads only
	lazy     bool  // fast reads return the energy counter of the last slow read, as drivers do
	counted  device.Value
	s        device.Sample
	tiers    []device.Tier // of every Read
}

func newGPU(i int) *gpu {
	id := device.ID{Vendor: "test", UUID: string(rune('A' + i)), Index: i, Model: "T1"}
	return &gpu{id: id, s: device.Sample{ID: id, Energy: device.Of(100)}}
}

func (g *gpu) ID() device.ID { return g.id }
func (g *gpu) Busy() string  { return "testRead" }

func (g *gpu) Read(_ context.Context, tier device.Tier) (device.Sample, error) {
	g.mu.Lock()
	hang := g.hang
	if tier == device.Slow && g.slowHang != nil {
		hang = g.slowHang
	}
	g.tiers = append(g.tiers, tier)
	g.mu.Unlock()
	if hang != nil {
		<-hang // a driver ignores deadlines
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if errors.Is(g.err, errPanic) {
		panic("index out of range")
	}
	if tier >= device.Slow && g.err == nil {
		g.counted = g.s.Energy
		return g.s, g.slowErr
	}
	s := g.s
	if g.lazy {
		s.Energy = g.counted
	}
	return s, g.err
}

var errPanic = errors.New("panic")

// asked returns the tiers of every Read so far.
func (g *gpu) asked() []device.Tier {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.tiers)
}

func (g *gpu) set(f func(*gpu)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g)
}

// rig is a View of n GPUs in a synctest bubble.
type rig struct {
	*View
	m       *machine
	notices []string
}

func newRig(n int) *rig {
	r := &rig{m: &machine{}}
	for i := range n {
		r.m.devices = append(r.m.devices, newGPU(i))
	}
	r.View = New(Config{
		Sources:  []Source{{Name: "test", Open: r.m.open}},
		Interval: time.Second, SlowInterval: 3 * time.Second,
		Notify: func(n Notice) {
			s := n.String()
			if n.Err != nil {
				s += ": " + n.Err.Error()
			}
			r.notices = append(r.notices, s)
		},
	})
	return r
}

// tick ticks now, and then lets the rest of the second pass.
func (r *rig) tick(t *testing.T) Tick {
	start := time.Now()
	tick := r.Tick(t.Context(), start)
	time.Sleep(time.Until(start.Add(time.Second)))
	return tick
}

// up returns which GPUs are up in a tick.
func up(t Tick) []int {
	list := []int{}
	for _, r := range t.Readings {
		if r.Up {
			list = append(list, r.ID.Index)
		}
	}
	slices.Sort(list)
	return list
}

func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
