package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// source is one vendor's reader as the View sees it. Discovery runs concurrently with the
// ticks, so that a driver that takes seconds to start, or hangs, delays nothing.
type source struct {
	Source
	reader device.Reader // nil: not open

	found   chan discovery // buffered
	running bool
	ran     time.Time
	due     bool // discover again soon
	await   bool // the tick waits for the first discovery after an open

	listener      *listener // nil: its events are not being read
	eventsProblem string    // last reported reason why its events stopped

	state   string
	problem string
	errors  uint64
	since   time.Time

	rejected uint64 // readings of counters that were not believed
}

type discovery struct {
	reader  device.Reader
	devices []device.Device
	err     error
}

func newSource(s Source) *source {
	return &source{Source: s, found: make(chan discovery, 1), due: true, await: true, state: "opening"}
}

func (s *source) status() SourceStatus {
	return SourceStatus{Name: s.Name, State: s.state, Problem: s.problem, Errors: s.errors, Rejected: s.rejected, Since: s.since}
}

// discover starts the discoveries that are due, and applies those that have finished. The
// first time it waits for the results, so that a one-shot command sees its devices.
func (v *View) discover(ctx context.Context, now time.Time) {
	defer v.sayAbsent()
	wait, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for _, s := range v.sources {
		if s.since.IsZero() {
			s.since = now
		}
		if !s.running && s.isDue(now, v.cfg.Rediscover) && !v.hangs(s) {
			s.start(now)
		}
	}
	for _, s := range v.sources {
		if !s.running {
			continue
		}
		if s.await {
			select {
			case d := <-s.found:
				v.apply(s, d)
			case <-wait.Done():
				if ctx.Err() != nil {
					return // the View is shutting down
				}
				s.await = false
				v.report(s, "opening", fmt.Errorf("still opening after %s", maxWait))
			}
			continue
		}
		select {
		case d := <-s.found:
			v.apply(s, d)
		default:
		}
	}
}

// isDue reports whether to run a discovery: by the clock, or soon after a device was lost.
// A device that stays lost does not re-initialize its driver at every tick.
func (s *source) isDue(now time.Time, every time.Duration) bool {
	if s.due {
		every = min(every, 10*time.Second)
	}
	return s.ran.IsZero() || now.Sub(s.ran) >= every
}

// hangs reports whether a call to the source has been in progress since an earlier tick.
// Its library must then be neither re-initialized nor closed.
func (v *View) hangs(s *source) bool {
	return slices.ContainsFunc(v.units, func(u *unit) bool { return u.source == s && u.busy() })
}

func (s *source) start(now time.Time) {
	s.running, s.ran, s.due = true, now, false
	go func(r device.Reader) {
		d := discovery{reader: r}
		defer func() {
			if p := recover(); p != nil {
				d.err = fmt.Errorf("%w: %v", errPanicked, p)
			}
			s.found <- d
		}()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if d.reader == nil {
			if d.reader, d.err = s.Open(ctx); d.err != nil {
				d.reader = nil
				return
			}
		}
		d.devices, d.err = d.reader.Devices(ctx)
	}(s.reader)
}

// apply applies the result of a discovery. Partitions come and go by configuration and are
// dropped with it; a GPU that disappeared stays known and is not up. A failed discovery
// proves nothing: devices that it did not find keep answering for themselves.
func (v *View) apply(s *source, d discovery) {
	s.running, s.await, s.reader = false, false, d.reader
	switch {
	case d.err == nil:
		v.report(s, "open", nil)
	case errors.Is(d.err, device.ErrAbsent):
		v.report(s, "absent", d.err)
	default:
		s.errors++
		v.report(s, "failed", d.err)
	}
	here := map[string]device.Device{}
	for _, dev := range d.devices {
		here[dev.ID().UUID] = dev
	}
	seen := maps.Clone(here)
	v.units = slices.DeleteFunc(v.units, func(u *unit) bool {
		if u.source != s {
			return false
		}
		dev := here[u.id.UUID]
		delete(here, u.id.UUID)
		switch {
		case dev != nil:
			u.replace(dev)
		case u.busy() || d.err != nil && seen[u.id.Parent] == nil:
		case u.id.Parent != "":
			v.cfg.Notify(Notice{Kind: PartitionGone, Device: u.id})
			return true
		default:
			u.dev = nil
		}
		return false
	})
	for _, dev := range d.devices {
		if here[dev.ID().UUID] != nil {
			u := newUnit(s, dev)
			v.state.recall(u)
			v.units = append(v.units, u)
			v.cfg.Notify(Notice{Kind: DeviceFound, Device: dev.ID()})
		}
	}
	slices.SortStableFunc(v.units, func(a, b *unit) int {
		return cmp.Or(cmp.Compare(a.id.Vendor, b.id.Vendor), cmp.Compare(a.id.Index, b.id.Index),
			cmp.Compare(a.id.Parent, b.id.Parent), cmp.Compare(a.id.UUID, b.id.UUID))
	})
	v.listen(s)
}

// report records the state of a source and notifies if it changed.
func (v *View) report(s *source, state string, err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if s.state == state && s.problem == problem {
		return
	}
	s.state, s.problem = state, problem
	kind := map[string]Kind{"open": SourceOpen, "absent": SourceAbsent}[state]
	if kind == "" {
		kind = SourceFailed
	}
	n := Notice{Kind: kind, Source: s.Name, Err: err}
	if kind == SourceAbsent {
		v.absences = append(v.absences, n)
		return
	}
	v.cfg.Notify(n)
}

// sayAbsent reports all absent sources in one notice, because most machines have devices of
// one vendor.
func (v *View) sayAbsent() {
	var names []string
	for _, n := range v.absences {
		names = append(names, n.Source)
	}
	if len(names) > 0 {
		n := v.absences[0]
		if len(names) > 1 {
			n = Notice{Kind: SourceAbsent, Source: strings.Join(names, ", ")}
		}
		v.cfg.Notify(n)
	}
	v.absences = nil
}

// settle waits until no discovery is in progress, and keeps the reader that it opened.
func (s *source) settle(ctx context.Context) error {
	if !s.running {
		return nil
	}
	select {
	case d := <-s.found:
		s.running, s.reader = false, d.reader
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: discovery has not returned since %s", s.Name, s.ran.Format(time.TimeOnly))
	}
}

// close closes the reader, if any; the next discovery opens it again.
func (s *source) close() error {
	r := s.reader
	s.reader, s.due, s.await, s.ran = nil, true, true, time.Time{}
	if r == nil {
		return nil
	}
	return r.Close()
}
