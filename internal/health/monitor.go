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

// Monitor follows a machine over time. It keeps as much recent history as the rules need and
// reports findings that opened, changed severity or closed. It is not safe for concurrent
// use.
type Monitor struct {
	// Expected is the number of physical devices there should be; 0 if unknown.
	Expected int

	moments  []Moment
	checked  time.Time
	down     map[string]bool       // devices that did not answer at the last check
	xids     map[string][]XIDSeen  // by device, or by PCI address if the driver does not list the device
	happened map[string][]Incident // by device
	switches []SXIDSeen
	known    []device.ID // physical devices seen since boot
	linksUp  map[string]bool
	open     map[findingID]*current
}

type findingID struct{ device, rule, key string }

func (f Finding) id() findingID { return findingID{f.Device.UUID, f.Rule, f.Key} }

// current is an open finding.
type current struct {
	Finding
	until time.Time // closed unless found again before
	grace time.Time // for restored findings: until then the history is too short to close it
}

// Event is something that happened to a device, with the affected workloads.
type Event struct {
	device.Event
	Workloads []workload.Workload
}

// Change is a finding that opened, changed its severity, or closed.
type Change struct {
	Finding
	Time  time.Time `json:"time"`
	Ended bool      `json:"ended,omitempty"`
}

// Bounds of what is kept and reported.
const (
	maxCodes   = 128 // XID codes per device
	maxChanges = 100 // per observation; the rest follow with the next ones
	maxSXIDs   = 256
	maxKnown   = 1024
	maxLinks   = 8192
)

// linger is how long a finding stays open after it was last found, so that flapping within
// seconds counts as one finding.
const linger = time.Minute

// patience is how long restored findings stay open: the longest lookback of any rule, plus
// a margin.
const patience = 7 * time.Minute

// pause is the minimum time between two checks without new events: rules look at minutes of
// history, and a check costs as much as reading a device.
const pause = 5 * time.Second

// Observe adds a moment and the events since the previous one, and returns what changed.
func (m *Monitor) Observe(now Moment, events []Event) []Change {
	for _, e := range events {
		m.hear(e, now)
	}
	now.Devices = slices.DeleteFunc(now.Devices, func(d Device) bool { return d.ID.Parent != "" }) // rules ignore partitions
	down := map[string]bool{}
	for i := range now.Devices {
		d := &now.Devices[i]
		m.adopt(d.ID)
		d.XIDs = counted(m.xids[d.ID.UUID], d.XIDs)
		d.Incidents = m.happened[d.ID.UUID]
		if !d.Up {
			down[d.ID.UUID] = true
		}
		m.learn(d)
	}
	m.remember(now)
	if len(events) == 0 && maps.Equal(down, m.down) && now.Time.Sub(m.checked) < pause && !now.Time.Before(m.checked) {
		return nil
	}
	m.checked, m.down = now.Time, down
	found := Check(Machine{Moments: m.moments, Expected: m.Expected, Known: m.known, LinksUp: m.linksUp, Switches: m.switches, Unlisted: m.unlisted(&now)})
	return m.compare(found, now.Time)
}

// learn records that a device is present and which of its links are up.
func (m *Monitor) learn(d *Device) {
	if len(m.known) < maxKnown && !slices.ContainsFunc(m.known, func(id device.ID) bool { return id.UUID == d.ID.UUID }) {
		m.known = slices.DeleteFunc(slices.Clone(m.known), func(id device.ID) bool { return id.PCI != "" && id.PCI == d.ID.PCI })
		m.known = append(m.known, d.ID)
	}
	for _, c := range d.Interconnects {
		for _, l := range c.Links {
			if !set(l.Up) {
				continue
			}
			if name := linkName(d.ID.UUID, c.Type, l.Index); !m.linksUp[name] && len(m.linksUp) < maxLinks {
				m.linksUp = maps.Clone(m.linksUp) // a State still refers to the old map
				if m.linksUp == nil {
					m.linksUp = map[string]bool{}
				}
				m.linksUp[name] = true
			}
		}
	}
}

// counted updates the remembered codes with the driver's counts: in a storm not every error
// becomes an event.
func counted(seen, counts []XIDSeen) []XIDSeen {
	out := slices.Clone(seen)
	for i := range out {
		for _, c := range counts {
			if c.Code == out[i].Code && out[i].Link == "" { // the driver counts all links of a code together
				out[i].Count = max(out[i].Count, c.Count)
			}
		}
	}
	return out
}

// hear records an error reported by a driver.
func (m *Monitor) hear(e Event, now Moment) {
	at := e.Time
	if at.After(now.Time) { // the event arrived while devices were read, or the clock was set back
		at = now.Time
	}
	switch e.Name {
	case device.EventXID:
		m.hearXID(e, at, now)
	case device.EventReset, device.EventHang:
		m.hearIncident(e, at, now)
	case device.EventSXID:
		s := SXIDSeen{Code: e.Code, PCI: e.PCI, Last: at, Message: e.Message, Fatal: strings.HasPrefix(e.Message, "Fatal")}
		m.switches = slices.Clone(m.switches)
		if i := slices.IndexFunc(m.switches, func(o SXIDSeen) bool { return o.Code == s.Code && o.PCI == s.PCI }); i >= 0 {
			s.Fatal = s.Fatal || m.switches[i].Fatal
			m.switches[i] = s
			return
		}
		if len(m.switches) == maxSXIDs { // evict the oldest nonfatal error
			i := slices.IndexFunc(m.switches, func(o SXIDSeen) bool { return !o.Fatal && !always(o.Code) })
			if i < 0 {
				return
			}
			m.switches = slices.Delete(m.switches, i, i+1)
		}
		m.switches = append(m.switches, s)
	}
}

// deviceOf returns the UUID of the physical device of an event, empty if unknown.
func deviceOf(e Event, now Moment) string {
	uuid := e.Device
	for _, d := range now.Devices {
		if uuid == "" && d.ID.PCI == e.PCI && d.ID.Parent == "" {
			uuid = d.ID.UUID
		}
		if d.ID.UUID == uuid && d.ID.Parent != "" {
			uuid = d.ID.Parent
		}
	}
	return uuid
}

func (m *Monitor) hearIncident(e Event, at time.Time, now Moment) {
	uuid := deviceOf(e, now)
	if uuid == "" {
		return
	}
	if m.happened == nil {
		m.happened = map[string][]Incident{}
	}
	list := slices.Clone(m.happened[uuid]) // moments still refer to the old slice
	i := slices.IndexFunc(list, func(o Incident) bool { return o.Name == e.Name })
	if i < 0 {
		list, i = append(list, Incident{Name: e.Name}), len(list)
	}
	if at.Sub(list[i].Last) >= Span {
		list[i].Count = 0 // a new incident
	}
	list[i] = Incident{Name: e.Name, Count: list[i].Count + 1, Last: at, Message: e.Message, Workloads: e.Workloads}
	m.happened[uuid] = list
}

func (m *Monitor) hearXID(e Event, at time.Time, now Moment) {
	uuid := cmp.Or(deviceOf(e, now), e.PCI)
	var since time.Time
	if uuid == "" || m.xids[uuid] == nil && len(m.xids) >= maxKnown {
		return
	}
	for _, d := range now.Devices {
		if d.ID.UUID == uuid {
			since = d.Since
		}
	}
	if m.xids == nil {
		m.xids = map[string][]XIDSeen{}
	}
	said := ExplainXID(e.Code, e.Message)
	list := slices.Clone(m.xids[uuid]) // moments still refer to the old slice
	i := slices.IndexFunc(list, func(x XIDSeen) bool { return x.Code == e.Code && x.Link == said.Link })
	if i < 0 {
		if len(list) == maxCodes {
			return // no device has that many codes; the driver's counts cover the rest
		}
		list, i = append(list, XIDSeen{Code: e.Code, Link: said.Link}), len(list)
	}
	x := &list[i]
	x.Count++
	// A code that requires a reset is not replaced by a harmless occurrence of the same code,
	// except that the driver itself says when nothing is required anymore.
	worse := x.Count > 1 && x.Code != recoveryXID && !since.After(x.Last) && ExplainXID(x.Code, x.Message).Severity > said.Severity
	if !worse {
		x.Last, x.Message, x.PID, x.Process, x.Workloads = at, e.Message, e.PID, e.Process, e.Workloads
	}
	m.xids[uuid] = list
}

// remember keeps moments of the last minute at least 5 seconds apart and older ones half a
// minute apart. No rule needs finer history, and a machine with 64 devices must stay small.
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
		// Drop a moment that is closer than gap to the previous one, unless it is the last.
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

// compare updates the open findings and returns what opened, changed and closed.
func (m *Monitor) compare(found []Finding, now time.Time) []Change {
	if m.open == nil {
		m.open = map[findingID]*current{}
	}
	var changes []Change
	for _, f := range found {
		id := f.id()
		old, ok := m.open[id]
		if ok {
			f.Since = minTime(f.Since, old.Since)
			if len(old.Workloads) > 0 && f.Rule != "gpu.xid" {
				f.Workloads = old.Workloads // the workloads first affected
			}
			if f.Severity < old.Severity && now.Before(old.grace) {
				old.until = now.Add(linger)
				continue
			}
		}
		if !ok || old.Severity != f.Severity {
			if len(changes) == maxChanges {
				continue // not open yet; reported by the next observation
			}
			m.open[id] = &current{Finding: f, until: now.Add(linger)}
			changes = append(changes, Change{Finding: f, Time: now})
			continue
		}
		old.Finding = f
		if until := now.Add(linger); until.After(old.until) {
			old.until = until
		}
	}
	for id, f := range m.open {
		if m.down[id.device] && f.Rule != "gpu.lost" && f.Rule != "gpu.needs_reset" {
			f.until = now.Add(linger) // an unresponsive device cannot show that the problem is over
		}
		if now.Before(f.until) || len(changes) >= maxChanges {
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

// Findings returns the open findings, most severe first.
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

// State is what survives a restart, so that a persisting finding is not reported again.
type State struct {
	Open     []Finding             `json:"open,omitempty"`
	XIDs     map[string][]XIDSeen  `json:"xids,omitempty"`
	Happened map[string][]Incident `json:"happened,omitempty"`
	Switches []SXIDSeen            `json:"switches,omitempty"`
	Known    []device.ID           `json:"known,omitempty"`
	LinksUp  []string              `json:"links_up,omitempty"`
}

// State returns the state to persist. The caller must not modify it.
func (m *Monitor) State() State {
	return State{
		Open: m.Findings(), XIDs: maps.Clone(m.xids), Happened: maps.Clone(m.happened), Switches: m.switches, Known: m.known,
		LinksUp: slices.Sorted(maps.Keys(m.linksUp)),
	}
}

// Restore loads the state of a previous process at time now. Findings that are not found
// again within patience are closed.
func (m *Monitor) Restore(s State, now time.Time) {
	m.open = map[findingID]*current{}
	for _, f := range s.Open {
		f.Since = minTime(f.Since, now) // the clock may have been wrong
		m.open[f.id()] = &current{Finding: f, until: now.Add(patience), grace: now.Add(patience)}
	}
	m.xids = map[string][]XIDSeen{}
	for uuid, list := range s.XIDs {
		list = slices.Clone(list[:min(len(list), maxCodes)])
		for i := range list {
			list[i].Last = minTime(list[i].Last, now)
		}
		m.xids[uuid] = list
	}
	m.happened = map[string][]Incident{}
	for uuid, list := range s.Happened {
		m.happened[uuid] = slices.Clone(list[:min(len(list), maxCodes)])
	}
	m.switches = s.Switches[:min(len(s.Switches), maxSXIDs)]
	m.known = s.Known[:min(len(s.Known), maxKnown)]
	m.linksUp = map[string]bool{}
	for _, name := range s.LinksUp[:min(len(s.LinksUp), maxLinks)] {
		m.linksUp[name] = true
	}
}
