package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

const (
	maxEvents = 1000 // per tick; further events are only counted
	maxCodes  = 128  // distinct XIDs counted per device
	xidOther  = 999  // code for all further XIDs, NVML's "unknown"
)

// XIDCount is how often a device reported one XID.
type XIDCount struct {
	Code  int       `json:"code"`
	Count uint64    `json:"count"`
	Since time.Time `json:"since"` // just before the first one, when the count was 0
}

// inbox holds what readers reported since the last tick. It has its own lock: a reader must
// not wait for a tick, which may wait for the reader's devices.
type inbox struct {
	mu sync.Mutex
	batch
	heard  map[string]device.Position // latest position, by source
	origin map[string]string          // by source
}

// batch is what a tick takes from the inbox.
type batch struct {
	events []device.Event
	xids   map[xidKey]xidNews
	missed uint64 // events that are only counted in xids, and events that could not be read
	news   []Notice
}

type xidKey struct {
	device, pci string
	code        int
}

type xidNews struct {
	count uint64
	first time.Time
}

func newInbox() *inbox {
	return &inbox{heard: map[string]device.Position{}, origin: map[string]string{}}
}

// put adds an event of a source.
func (b *inbox) put(source string, e device.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Position != (device.Position{}) {
		b.heard[source] = e.Position
	}
	if e.Origin != "" && e.Origin != b.origin[source] {
		b.origin[source] = e.Origin
		b.news = append(b.news, Notice{Kind: EventsFrom, Source: source, Text: e.Origin})
	}
	b.missed += e.Missed
	if e.Name == "" {
		return
	}
	if e.Name == device.EventXID {
		if b.xids == nil {
			b.xids = map[xidKey]xidNews{}
		}
		k := xidKey{e.Device, e.PCI, e.Code}
		x := b.xids[k]
		if x.count++; x.first.IsZero() || e.Time.Before(x.first) {
			x.first = e.Time
		}
		b.xids[k] = x
	}
	if len(b.events) == maxEvents {
		b.missed++
		return
	}
	b.events = append(b.events, e)
}

// take empties the inbox and returns how far its sources have read.
func (b *inbox) take() (batch, map[string]device.Position) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.batch
	b.batch = batch{}
	return m, maps.Clone(b.heard)
}

func (b *inbox) position(source string) (device.Position, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.heard[source]
	return p, ok
}

// listener is a running call of a reader's Events.
type listener struct {
	cancel context.CancelFunc
	done   chan error // buffered: the goroutine never blocks on it
}

// listen starts reading the events of s, unless that is already running or s has none.
func (v *View) listen(s *source) {
	r, ok := s.reader.(device.EventReader)
	if !ok || s.listener != nil {
		return
	}
	if l, ok := r.(device.Resumer); ok {
		// Without a state file, an earlier run may already have reported past events.
		if p, ok := v.inbox.position(s.Name); ok || v.store != nil {
			l.Resume(p)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &listener{cancel: cancel, done: make(chan error, 1)}
	s.listener = e
	go func() {
		var err error
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("%w: %v", errPanicked, p)
			}
			e.done <- err
		}()
		err = r.Events(ctx, func(ev device.Event) { v.inbox.put(s.Name, ev) })
	}()
}

var errEnded = errors.New("the reader stopped reporting events")

// checkListener notifies about a call of Events that returned by itself. The next discovery
// restarts it.
func (v *View) checkListener(s *source) {
	if s.listener == nil {
		return
	}
	var err error
	select {
	case err = <-s.listener.done:
	default:
		return
	}
	s.listener.cancel()
	s.listener = nil
	if err == nil {
		err = errEnded
	}
	if err.Error() != s.eventsProblem {
		s.eventsProblem = err.Error()
		v.cfg.Notify(Notice{Kind: EventsFailed, Source: s.Name, Err: err})
	}
}

// stopListening stops the Events call of s.
func (s *source) stopListening(ctx context.Context) error {
	if s.listener == nil {
		return nil
	}
	s.listener.cancel()
	select {
	case <-s.listener.done:
		s.listener = nil
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: a call that waits for events has not returned", s.Name)
	}
}

// collect moves what was reported since the last tick into t, and counts it. From here on
// it is part of the state: an event is either counted and never read again, or neither.
func (v *View) collect(t *Tick) {
	m, positions := v.inbox.take()
	for _, n := range m.news {
		v.cfg.Notify(n)
	}
	v.state.Cursors = positions
	for _, k := range slices.SortedFunc(maps.Keys(m.xids), func(a, b xidKey) int {
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.pci, b.pci), cmp.Compare(a.code, b.code))
	}) {
		id, n := v.identify(k.device, k.pci), m.xids[k]
		if n.first.IsZero() || n.first.After(t.Time) {
			n.first = t.Time
		}
		v.state.record(cmp.Or(id.Physical(), k.pci), t.Time).count(k.code, n.count, n.first.Add(-time.Millisecond))
	}
	for i := range m.events {
		if id := v.identify(m.events[i].Device, m.events[i].PCI); id.UUID != "" {
			m.events[i].Device = id.UUID
		}
	}
	v.missed += m.missed
	t.Events = append(m.events, t.Events...)
	t.LostEvents = v.missed
	for i, u := range v.units {
		if u.id.Parent != "" {
			continue
		}
		v.state.adopt(u.id)
		if a := v.state.Devices[u.id.UUID]; a != nil && i < len(t.Readings) {
			t.Readings[i].XIDs = slices.Clone(a.XIDs)
		}
	}
}

// identify returns the device that an event belongs to, with only the UUID set if it is
// unknown.
func (v *View) identify(uuid, pci string) device.ID {
	for _, u := range v.units {
		if uuid != "" && u.id.UUID == uuid || uuid == "" && pci != "" && u.id.PCI == pci && u.id.Parent == "" {
			return u.id
		}
	}
	return device.ID{UUID: uuid}
}

// eventOf converts a change of state to an event, if it should be exported.
func eventOf(n Notice, now time.Time) (device.Event, bool) {
	e := device.Event{Time: now, Device: n.Device.UUID, PCI: n.Device.PCI}
	switch n.Kind {
	case DeviceDown:
		e.Name, e.Message = device.EventLost, n.Err.Error()
	case DeviceUp:
		e.Name = device.EventReturned
	default:
		return device.Event{}, false
	}
	return e, true
}
