package health

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Monitor follows a machine: it keeps of the last minutes what the rules need, and tells
// what began and what ended. It is for one goroutine.
type Monitor struct {
	// Expected is how many physical devices there should be; 0: as many as there were.
	Expected int

	moments  []Moment
	xids     map[string][]XIDSeen // by device
	switches []SXIDSeen
	open     map[findingID]*current
	dropped  uint64
}

type findingID struct{ device, rule, key string }

func (f Finding) id() findingID { return findingID{f.Device.UUID, f.Rule, f.Key} }

// current is a finding that is open, and when it was last found.
type current struct {
	Finding
	last time.Time
}

// Event is something that happened to a device, and whom it hit.
type Event struct {
	device.Event
	Workloads []workload.Workload
}

// Change is a finding that began, whose severity changed, or that ended.
type Change struct {
	Finding
	Time  time.Time `json:"time"`
	Ended bool      `json:"ended,omitempty"`
}

// Bounds of what is kept and told.
const (
	maxCodes   = 128 // of XIDs on one device
	maxChanges = 100 // of one observation; the rest are told by the next ones
	maxSXIDs   = 256
)

// A finding that was not found for linger has ended. One that comes and goes each few
// seconds is one finding.
const linger = time.Minute

// Observe takes in what was read and what happened since the time before, and returns
// what changed.
func (m *Monitor) Observe(now Moment, events []Event) []Change {
	for _, e := range events {
		m.hear(e, now)
	}
	for i := range now.Devices {
		d := &now.Devices[i]
		d.XIDs = counted(m.xids[d.ID.UUID], d.XIDs)
	}
	m.remember(now)
	found := Check(Machine{Moments: m.moments, Expected: m.Expected, Switches: m.switches})
	return m.compare(found, now.Time)
}

// counted returns what is remembered of errors with how often each was counted: of a storm
// not every one is an event.
func counted(seen, counts []XIDSeen) []XIDSeen {
	out := slices.Clone(seen)
	for i := range out {
		for _, c := range counts {
			if c.Code == out[i].Code {
				out[i].Count = max(out[i].Count, c.Count)
			}
		}
	}
	return out
}

// hear remembers the errors that drivers reported.
func (m *Monitor) hear(e Event, now Moment) {
	switch e.Name {
	case device.EventXID:
		uuid := e.Device
		for _, d := range now.Devices {
			if uuid == "" && d.ID.PCI == e.PCI && d.ID.Parent == "" {
				uuid = d.ID.UUID
			}
			if d.ID.UUID == uuid && d.ID.Parent != "" {
				uuid = d.ID.Parent
			}
		}
		if uuid == "" {
			return
		}
		if m.xids == nil {
			m.xids = map[string][]XIDSeen{}
		}
		list := slices.Clone(m.xids[uuid]) // moments have the old one
		i := slices.IndexFunc(list, func(x XIDSeen) bool { return x.Code == e.Code })
		if i < 0 {
			if len(list) == maxCodes {
				return // no device has so many; what it counts says the rest
			}
			list, i = append(list, XIDSeen{Code: e.Code}), len(list)
		}
		x := &list[i]
		x.Count++
		x.Last, x.Message, x.PID, x.Process, x.Workloads = e.Time, e.Message, e.PID, e.Process, e.Workloads
		m.xids[uuid] = list
	case device.EventSXID:
		s := SXIDSeen{Code: e.Code, PCI: e.PCI, Last: e.Time, Message: e.Message, Fatal: strings.HasPrefix(e.Message, "Fatal")}
		m.switches = slices.DeleteFunc(slices.Clone(m.switches), func(o SXIDSeen) bool {
			return o.Code == s.Code && o.PCI == s.PCI || now.Time.Sub(o.Last) > Span
		})
		if len(m.switches) < maxSXIDs {
			m.switches = append(m.switches, s)
		}
	}
}

// remember keeps moments of the last minute 5 seconds apart or more and older ones half a
// minute: no rule looks closer, and a machine of 64 devices has to stay small.
func (m *Monitor) remember(now Moment) {
	if n := len(m.moments); n > 0 && !now.Time.After(m.moments[n-1].Time) {
		m.moments = nil // the clock was set back
	}
	kept := m.moments[:0:0]
	for i, old := range m.moments {
		age := now.Time.Sub(old.Time)
		gap := 5 * time.Second
		if age > time.Minute {
			gap = 30 * time.Second
		}
		// Its place is taken by one that is closer to it than gap, unless it is the last.
		if age > Span || len(kept) > 0 && old.Time.Sub(kept[len(kept)-1].Time) < gap && i < len(m.moments)-1 {
			continue
		}
		kept = append(kept, old)
	}
	if n := len(kept); n > 1 && kept[n-1].Time.Sub(kept[n-2].Time) < 5*time.Second {
		kept = kept[:n-1]
	}
	kept = append(kept, now)
	m.moments = kept
}

// compare returns what is new, and what is over.
func (m *Monitor) compare(found []Finding, now time.Time) []Change {
	if m.open == nil {
		m.open = map[findingID]*current{}
	}
	var changes []Change
	for _, f := range found {
		id := f.id()
		old, ok := m.open[id]
		if !ok || old.Severity != f.Severity {
			if len(changes) == maxChanges {
				m.dropped++
				continue // not open yet: the next observation tells it
			}
			if ok {
				f.Since = minTime(f.Since, old.Since)
			}
			m.open[id] = &current{f, now}
			changes = append(changes, Change{Finding: f, Time: now})
			continue
		}
		f.Since = minTime(f.Since, old.Since)
		if len(old.Workloads) > 0 {
			f.Workloads = old.Workloads // whom it hit first
		}
		*old = current{f, now}
	}
	for id, f := range m.open {
		if now.Sub(f.last) < linger && !now.Before(f.last) || len(changes) >= maxChanges {
			continue
		}
		delete(m.open, id)
		changes = append(changes, Change{Finding: f.Finding, Time: now, Ended: true})
	}
	slices.SortStableFunc(changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Device.Index, b.Device.Index), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	return changes
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Findings returns what is wrong now, the worst first.
func (m *Monitor) Findings() []Finding {
	out := make([]Finding, 0, len(m.open))
	for _, f := range m.open {
		out = append(out, f.Finding)
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(-cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Device.Index, b.Device.Index), cmp.Compare(a.Rule, b.Rule),
			cmp.Compare(a.Key, b.Key), cmp.Compare(a.Device.UUID, b.Device.UUID))
	})
	return out
}

// State is what outlives the process: a finding that goes on is not told again.
type State struct {
	Open []Finding            `json:"open,omitempty"`
	XIDs map[string][]XIDSeen `json:"xids,omitempty"`
}

// State returns what is to be kept. Nobody may change it.
func (m *Monitor) State() State { return State{Open: m.Findings(), XIDs: maps.Clone(m.xids)} }

// Restore takes up what another process left, at now. What is not found again within
// linger has ended meanwhile.
func (m *Monitor) Restore(s State, now time.Time) {
	m.open = map[findingID]*current{}
	for _, f := range s.Open {
		m.open[f.id()] = &current{f, now}
	}
	m.xids = map[string][]XIDSeen{}
	for uuid, list := range s.XIDs {
		m.xids[uuid] = list[:min(len(list), maxCodes)]
	}
}
