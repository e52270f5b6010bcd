// Package spans knows the spans of applications of the last minutes: which of them took longer than
// spans of their name usually do, and what their devices had to do with it; and which ran when
// something happened to a device, so that whoever reports that can link to them.
//
// The package is pure: spans go in, with the state of their devices, and the only clock is theirs.
// docs/spans.md describes the rules.
package spans

import (
	"cmp"
	"slices"
	"sync"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Span is one span of a workload that held a device.
type Span struct {
	Trace    [16]byte
	ID       [8]byte
	Service  string
	Name     string
	Workload string // ID
	PID      uint32 // on this machine; 0: unknown
	From, To int64  // nanoseconds since 1970
	Entry    bool   // it is no part of another span of its process
	Facts
}

// Facts is what is known of the device that may have made a span slow. Absent is not 0.
type Facts struct {
	Device     device.ID
	Own        device.Value // mean utilization by the workload itself, 0 to 1
	Others     device.Value // by others
	Busy       device.Value // of the device
	Clock      device.Value // mean, in hertz
	ByPower    float64      // fraction of the span throttled by power
	ByHeat     float64      // by temperature, or by the board itself
	Neighbours []string     // names of the others
}

// Limits.
const (
	maxNames     = 2000 // of spans, by service
	maxName      = 256  // bytes of a name
	maxWorkloads = 64   // with spans to link to
	history      = 120  // seconds
	eachSecond   = 8    // spans of a workload
	maxPending   = 64   // slow spans that were not fetched
)

// Board is safe for concurrent use. The zero Board is ready for use.
type Board struct {
	mu      sync.Mutex
	usual   map[key]*usual
	recent  map[string]*[history]moment
	traced  map[uint32][]reading // by process
	pending []Slow
	refused uint64
}

type key struct{ service, name string }

// moment are the longest spans that ended in one second.
type moment struct {
	second int64
	spans  []Link
}

// Link is a span that others may link to.
type Link struct {
	Trace         [16]byte
	ID            [8]byte
	Service, Name string
	PID           uint32
	From, To      int64
}

func (s *Span) link() Link { return Link{s.Trace, s.ID, s.Service, s.Name, s.PID, s.From, s.To} }

// See adds spans.
func (b *Board) See(list []Span) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.usual == nil {
		b.usual, b.recent = map[key]*usual{}, map[string]*[history]moment{}
	}
	for i := range list {
		s := &list[i]
		if s.Entry {
			b.remember(s)
		}
		if len(s.Service) > maxName || len(s.Name) > maxName || s.To <= s.From {
			continue
		}
		u := b.usual[key{s.Service, s.Name}]
		if u == nil {
			if len(b.usual) >= maxNames && !b.forget() {
				b.refused++
				continue
			}
			u = &usual{}
			b.usual[key{s.Service, s.Name}] = u
		}
		if slow, ok := u.judge(s); ok {
			b.keep(slow)
		}
	}
}

// forget drops the names that are no longer used: of the others, half of what each knows counts. It
// reports whether there is room.
func (b *Board) forget() bool {
	for k, u := range b.usual {
		if !u.used {
			delete(b.usual, k)
		}
		u.used = false
	}
	return len(b.usual) < maxNames
}

// keep adds a slow span. Of a trace only the one that lost most is kept, and if there is no room, those
// that lost least go.
func (b *Board) keep(s Slow) {
	if i := slices.IndexFunc(b.pending, func(o Slow) bool { return o.Trace == s.Trace }); i >= 0 {
		if b.pending[i].Lost < s.Lost {
			b.pending[i] = s
		}
		return
	}
	if len(b.pending) < maxPending {
		b.pending = append(b.pending, s)
		return
	}
	b.refused++
	i := 0
	for j := range b.pending {
		if b.pending[j].Lost < b.pending[i].Lost {
			i = j
		}
	}
	if b.pending[i].Lost < s.Lost {
		b.pending[i] = s
	}
}

// SlowSpans returns the slow spans since the last call, by time.
func (b *Board) SlowSpans() []Slow {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.pending
	b.pending = nil
	slices.SortFunc(list, func(x, y Slow) int { return cmp.Compare(x.To, y.To) })
	return list
}

// Refused returns how many spans were not judged or not reported for lack of room.
func (b *Board) Refused() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

// remember adds a span to link to.
func (b *Board) remember(s *Span) {
	list := b.recent[s.Workload]
	if list == nil {
		if len(b.recent) >= maxWorkloads {
			b.drop()
		}
		list = &[history]moment{}
		b.recent[s.Workload] = list
	}
	second := s.To / 1e9
	m := &list[second%history]
	if m.second != second {
		if m.second > second {
			return // too old
		}
		*m = moment{second, m.spans[:0]}
	}
	if len(m.spans) < eachSecond {
		m.spans = append(m.spans, s.link())
		return
	}
	i := 0
	for j := range m.spans {
		if m.spans[j].To-m.spans[j].From < m.spans[i].To-m.spans[i].From {
			i = j
		}
	}
	if s.To-s.From > m.spans[i].To-m.spans[i].From {
		m.spans[i] = s.link()
	}
}

// drop forgets the workload whose last span is the oldest.
func (b *Board) drop() {
	oldest, when := "", int64(0)
	for id, list := range b.recent {
		last := int64(0)
		for i := range list {
			last = max(last, list[i].second)
		}
		if oldest == "" || last < when {
			oldest, when = id, last
		}
	}
	delete(b.recent, oldest)
}

// During returns the longest spans of a workload that ran between two moments, at most n. If pid is not 0,
// only those of that process, or of an unknown one.
func (b *Board) During(workload string, pid uint32, from, to int64, n int) []Link {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.recent[workload]
	if list == nil {
		return nil
	}
	var found []Link
	for i := range list {
		m := &list[i]
		for _, s := range m.spans {
			if s.From <= to && s.To >= from && (pid == 0 || s.PID == 0 || s.PID == pid) {
				found = append(found, s)
			}
		}
	}
	slices.SortFunc(found, func(x, y Link) int {
		return cmp.Or(cmp.Compare(y.To-y.From, x.To-x.From), cmp.Compare(x.From, y.From), slices.Compare(x.ID[:], y.ID[:]))
	})
	return found[:min(n, len(found))]
}
