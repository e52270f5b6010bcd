//go:build linux

package amd

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/kmsg"
)

// Resume implements device.Resumer.
func (r *Reader) Resume(p device.Position) { r.resume = &p }

// Events implements device.EventReader: resets, hangs and hardware errors that the driver
// writes to the kernel log.
func (r *Reader) Events(ctx context.Context, emit func(device.Event)) error {
	from := kmsg.End()
	if r.resume != nil {
		from = kmsg.Start()
	}
	log, err := kmsg.Open(filepath.Join(r.opts.Root, "dev/kmsg"), from)
	if err != nil {
		return fmt.Errorf("cannot receive resets and errors: %w", err)
	}
	defer func() { _ = log.Close() }() // read-only: nothing to flush
	emit(device.Event{Origin: "the kernel log"})
	return r.follow(ctx, log, emit)
}

// follow emits the GPU events in the log. Records before the resume position are read too,
// because a later line may repeat one of them.
func (r *Reader) follow(ctx context.Context, log *kmsg.Reader, emit func(device.Event)) error {
	var known device.Position
	if r.resume != nil {
		known = *r.resume
	}
	boot := r.bootTime()
	told := totals{}
	first := true
	return log.Follow(ctx, func(rec kmsg.Record) {
		if first && known.Record > 0 && rec.Seq > known.Record+1 {
			rec.Lost += rec.Seq - known.Record - 1
		}
		first = false
		e, ok := device.Event{}, false
		if rec.Kernel() {
			e, ok = parseLine(rec.Text)
		}
		if ok && told.repeats(e.PCI, rec.Text, rec.Time) {
			ok = false
		}
		at := boot.Add(rec.Time)
		if rec.Seq <= known.Record && known.Record > 0 || !at.After(known.Time) {
			return
		}
		if !ok {
			e = device.Event{} // carries the position only
		} else {
			e.Time = at
			e.Device, e.PCI = r.deviceAt(e.PCI)
		}
		e.Missed, e.Position = rec.Lost, device.Position{Record: rec.Seq}
		emit(e)
	})
}

// bootTime returns the wall-clock time of boot, which record times are relative to.
func (r *Reader) bootTime() time.Time {
	text, err := r.opts.proc().Text("uptime")
	if err != nil {
		return r.opts.Now()
	}
	up, err := kmsg.ParseUptime(text)
	if err != nil {
		return r.opts.Now()
	}
	return r.opts.Now().Add(-up)
}
