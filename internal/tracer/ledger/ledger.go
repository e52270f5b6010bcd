package ledger

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// keep is how long the sums of an ended workload remain, so that no scrape misses them.
const keep = 5 * time.Minute

// Owners is what the gpu extension knows about processes. It answers from memory.
type Owners interface {
	Process(pid uint32) (workload.Workload, bool)
}

// Options set the granularity and the limits of a ledger.
type Options struct {
	// PerProcess makes each process a separate subject.
	PerProcess bool
	// MaxWorkloads bounds the subjects. Further workloads are combined as Other.
	MaxWorkloads int
	// MaxKernels and MaxCommunicators bound those of one subject. Further ones are combined as
	// Other.
	MaxKernels, MaxCommunicators int
}

// Ledger sums the activity of processes by workload and device. It adds the growth from one reading to
// the next: the end of a process subtracts nothing, and when the owner of a process becomes known, the
// process counts for that owner from then on.
type Ledger struct {
	Owners   Owners               // nil: workloads are unknown
	Subjects []*Subject           // in order of first appearance
	Seen     map[uint32]*Presence // the processes of the last reading
	Folded   uint64               // processes and communicators beyond a limit, combined as Other

	cfg    Options
	byKey  map[string]*Subject
	now    time.Time // time of the current reading
	last   time.Time // time of the previous reading
	before time.Time // time of the reading before that
	names  int       // subjects named so far
}

// Presence is a process in the previous reading.
type Presence struct {
	tracer.Process
	owner workload.Workload
	known bool // its workload is known
	Pairs []Pair
	At    map[int]*Subject // by CUDA ordinal
	fresh bool             // not in the previous reading
	// folded: its workload exceeds the limit on at least one device.
	folded bool
}

// Workload returns the ID of the workload that the process belongs to.
func (p *Presence) Workload() string { return p.owner.ID }

// New returns an empty Ledger.
func New(cfg Options) *Ledger {
	return &Ledger{cfg: cfg, byKey: map[string]*Subject{}, Seen: map[uint32]*Presence{}}
}

// Resume makes a new Ledger continue after a reading of an earlier one: it adds the growth since then.
func (l *Ledger) Resume(processes []tracer.Process, at time.Time) {
	for _, p := range processes {
		l.Seen[p.PID] = &Presence{Process: p}
	}
	l.last = at
}

// Observe adds a reading.
func (l *Ledger) Observe(s *tracer.Snapshot, where Places) {
	l.now = s.Time
	for _, sub := range l.Subjects {
		sub.begin()
	}
	now := make(map[uint32]*Presence, len(s.Processes))
	for i := range s.Processes {
		p := &Presence{Process: s.Processes[i], At: map[int]*Subject{}}
		before := l.Seen[p.PID]
		if before == nil || before.Ended || !same(before.Since, p.Since) {
			before, p.fresh = &Presence{}, true
		}
		l.whose(p, before, where)
		l.process(p, before, where)
		if p.folded && !before.folded {
			l.Folded++
		}
		now[p.PID] = p
	}
	l.stragglers(s, now)
	l.Seen = now
	l.expire(s.Time)
	l.before, l.last = l.last, s.Time
}

// same reports whether two readings are of one process. The time a process was first seen is computed
// from another clock, and PIDs are not reused within a second.
func same(before, now time.Time) bool { return now.Sub(before).Abs() < time.Second }

// whose determines the owner of a process. The owner of an ended process remains known.
func (l *Ledger) whose(p, before *Presence, where Places) {
	p.owner, p.known, p.Pairs = before.owner, before.known, before.Pairs
	if l.Owners != nil && (!p.Ended || !p.known) {
		if w, ok := l.Owners.Process(p.PID); ok {
			if !p.known || !w.Equal(p.owner) {
				p.Pairs = w.Identity()
			}
			p.owner, p.known = w, true
			return
		}
	}
	if p.known {
		return
	}
	w, ok := where.owner(&p.Process)
	if !ok {
		w = workload.Workload{ID: workload.Unattributed, Kind: workload.Unattributed}
	}
	p.owner, p.Pairs = w, w.Identity()
}

// subject returns the subject to which the activity of a process on a device belongs.
func (l *Ledger) subject(p *Presence, ordinal int, where Places) *Subject {
	if s := p.At[ordinal]; s != nil {
		return s
	}
	id := where.device(&p.Process, ordinal)
	s := l.find(p.Pairs, id, p)
	s.Live = s.Live || !p.Ended
	p.At[ordinal], p.folded = s, p.folded || s.rest
	return s
}

func (l *Ledger) find(whose []Pair, id device.ID, p *Presence) *Subject {
	pid := uint32(0)
	if l.cfg.PerProcess {
		pid = p.PID
	}
	key := text(whose) + id.UUID + "\x00" + strconv.FormatUint(uint64(pid), 10)
	if s := l.byKey[key]; s != nil {
		s.ended = time.Time{}
		return s
	}
	rest := []Pair{{Key: workload.KeyKind, Value: workload.Other}}
	if len(l.Subjects) >= l.cfg.MaxWorkloads && !slices.Equal(whose, rest) {
		return l.find(rest, id, &Presence{Process: tracer.Process{Since: p.Since}, fresh: p.fresh})
	}
	since := p.Since
	if !p.fresh && !l.last.IsZero() { // belonged to another subject until the previous reading
		since = l.last
	}
	l.names++
	s := newSubject("#"+strconv.Itoa(l.names), id, append(append([]Pair(nil), whose...), place(id)...), pid, since)
	s.rest = slices.Equal(whose, rest)
	l.byKey[key] = s
	l.Subjects = append(l.Subjects, s)
	return s
}

// process adds the activity of a process since the previous reading.
func (l *Ledger) process(p, before *Presence, where Places) {
	at := func(ordinal int) *Subject { return l.subject(p, ordinal, where) }
	l.operations(p, before, at)
	l.kernels(p, before, at)
	for i := range p.Devices {
		d := &p.Devices[i]
		var was tracer.Device
		for j := range before.Devices {
			if before.Devices[j].Ordinal == d.Ordinal {
				was = before.Devices[j]
			}
		}
		s := at(d.Ordinal)
		s.Busy += grown(d.Busy, was.Busy)
		s.Wait += grown(d.Wait, was.Wait)
		s.Bubble += grown(d.Bubble, was.Bubble)
		if !p.Ended && (d.Ordinal >= 0 || d.Memory.Peak > 0) { // calls on an unknown device hold no memory
			s.hold(&d.Memory)
		}
	}
	l.communicators(p, before, at)
	if h, was := &p.Host, &before.Host; h.Known {
		s := at(-1)
		if s.Host == nil {
			s.Host = &Delays{}
		}
		s.Host.Queue += grown(h.RunQueue, was.RunQueue)
		s.Host.Blocked += grown(h.Blocked, was.Blocked)
		s.Host.QueueInCall += grown(h.RunQueueInCall, was.RunQueueInCall)
		s.Host.BlockedInCall += grown(h.BlockedInCall, was.BlockedInCall)
	}
}

// more returns the growth of a count. A count that fell was reset.
func more(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func grown(now, before time.Duration) float64 {
	if now < before {
		return 0 // a computed time may be slightly lower
	}
	return (now - before).Seconds()
}

func (l *Ledger) operations(p, before *Presence, at func(int) *Subject) {
	type key struct {
		op, kind string
		device   int
	}
	was := make(map[key]*tracer.OpStat, len(before.Ops))
	for i := range before.Ops {
		o := &before.Ops[i]
		was[key{o.Op, o.Kind, o.Device}] = o
	}
	for i := range p.Ops {
		o := &p.Ops[i]
		b := was[key{o.Op, o.Kind, o.Device}]
		if b == nil {
			b = &tracer.OpStat{}
		}
		s := at(o.Device)
		k := OpKey{o.Op, o.Class}
		sum := s.Ops[k]
		if sum == nil {
			sum = &Operation{}
			s.Ops[k] = sum
		}
		sum.Time.add(o.Time, b.Time)
		if o.Class == tracer.Copy {
			s.Copies[o.Kind] += more(o.Bytes, b.Bytes)
		}
		for _, e := range o.Errors {
			n := e.Count
			for _, x := range b.Errors {
				if x.Code == e.Code {
					n = more(e.Count, x.Count)
				}
			}
			s.Errors[ErrorKey{o.Op, e.Code}] += n
		}
	}
}

// hold adds the memory of one process.
func (s *Subject) hold(m *tracer.Memory) {
	if s.Memory == nil {
		s.Memory = &Memory{}
	}
	sum := s.Memory
	// Only the framework knows memory allocated before tracing began.
	sum.Reserved += max(m.Reserved, m.Pool)
	sum.Peak += max(m.Peak, m.Pool)
	sum.Age = max(sum.Age, m.Oldest)
	sum.Growth += m.Growth
	sum.Leak = sum.Leak || m.Leak
	if m.Framework {
		sum.Framework = true
		sum.Allocated += m.Allocated
		sum.Held += cmp.Or(m.Pool, m.Reserved)
	}
}

// Began returns the start of the period that a subject's fresh values cover: the previous reading, or
// when the subject was first seen if that is later.
func (l *Ledger) Began(s *Subject) time.Time {
	if s.Since.After(l.before) {
		return s.Since
	}
	return l.before
}

// expire drops workloads and communicators that ended long ago.
func (l *Ledger) expire(now time.Time) {
	left := l.Subjects[:0]
	gone := map[*Subject]bool{}
	for _, s := range l.Subjects {
		if s.Live {
			s.ended = time.Time{}
		} else if s.ended.IsZero() {
			s.ended = now
		}
		if !s.ended.IsZero() && now.Sub(s.ended) >= keep {
			gone[s] = true
			continue
		}
		for key, c := range s.Comms {
			if c.Live {
				c.ended = time.Time{}
			} else if c.ended.IsZero() {
				c.ended = now
			} else if now.Sub(c.ended) >= keep {
				delete(s.Comms, key)
				s.parted = true
			}
		}
		left = append(left, s)
	}
	clear(l.Subjects[len(left):])
	l.Subjects = left
	for key, s := range l.byKey {
		if gone[s] {
			delete(l.byKey, key)
		}
	}
}
