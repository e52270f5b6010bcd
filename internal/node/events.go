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
	maxEvents = 1000 // of one tick; the others are counted
	maxCodes  = 128  // XIDs told apart on one device
	xidOther  = 999  // what the others are counted as, which is the driver's "unknown"
)

// XIDCount is how often an error was reported of a device.
type XIDCount struct {
	Code  int       `json:"code"`
	Count uint64    `json:"count"`
	Since time.Time `json:"since"` // when counting began
}

// inbox has what readers heard since the last tick. It has a lock of its own: a reader
// must not wait for a tick, which may wait for the reader's devices.
type inbox struct {
	mu sync.Mutex
	mail
	heard  map[string]device.Position // by source, the latest
	origin map[string]string          // by source
}

// mail is what a tick takes out of the inbox.
type mail struct {
	events []device.Event
	xids   map[xidKey]xidNews
	missed uint64 // events that are in xids only, and those nobody could read
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

// put takes an event of a source in.
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

// take empties the inbox and returns up to where its sources have read.
func (b *inbox) take() (mail, map[string]device.Position) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.mail
	b.mail = mail{}
	return m, maps.Clone(b.heard)
}

func (b *inbox) position(source string) (device.Position, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.heard[source]
	return p, ok
}

// ear is a reader's Events in progress.
type ear struct {
	cancel context.CancelFunc
	done   chan error // has room for one
}

// listen hears the events of s, unless it does already or s has none.
func (v *View) listen(s *source) {
	r, ok := s.reader.(device.EventReader)
	if !ok || s.ear != nil {
		return
	}
	if l, ok := r.(device.Resumer); ok {
		// Without a state what happened before us may have been told by another run.
		if p, ok := v.inbox.position(s.Name); ok || v.store != nil {
			l.Resume(p)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &ear{cancel: cancel, done: make(chan error, 1)}
	s.ear = e
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

var errEnded = errors.New("the reader tells of no more events")

// attend tells of Events that ended by themselves. The next discovery begins anew.
func (v *View) attend(s *source) {
	if s.ear == nil {
		return
	}
	var err error
	select {
	case err = <-s.ear.done:
	default:
		return
	}
	s.ear.cancel()
	s.ear = nil
	if err == nil {
		err = errEnded
	}
	if err.Error() != s.deaf {
		s.deaf = err.Error()
		v.cfg.Notify(Notice{Kind: EventsFailed, Source: s.Name, Err: err})
	}
}

// hush ends the Events of s.
func (s *source) hush(ctx context.Context) error {
	if s.ear == nil {
		return nil
	}
	s.ear.cancel()
	select {
	case <-s.ear.done:
		s.ear = nil
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: a call that waits for events has not returned", s.Name)
	}
}

// collect puts what was heard since the last tick into t, and counts it. From here on it
// is part of the state: an event is counted, and never read again, or neither.
func (v *View) collect(t *Tick) {
	m, positions := v.inbox.take()
	for _, n := range m.news {
		v.cfg.Notify(n)
	}
	v.state.Cursors = positions
	for _, k := range slices.SortedFunc(maps.Keys(m.xids), func(a, b xidKey) int {
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.pci, b.pci), cmp.Compare(a.code, b.code))
	}) {
		id := v.identify(k.device, k.pci)
		v.state.account(cmp.Or(id.Physical(), k.pci), t.Time).count(k.code, m.xids[k], v.state.Since)
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

// identify returns the device an event is of, zero if it is not known.
func (v *View) identify(uuid, pci string) device.ID {
	for _, u := range v.units {
		if uuid != "" && u.id.UUID == uuid || uuid == "" && pci != "" && u.id.PCI == pci && u.id.Parent == "" {
			return u.id
		}
	}
	return device.ID{UUID: uuid}
}

// eventOf returns a change of state as an event, if it is one for people far away.
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
