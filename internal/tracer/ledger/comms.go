package ledger

import (
	"slices"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// communicators adds the collectives of a process.
func (l *Ledger) communicators(p, before *Presence, at func(int) *Subject) {
	for i := range p.Comms {
		c := &p.Comms[i]
		if c.Key == "" && c.ID == "" {
			continue // unknown how much of it was already counted
		}
		was, fresh := &tracer.Comm{}, true
		for j := range before.Comms {
			if b := &before.Comms[j]; sameComm(b, c) && (fresh || b.Ended) {
				was, fresh = b, false
			}
		}
		if was.Ended && c.Key != "" {
			continue // already ended: a failed reading may repeat its earlier state
		}
		if (c.Ended || p.Ended) && c.Sequence == was.Sequence && c.BarrierWait.Count == was.BarrierWait.Count && was.Ended {
			continue // its series may have ended already
		}
		s := at(c.Device)
		sum, _, folded := s.comm(keyOf(c), l.cfg.MaxCommunicators, l.last)
		if folded && fresh {
			l.Folded++
		}
		if live := !c.Ended && !p.Ended; live {
			sum.Live = true
			if c.LastEnter.After(sum.Last) {
				sum.Last = c.LastEnter
			}
		}
		sum.Sequence += more(c.Sequence, was.Sequence)
		sum.Barrier.add(c.BarrierWait, was.BarrierWait)
		for j := range c.Ops {
			o := &c.Ops[j]
			b := &tracer.CollOp{}
			for k := range was.Ops {
				if x := &was.Ops[k]; x.Op == o.Op && x.Type == o.Type && x.Reduce == o.Reduce && x.Peer == o.Peer {
					b = x
				}
			}
			op := sum.collective(CollKey{o.Op, o.Type, o.Reduce, o.Peer})
			op.Time.add(o.Time, b.Time)
			op.Size.add(o.Size, b.Size)
			op.Errors += more(o.Errors, b.Errors)
			bytes := uint64(max(0, o.Size.Sum-b.Size.Sum))
			if o.Size.Count < b.Size.Count {
				bytes = uint64(o.Size.Sum)
			}
			op.Bytes += bytes
			op.Fresh += bytes
		}
		sum.measure(c, p, before)
	}
}

// measure copies NCCL's own measurements of a rank since the previous reading.
func (c *Comm) measure(of *tracer.Comm, p, before *Presence) {
	for i := range p.Measured {
		m := &p.Measured[i]
		if of.ID == "" || m.Comm != of.ID || m.Rank != of.Rank {
			continue
		}
		bus, took := m.Bus, m.Time
		for _, b := range before.Measured {
			if b.Comm == m.Comm && b.Rank == m.Rank && b.Op == m.Op && b.Count <= m.Count {
				bus, took = m.Bus-b.Bus, m.Time-b.Time
			}
		}
		if took <= 0 || bus < 0 {
			continue
		}
		if c.Bus == nil {
			c.Bus = map[string]float64{}
		}
		c.Bus[m.Op] = bus / took.Seconds()
	}
}

// sameComm reports whether a and b are the same communicator of a process. A process may have several
// ranks of one communicator, and several older than the tracer, which have no ID: only Key
// distinguishes those.
func sameComm(a, b *tracer.Comm) bool {
	if a.Key != "" || b.Key != "" {
		return a.Key == b.Key
	}
	return a.ID != "" && a.ID == b.ID && a.Rank == b.Rank && a.Size == b.Size && a.Device == b.Device
}

// keyOf returns the series key of a communicator. All communicators without an ID share one series:
// Key is meaningless outside the process and never repeats.
func keyOf(c *tracer.Comm) CommKey {
	if c.ID == "" {
		return CommKey{"", -1, 0}
	}
	return CommKey{c.ID, c.Rank, c.Size}
}

// stragglers marks the ranks that others wait for.
func (l *Ledger) stragglers(s *tracer.Snapshot, now map[uint32]*Presence) {
	for i := range s.Groups {
		g := &s.Groups[i]
		for _, r := range g.Ranks {
			p := now[r.PID]
			if p == nil {
				continue
			}
			for j := range p.Comms {
				c := &p.Comms[j]
				if c.ID == "" || c.ID != g.ID || c.Rank != r.Rank {
					continue
				}
				sub := p.At[c.Device]
				if sub == nil {
					continue
				}
				if sum := sub.Comms[keyOf(c)]; sum != nil {
					sum.Grouped = true
					sum.Behind = sum.Behind || slices.Contains(g.Behind, r.Rank)
				}
			}
		}
	}
}
