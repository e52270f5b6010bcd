package pageexporter

import (
	"container/list"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// maxBatches bounds the memory that senders with ever new resources can take.
	maxBatches = 10_000
	// expireIntervals is the number of intervals without a successor after which a batch expires.
	expireIntervals = 3
	// minInterval keeps the page stable when two batches arrive at once.
	minInterval = time.Second
	// firstInterval is assumed until a second batch shows the real one. It is the longest
	// interval of an agent.
	firstInterval = 5 * time.Minute
)

// store holds the last batch of each resource and scope. Its methods never wait for a scrape:
// they hold the lock only to change or list the map.
type store struct {
	dropped *dropped
	ready   string // scope required for readiness; empty means any

	mu      sync.Mutex
	byKey   map[string]*list.Element
	arrival list.List // holds *entry, oldest arrival first
	// version increases with every change, including expiry.
	version uint64
	// soonest is a lower bound of the next expiry, so that not every batch pays for a search
	// for expired entries.
	soonest time.Time
	// last outlives its expiry, to say what is missing.
	last entry
}

type entry struct {
	batch    *batch
	arrived  time.Time
	gap      time.Duration // since the previous arrival, 0 if there was none
	interval time.Duration
}

func (e *entry) expires() time.Time { return e.arrived.Add(expireIntervals * e.interval) }

func newStore(d *dropped, ready string) *store {
	return &store{dropped: d, ready: ready, byKey: map[string]*list.Element{}}
}

// put replaces the batches with the same keys.
func (s *store) put(batches []*batch, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	for _, b := range batches {
		e := &entry{batch: b, arrived: now, interval: firstInterval}
		if el, ok := s.byKey[b.key]; ok {
			old := s.arrival.Remove(el).(*entry)
			e.gap = now.Sub(old.arrived)
			// The larger of two gaps: a late batch followed by a punctual one must not make the
			// interval look short.
			e.interval = max(e.gap, old.gap, minInterval)
		}
		s.byKey[b.key] = s.arrival.PushBack(e)
		if s.soonest.IsZero() || e.expires().Before(s.soonest) {
			s.soonest = e.expires()
		}
		if s.decides(b) {
			s.last = entry{arrived: now, interval: e.interval}
		}
		s.version++
	}
	for s.arrival.Len() > maxBatches {
		e := s.arrival.Remove(s.arrival.Front()).(*entry)
		delete(s.byKey, e.batch.key)
		s.dropped.add(batchLimit, 1, "")
	}
}

// expire removes expired entries. The caller holds the lock.
func (s *store) expire(now time.Time) {
	if now.Before(s.soonest) {
		return
	}
	s.soonest = time.Time{}
	for el := s.arrival.Front(); el != nil; {
		e, next := el.Value.(*entry), el.Next()
		switch {
		case !now.Before(e.expires()):
			s.arrival.Remove(el)
			delete(s.byKey, e.batch.key)
			s.version++
		case s.soonest.IsZero() || e.expires().Before(s.soonest):
			s.soonest = e.expires()
		}
		el = next
	}
}

// current returns the version at now.
func (s *store) current(now time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	return s.version
}

// batches returns the batches at now, oldest arrival first, and the version.
func (s *store) batches(now time.Time) ([]*batch, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	out := make([]*batch, 0, s.arrival.Len())
	for el := s.arrival.Front(); el != nil; el = el.Next() {
		out = append(out, el.Value.(*entry).batch)
	}
	return out, s.version
}

// decides reports whether a batch makes the page ready.
func (s *store) decides(b *batch) bool { return s.ready == "" || b.scope == s.ready }

// missing says in one line why the page is not ready; "" if it is.
func (s *store) missing(now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	for el := s.arrival.Front(); el != nil; el = el.Next() {
		if s.decides(el.Value.(*entry).batch) {
			return ""
		}
	}
	switch {
	case s.last.arrived.IsZero():
		return "no data yet"
	default:
		return fmt.Sprintf("no batch for %v, expected every %v",
			now.Sub(s.last.arrived).Round(time.Second), s.last.interval.Round(time.Second))
	}
}

// simulated reports whether a resource shown at now is simulated.
func (s *store) simulated(now time.Time) bool {
	batches, _ := s.batches(now)
	return slices.ContainsFunc(batches, func(b *batch) bool { return b.simulated })
}
