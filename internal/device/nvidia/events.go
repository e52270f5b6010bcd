//go:build linux

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/kmsg"
)

// Resume implements device.Resumer.
func (r *Reader) Resume(p device.Position) { r.resume = &p }

// Events implements device.EventReader. XIDs come from the kernel log if it is readable,
// because it names the process and holds events from before the agent started; otherwise
// from the library's event set. Each source has every XID, so only one is used.
func (r *Reader) Events(ctx context.Context, emit func(device.Event)) error {
	from := kmsg.End()
	if r.resume != nil {
		from = kmsg.Start()
	}
	log, err := kmsg.Open(filepath.Join(r.opts.Root, "dev/kmsg"), from)
	if err == nil {
		emit(device.Event{Origin: "the kernel log"})
		err = r.followLog(ctx, log, emit)
		_ = log.Close() // read-only: nothing to flush
		if err == nil {
			return nil // ctx ended
		}
	}
	emit(device.Event{Origin: fmt.Sprintf("the driver's event set, without process names (%v)", err)})
	return r.followSet(ctx, emit)
}

// followLog emits the XIDs in the kernel log. Records before the resume position are read
// too, because a later line may be the second half of a pair.
func (r *Reader) followLog(ctx context.Context, log *kmsg.Reader, emit func(device.Event)) error {
	var known device.Position
	if r.resume != nil {
		known = *r.resume
	}
	boot := r.bootTime()
	seen := fallen{}
	first := true
	return log.Follow(ctx, func(rec kmsg.Record) {
		if first && known.Record > 0 && rec.Seq > known.Record+1 {
			rec.Lost += rec.Seq - known.Record - 1
		}
		first = false
		x, ok := xidRecord{}, false
		if rec.Kernel() {
			x, ok = parseXID(rec.Text)
		}
		if ok && x.domainless {
			x.PCI = r.withDomain(x.PCI)
		}
		if ok && x.Code == xidOffBus && seen.repeats(x.PCI, rec.Time, x.form) {
			ok = false
		}
		e := x.Event
		if !ok && rec.Kernel() {
			e, ok = parseSXID(rec.Text)
		}
		at := boot.Add(rec.Time)
		if rec.Seq <= known.Record && known.Record > 0 || !at.After(known.Time) {
			return
		}
		if !ok {
			e = device.Event{} // carries the position only
		} else {
			e.Time = at
			if e.Name == device.EventXID {
				e.Device = r.deviceAt(e.PCI, x.gi)
			}
		}
		e.Missed, e.Position = rec.Lost, device.Position{Record: rec.Seq}
		emit(e)
	})
}

// bootTime returns the wall-clock time of boot, which record times are relative to.
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

// withDomain returns the address of the only GPU at the bus and device of pci, in whatever
// domain it is, and pci itself if there is none or several.
func (r *Reader) withDomain(pci string) string {
	if !r.mu.TryRLock() {
		return pci
	}
	defer r.mu.RUnlock()
	_, slot, _ := strings.Cut(pci, ":")
	found := pci
	for _, g := range r.gpus {
		if _, other, _ := strings.Cut(g.id.PCI, ":"); g.id.Parent != "" || other != slot {
			continue
		}
		if g.id.PCI == pci || found != pci {
			return pci
		}
		found = g.id.PCI
	}
	return found
}

// deviceAt returns the UUID of the GPU at a PCI address, or of its only MIG device on GPU
// instance gi. It returns "" if the device is unknown or the driver is being initialized.
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

// eventSet is the library's event queue; it is valid for one library session.
type eventSet struct {
	handle     uintptr // 0: none
	registered map[uintptr]bool
}

const (
	xidCritical = 0x8
	noInstance  = ^uint32(0) // the event does not concern a MIG instance
	// The library queues events between calls. The wait is short because closing the
	// library has to wait for it.
	eventPoll    = 500 * time.Millisecond
	eventWait    = 10 // ms
	eventsAtOnce = 1000
)

// followSet emits the XIDs from the library's event set.
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
			return fmt.Errorf("cannot receive XIDs: %w", err)
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

// pollSet drains the event set. heard is false if there is none, as while the library is
// being re-initialized.
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
			return events, false, nil // reading the GPUs finds out which one, and recovers
		case code != success:
			return events, false, fmt.Errorf("nvmlEventSetWait_v2: %w", code)
		}
		if data.eventType&xidCritical != 0 {
			events = append(events, r.xidOf(&data))
		}
	}
	return events, true, nil
}

// register creates the event set if needed and adds the GPUs found since the last call.
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
		r.events.registered[g.Handle] = true // even on failure: a GPU without event support is not retried
		var types uint64
		c := newCaller(r.lib, 0)
		if c.Do("nvmlDeviceGetSupportedEventTypes", 0, g.Handle, uintptr(unsafe.Pointer(&types))) && types&xidCritical != 0 {
			c.Do("nvmlDeviceRegisterEvents", 0, g.Handle, xidCritical, r.events.handle)
		}
	}
	return nil
}

// xidOf converts an event from the library. The caller holds mu for reading.
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
