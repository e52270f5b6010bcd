package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// unit is one device as the View sees it: the Device that answers for it, and its state.
type unit struct {
	source *source
	id     device.ID
	dev    device.Device // nil: known, but currently missing

	// answer is buffered: a call that outlives its tick leaves its result there.
	answer chan answer
	asked  time.Time   // start of the call in progress; zero: none
	call   device.Tier // of the call in progress
	late   bool        // the call outlived its tick: no tick waits for it
	due    device.Tier

	since   time.Time
	guard   device.Guard
	prev    device.Sample
	down    error       // why the device is not up; nil: it is
	partial string      // what could not be read
	asking  device.Tier // tier of the answer that set partial, at most Slow
	news    []Notice
}

type answer struct {
	tier   device.Tier
	sample device.Sample
	err    error
}

func newUnit(s *source, d device.Device) *unit {
	return &unit{source: s, id: d.ID(), dev: d, answer: make(chan answer, 1), due: device.Static}
}

// replace sets a new Device behind the unit, which then starts over.
func (u *unit) replace(d device.Device) {
	u.id = d.ID()
	if u.dev != d {
		u.dev, u.due = d, device.Static
	}
}

// ask starts a Read, unless the device is missing or the last Read is still running.
func (u *unit) ask(ctx context.Context, tier device.Tier) {
	if u.busy() || u.dev == nil {
		return
	}
	u.asked, u.call = time.Now(), max(tier, u.due)
	go func(d device.Device, tier device.Tier) {
		a := answer{tier: tier}
		defer func() {
			if p := recover(); p != nil {
				a.err = fmt.Errorf("%w: %v", errPanicked, p)
			}
			u.answer <- a
		}()
		ctx, cancel := context.WithTimeout(ctx, maxWait)
		defer cancel()
		a.sample, a.err = d.Read(ctx, tier)
	}(u.dev, u.call)
}

// busy reports whether a call is in progress, and discards the result of a call that
// returned after its tick. Static values that were read need not be read again: a first
// read that takes longer than the interval must not repeat forever.
func (u *unit) busy() bool {
	if u.asked.IsZero() {
		return false
	}
	select {
	case a := <-u.answer:
		if u.idle(); a.err == nil && a.tier == device.Static {
			u.due = device.Fast
		}
		return false
	default:
		return true
	}
}

func (u *unit) idle() { u.asked, u.late = time.Time{}, false }

// hung describes the call that has been in progress since before this tick.
func (u *unit) hung() error {
	call := "a driver call"
	if b, ok := u.dev.(device.Busy); ok && b.Busy() != "" {
		call = b.Busy()
	}
	return fmt.Errorf("%s has not returned for %s", call, time.Since(u.asked).Round(time.Millisecond))
}

var (
	errMissing  = errors.New("the driver no longer lists the device")
	errPanicked = errors.New("the reader panicked")
)

// await returns the Reading of the tick at now, once the device answered or ctx ended.
func (u *unit) await(ctx context.Context, now time.Time) Reading {
	if u.asked.IsZero() {
		return u.fail(errMissing)
	}
	if u.late {
		return u.miss()
	}
	var a answer
	select {
	case a = <-u.answer:
	case <-ctx.Done():
		select { // if both are ready, an answer in time counts
		case a = <-u.answer:
		default:
			u.late = true
			return u.miss()
		}
	}
	u.idle()
	if a.err != nil {
		u.source.errors++
	}
	if isDown(a.err) {
		return u.fail(a.err)
	}
	return u.succeed(a, now)
}

// miss returns the Reading of a device that has not answered yet. A first read may be slow
// while the driver wakes up: the device is then neither up nor reported as down. A slow read
// may take longer than the interval: the last values are then repeated for a while.
func (u *unit) miss() Reading {
	err := u.hung()
	if u.down == nil && u.call == device.Slow && u.prev.ID.UUID != "" && time.Since(u.asked) < maxWait {
		u.source.errors++
		return Reading{Sample: u.prev, Up: true, Late: true, Problem: u.partial, Since: u.since}
	}
	if u.down == nil && (u.due == device.Static || u.prev.ID.UUID == "") && time.Since(u.asked) < maxWait {
		return u.blank(err)
	}
	return u.fail(err)
}

// isDown reports whether err leaves no usable Sample.
func isDown(err error) bool {
	return errors.Is(err, device.ErrLost) || errors.Is(err, device.ErrNeedsReset) || errors.Is(err, errPanicked) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func (u *unit) fail(err error) Reading {
	if u.down == nil {
		u.news = append(u.news, Notice{Kind: DeviceDown, Device: u.id, Err: err})
		if u.asked.IsZero() && errors.Is(err, errMissing) {
			u.source.errors++
		}
	}
	if !u.asked.IsZero() {
		u.source.errors++ // counted at each tick that it misses
	}
	u.down = err
	u.due = device.Static // the device may have changed when it returns
	return u.blank(err)
}

// blank returns the Reading of a device that did not answer: its identity without values.
func (u *unit) blank(err error) Reading {
	return Reading{
		Sample: device.Sample{ID: u.id, Slice: u.prev.Slice, Aliases: u.prev.Aliases}, Problem: err.Error(), Since: u.since,
		Lost: errors.Is(err, device.ErrLost), NeedsReset: errors.Is(err, device.ErrNeedsReset),
	}
}

func (u *unit) succeed(a answer, now time.Time) Reading {
	if u.down != nil {
		u.news = append(u.news, Notice{Kind: DeviceUp, Device: u.id})
		u.down = nil
	}
	problem := ""
	if a.err != nil {
		problem = a.err.Error()
	}
	// A fast read does not retry what a slow read could not answer, so it proves nothing.
	if tier := min(a.tier, device.Slow); tier < u.asking && u.partial != "" {
		problem = u.partial
	} else {
		u.asking = tier
	}
	if problem != u.partial {
		u.news = append(u.news, Notice{Kind: DevicePartial, Device: u.id, Err: a.err})
		u.partial = problem
	}
	rejected := u.guard.Rejected
	sample, verdict := u.guard.Believe(a.sample, a.tier >= device.Slow, now)
	u.source.rejected += u.guard.Rejected - rejected
	if u.since.IsZero() || verdict.Reset {
		u.since = now
	}
	u.prev, u.due = sample, device.Fast
	return Reading{Sample: sample, Up: true, Problem: problem, Since: u.since, Jumped: verdict.Jumped}
}

// settle waits until no call is in progress.
func (u *unit) settle(ctx context.Context) error {
	if !u.busy() {
		return nil
	}
	select {
	case <-u.answer:
		u.idle()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("GPU %d (%s): %w", u.id.Index, u.id.UUID, u.hung())
	}
}

func (u *unit) notices() []Notice {
	n := u.news
	u.news = nil
	return n
}
