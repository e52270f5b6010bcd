package cudareceiver

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// keep is how long the sums of a workload that ended stay, so that no scraper misses them.
const keep = 5 * time.Minute

// owners is what the gpu extension knows of processes. It answers from memory.
type owners interface {
	Process(pid uint32) (workload.Workload, bool)
}

// ledger adds up what processes do by workload and device. It adds what each reading has
// more than the one before: a process that ends takes nothing away, and one that turns out
// to be somebody else's is theirs from then on.
type ledger struct {
	cfg      *Config
	owners   owners // nil: nobody knows
	subjects []*subject
	byKey    map[string]*subject
	seen     map[uint32]*presence
	now      time.Time // of the reading that is taken in
	last     time.Time // of the last one
	before   time.Time // of the one before it
	names    int       // of subjects so far
	folded   uint64    // processes of workloads and communicators that became other's
}

// presence is a process as the reading before had it.
type presence struct {
	tracer.Process
	owner workload.Workload
	known bool // somebody said whose it is
	pairs []pair
	at    map[int]*subject // by ordinal
	fresh bool             // it was not there before
	// folded: its workload is beyond the cap, at least on one device.
	folded bool
}

func newLedger(cfg *Config) *ledger {
	return &ledger{cfg: cfg, byKey: map[string]*subject{}, seen: map[uint32]*presence{}}
}

// observe takes in a reading.
func (l *ledger) observe(s *tracer.Snapshot, where places) {
	l.now = s.Time
	for _, sub := range l.subjects {
		sub.begin()
	}
	now := make(map[uint32]*presence, len(s.Processes))
	for i := range s.Processes {
		p := &presence{Process: s.Processes[i], at: map[int]*subject{}}
		before := l.seen[p.PID]
		if before == nil || before.Ended || !same(before.Since, p.Since) {
			before, p.fresh = &presence{}, true
		}
		l.whose(p, before, where)
		l.process(p, before, where)
		if p.folded && !before.folded {
			l.folded++
		}
		now[p.PID] = p
	}
	l.stragglers(s, now)
	l.seen = now
	l.expire(s.Time)
	l.before, l.last = l.last, s.Time
}

// same reports whether two readings are of one process. When it was first seen is worked
// out from another clock, and pids are not used again within a second.
func same(before, now time.Time) bool { return now.Sub(before).Abs() < time.Second }

// whose finds the owner of a process. What was known of one that ended still holds.
func (l *ledger) whose(p, before *presence, where places) {
	p.owner, p.known, p.pairs = before.owner, before.known, before.pairs
	if l.owners != nil && (!p.Ended || !p.known) {
		if w, ok := l.owners.Process(p.PID); ok {
			if !p.known || !w.Equal(p.owner) {
				p.pairs = w.Identity()
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
	p.owner, p.pairs = w, w.Identity()
}

// subject returns whose series the part of a process on a device belongs to.
func (l *ledger) subject(p *presence, ordinal int, where places) *subject {
	if s := p.at[ordinal]; s != nil {
		return s
	}
	id := where.device(&p.Process, ordinal)
	s := l.find(p.pairs, id, p)
	s.live = s.live || !p.Ended
	p.at[ordinal], p.folded = s, p.folded || s.rest
	return s
}

func (l *ledger) find(whose []pair, id device.ID, p *presence) *subject {
	pid := uint32(0)
	if l.cfg.PerProcess {
		pid = p.PID
	}
	key := text(whose) + id.UUID + "\x00" + strconv.FormatUint(uint64(pid), 10)
	if s := l.byKey[key]; s != nil {
		s.ended = time.Time{}
		return s
	}
	rest := []pair{{Key: workload.KeyKind, Value: workload.Other}}
	if len(l.subjects) >= l.cfg.MaxWorkloads && !slices.Equal(whose, rest) {
		return l.find(rest, id, &presence{Process: tracer.Process{Since: p.Since}, fresh: p.fresh})
	}
	since := p.Since
	if !p.fresh && !l.last.IsZero() { // it was somebody else's until the reading before
		since = l.last
	}
	l.names++
	s := newSubject("#"+strconv.Itoa(l.names), id, append(append([]pair(nil), whose...), place(id)...), pid, since)
	s.rest = slices.Equal(whose, rest)
	l.byKey[key] = s
	l.subjects = append(l.subjects, s)
	return s
}

// process adds what a process has done since the reading before.
func (l *ledger) process(p, before *presence, where places) {
	at := func(ordinal int) *subject { return l.subject(p, ordinal, where) }
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
		s.busy += grown(d.Busy, was.Busy)
		s.wait += grown(d.Wait, was.Wait)
		s.bubble += grown(d.Bubble, was.Bubble)
		if !p.Ended && (d.Ordinal >= 0 || d.Memory.Peak > 0) { // calls whose device is not known hold nothing
			s.hold(&d.Memory)
		}
	}
	l.communicators(p, before, at)
	if h, was := &p.Host, &before.Host; h.Known {
		s := at(-1)
		if s.host == nil {
			s.host = &delays{}
		}
		s.host.queue += grown(h.RunQueue, was.RunQueue)
		s.host.blocked += grown(h.Blocked, was.Blocked)
		s.host.queueInCall += grown(h.RunQueueInCall, was.RunQueueInCall)
		s.host.blockedInCall += grown(h.BlockedInCall, was.BlockedInCall)
	}
}

// more returns by how much a count has grown. One that fell began anew.
func more(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func grown(now, before time.Duration) float64 {
	if now < before {
		return 0 // a time that is worked out may be a little less
	}
	return (now - before).Seconds()
}

func (l *ledger) operations(p, before *presence, at func(int) *subject) {
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
		k := opKey{o.Op, o.Class}
		sum := s.ops[k]
		if sum == nil {
			sum = &operation{}
			s.ops[k] = sum
		}
		sum.time.add(o.Time, b.Time)
		if o.Class == tracer.Copy {
			s.copies[o.Kind] += more(o.Bytes, b.Bytes)
		}
		for _, e := range o.Errors {
			n := e.Count
			for _, x := range b.Errors {
				if x.Code == e.Code {
					n = more(e.Count, x.Count)
				}
			}
			s.errors[errorKey{o.Op, e.Code}] += n
		}
	}
}

// hold adds the memory of one process.
func (s *subject) hold(m *tracer.Memory) {
	if s.memory == nil {
		s.memory = &memory{}
	}
	sum := s.memory
	// Of what was taken before we came only the framework knows.
	sum.reserved += max(m.Reserved, m.Pool)
	sum.peak += max(m.Peak, m.Pool)
	sum.age = max(sum.age, m.Oldest)
	sum.growth += m.Growth
	sum.leak = sum.leak || m.Leak
	if m.Framework {
		sum.framework = true
		sum.allocated += m.Allocated
		sum.held += cmp.Or(m.Pool, m.Reserved)
	}
}

// began returns since when what is fresh of a subject counts: the reading before, or when it
// was first seen if that is later.
func (l *ledger) began(s *subject) time.Time {
	if s.since.After(l.before) {
		return s.since
	}
	return l.before
}

// expire forgets workloads and communicators that ended long ago.
func (l *ledger) expire(now time.Time) {
	left := l.subjects[:0]
	gone := map[*subject]bool{}
	for _, s := range l.subjects {
		if s.live {
			s.ended = time.Time{}
		} else if s.ended.IsZero() {
			s.ended = now
		}
		if !s.ended.IsZero() && now.Sub(s.ended) >= keep {
			gone[s] = true
			continue
		}
		for key, c := range s.comms {
			if c.live {
				c.ended = time.Time{}
			} else if c.ended.IsZero() {
				c.ended = now
			} else if now.Sub(c.ended) >= keep {
				delete(s.comms, key)
				s.parted = true
			}
		}
		left = append(left, s)
	}
	clear(l.subjects[len(left):])
	l.subjects = left
	for key, s := range l.byKey {
		if gone[s] {
			delete(l.byKey, key)
		}
	}
}
