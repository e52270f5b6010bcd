//go:build linux

package live

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

const (
	// hangAfter is how long a rank must have waited before others are named. Even if one rank
	// loads data, ranks enter a collective within seconds of each other.
	hangAfter = 10 * time.Second
	maxGroups = 1024
	maxRanks  = 1024 // per group on one machine
)

// groups joins the ranks of communicators across processes. It remembers ranks whose process
// exited without leaving the communicator, because the others wait for them.
type groups struct {
	gone map[rankKey]tracer.RankSeen
}

type rankKey struct {
	id   string
	rank int
}

// member is a rank of a group.
type member struct {
	tracer.RankSeen
	size    int
	waiting time.Time // since when its device waits; zero if it does not
	gone    bool
}

// update returns the groups, and for each since when a rank waits on its device or for a
// local rank; zero if none waits.
func (g *groups) update(processes []tracer.Process, now time.Time) (list []tracer.CommGroup, stalled []time.Time) {
	members := map[string][]member{}
	for _, p := range processes {
		for _, c := range p.Comms {
			// A communicator created before tracing has no rank, and its sequence starts anywhere.
			if c.Rank < 0 || c.Size <= 0 || c.ID == "" || c.Ended || c.Aborted {
				continue
			}
			seen := tracer.RankSeen{Rank: c.Rank, PID: p.PID, Sequence: c.Sequence, Last: c.LastEnter, LastOp: c.LastOp}
			if p.Ended {
				g.keep(rankKey{c.ID, c.Rank}, seen)
				continue
			}
			delete(g.gone, rankKey{c.ID, c.Rank})
			if len(members) >= maxGroups && members[c.ID] == nil || len(members[c.ID]) >= maxRanks {
				continue
			}
			m := member{RankSeen: seen, size: c.Size}
			for _, d := range p.Devices {
				if d.Ordinal == c.Device {
					m.waiting = d.WaitingSince
				}
			}
			members[c.ID] = append(members[c.ID], m)
		}
	}
	for k, seen := range g.gone {
		if len(members[k.id]) == 0 {
			delete(g.gone, k) // no rank is left that could wait for it
			continue
		}
		members[k.id] = append(members[k.id], member{RankSeen: seen, gone: true})
	}
	for _, id := range slices.Sorted(maps.Keys(members)) {
		s, since := group(id, members[id], now)
		list, stalled = append(list, s), append(stalled, since)
	}
	return list, stalled
}

func (g *groups) keep(k rankKey, seen tracer.RankSeen) {
	if g.gone == nil {
		g.gone = map[rankKey]tracer.RankSeen{}
	}
	if len(g.gone) < maxRanks {
		g.gone[k] = seen
	}
}

// group says how far each rank is, and which ranks have not arrived while another waits. Only
// local ranks are named: nothing is known about ranks on other machines.
func group(id string, members []member, now time.Time) (s tracer.CommGroup, stalled time.Time) {
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.PID, b.PID))
	})
	s.ID = id
	var furthest uint64
	for _, m := range members {
		s.Ranks = append(s.Ranks, m.RankSeen)
		s.Size = max(s.Size, m.size)
		furthest = max(furthest, m.Sequence)
	}
	for _, m := range members {
		if m.gone || m.Sequence < furthest || m.Last.IsZero() {
			continue
		}
		// A rank waits since it entered, unless it did something else first.
		since := m.Last
		if m.waiting.After(since) {
			since = m.waiting
		}
		if now.Sub(since) < hangAfter {
			continue
		}
		if s.Waiting.IsZero() || since.Before(s.Waiting) {
			s.Waiting = since
		}
		if !m.waiting.IsZero() && (stalled.IsZero() || since.Before(stalled)) {
			stalled = since
		}
	}
	if s.Waiting.IsZero() {
		return s, stalled
	}
	for _, m := range members {
		if m.Sequence < furthest && !slices.Contains(s.Behind, m.Rank) {
			s.Behind = append(s.Behind, m.Rank)
		}
	}
	if len(s.Behind) == 0 {
		s.Waiting = time.Time{} // idle, or all wait for a rank elsewhere
		return s, stalled
	}
	return s, s.Waiting
}
