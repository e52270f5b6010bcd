//go:build linux

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/kmsg"
)

// Resume implements device.Resumer.
func (r *Reader) Resume(p device.Position) { r.resume = &p }

// Events implements device.EventReader. XIDs come from the kernel log where it is
// readable, because it has the process and what happened before we came; else from the
// library's event set. Never from both: each has every XID.
func (r *Reader) Events(ctx context.Context, emit func(device.Event)) error {
	from := kmsg.End()
	if r.resume != nil {
		from = kmsg.Start()
	}
	log, err := kmsg.Open(filepath.Join(r.opts.Root, "dev/kmsg"), from)
	if err == nil {
		emit(device.Event{Origin: "the kernel log"})
		err = r.followLog(ctx, log, emit)
		_ = log.Close() // it was only read
		if err == nil {
			return nil // ctx ended
		}
	}
	emit(device.Event{Origin: fmt.Sprintf("the driver's event set, without process names (%v)", err)})
	return r.followSet(ctx, emit)
}

// followLog emits the XIDs of the kernel log. The records up to where an earlier Events
// came are read too: a line may belong together with one of them.
func (r *Reader) followLog(ctx context.Context, log *kmsg.Reader, emit func(device.Event)) error {
	var known device.Position
	if r.resume != nil {
		known = *r.resume
	}
	boot := r.bootTime()
	seen := pairs{}
	first := true
	return log.Follow(ctx, func(rec kmsg.Record) {
		if first && known.Record > 0 && rec.Seq > known.Record+1 {
			rec.Lost += rec.Seq - known.Record - 1
		}
		first = false
		e, gi, ok := device.Event{}, -1, false
		if rec.Kernel() {
			e, gi, ok = parseXIDLine(rec.Text)
		}
		if ok && e.Code == xidOffBus && seen.second(e.PCI, rec.Time, !offBus.MatchString(rec.Text)) {
			ok = false
		}
		if !ok && rec.Kernel() {
			e, ok = parseSXID(rec.Text)
		}
		at := boot.Add(rec.Time)
		if rec.Seq <= known.Record && known.Record > 0 || !at.After(known.Time) {
			return
		}
		if !ok {
			e = device.Event{} // how far we are is all there is to say
		} else {
			e.Time = at
			if e.Name == device.EventXID {
				e.Device = r.deviceAt(e.PCI, gi)
			}
		}
		e.Missed, e.Position = rec.Lost, device.Position{Record: rec.Seq}
		emit(e)
	})
}

// bootTime returns the wall time at which the kernel's log began to count.
func (r *Reader) bootTime() time.Time {
	text, err := os.ReadFile(filepath.Join(r.opts.Root, "proc/uptime"))
	if err != nil {
		return r.opts.Now()
	}
	up, err := kmsg.ParseUptime(string(text))
	if err != nil {
		return r.opts.Now()
	}
	return r.opts.Now().Add(-up)
}

// deviceAt returns the UUID of the GPU at a PCI address, or of its only MIG device on
// the GPU instance gi. Empty: it is not known, or the driver is being initialised.
func (r *Reader) deviceAt(pci string, gi int) string {
	if !r.mu.TryRLock() {
		return ""
	}
	defer r.mu.RUnlock()
	whole, part, parts := "", "", 0
	for uuid, g := range r.gpus {
		switch {
		case g.id.PCI != pci:
		case g.id.Parent == "":
			whole = uuid
		case gi >= 0 && g.gi == uint32(gi):
			part = uuid
			parts++
		}
	}
	if parts == 1 {
		return part
	}
	return whole
}

// eventSet is the library's queue of events, in one session of it.
type eventSet struct {
	handle     uintptr // 0: none
	registered map[uintptr]bool
}

const (
	xidCritical = 0x8
	noInstance  = ^uint32(0) // the event is not of a MIG instance
	// The library queues events while nobody waits. Waiting is short because closing
	// the library waits for it.
	eventPoll    = 500 * time.Millisecond
	eventWait    = 10 // ms
	eventsAtOnce = 1000
)

// followSet emits the XIDs of the library's event set.
func (r *Reader) followSet(ctx context.Context, emit func(device.Event)) error {
	var at device.Position
	if r.resume != nil {
		at = *r.resume
	}
	clock := time.NewTicker(eventPoll)
	defer clock.Stop()
	for {
		events, heard, err := r.pollSet()
		for _, e := range events {
			emit(e)
		}
		if err != nil {
			return fmt.Errorf("cannot hear of XIDs: %w", err)
		}
		if heard {
			at.Time = r.opts.Now()
			emit(device.Event{Position: at})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-clock.C:
		}
	}
}

// pollSet returns what is in the event set, and whether there is one: while the library
// is being re-initialised there is none.
func (r *Reader) pollSet() (events []device.Event, heard bool, err error) {
	if !r.mu.TryRLock() {
		return nil, false, nil
	}
	defer r.mu.RUnlock()
	if !r.open {
		return nil, false, nil
	}
	if err := r.register(); err != nil {
		return nil, false, err
	}
	for range eventsAtOnce {
		c := newCaller(r.lib, 0)
		var data eventData
		switch code := c.try("nvmlEventSetWait_v2", r.events.handle, uintptr(unsafe.Pointer(&data)), eventWait); {
		case code == errTimeout:
			return events, true, nil
		case errors.Is(code, device.ErrLost) || errors.Is(code, device.ErrNeedsReset):
			return events, false, nil // reading the GPUs tells which one, and mends it
		case code != success:
			return events, false, fmt.Errorf("nvmlEventSetWait_v2: %w", code)
		}
		if data.eventType&xidCritical != 0 {
			events = append(events, r.xidOf(&data))
		}
	}
	return events, true, nil
}

// register makes the event set, if there is none, and adds the GPUs found since.
func (r *Reader) register() error {
	c := newCaller(r.lib, 0)
	if r.events.handle == 0 {
		var set uintptr
		if code := c.try("nvmlEventSetCreate", uintptr(unsafe.Pointer(&set))); code != success {
			return fmt.Errorf("nvmlEventSetCreate: %w", code)
		}
		r.events = eventSet{handle: set, registered: map[uintptr]bool{}}
	}
	for _, g := range r.gpus {
		if g.Handle == 0 || g.parent != 0 || r.events.registered[g.Handle] {
			continue
		}
		r.events.registered[g.Handle] = true // or it never will be, as it does not know events
		var types uint64
		c := newCaller(r.lib, 0)
		if c.Do("nvmlDeviceGetSupportedEventTypes", 0, g.Handle, uintptr(unsafe.Pointer(&types))) && types&xidCritical != 0 {
			c.Do("nvmlDeviceRegisterEvents", 0, g.Handle, xidCritical, r.events.handle)
		}
	}
	return nil
}

// xidOf returns the event the library told of. It runs with mu held for reading.
func (r *Reader) xidOf(data *eventData) device.Event {
	e := device.Event{Time: r.opts.Now(), Name: device.EventXID, Code: int(min(data.data, 1<<31-1))}
	for uuid, g := range r.gpus {
		if g.Handle == data.device {
			e.Device, e.PCI = uuid, g.id.PCI
		}
	}
	for uuid, g := range r.gpus {
		if g.parent != 0 && g.parent == data.device && data.gi != noInstance && g.gi == data.gi {
			e.Device = uuid
		}
	}
	return e
}
