package workloadprocessor

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
)

// name identifies a device on its host: by UUID, by the UUID of a partition, or by # and its
// index.
type name struct{ host, device string }

// fleet knows the holders of devices on many nodes from the agents' last data.
type fleet struct {
	expiry  time.Duration
	max     int
	now     func() time.Time
	refused atomic.Int64 // devices and holders beyond the limits

	mu      sync.RWMutex
	members map[name]*member // by UUID
	// known lists several members for a name used by two clusters: the name is ambiguous then.
	known map[name][]*member
	swept time.Time
}

// member is one device of the fleet.
type member struct {
	names   []name
	tick    pcommon.Timestamp // the agent's timestamp of holders
	seen    time.Time         // local time
	holders []holder
	gpu     gpu
}

func newFleet(cfg *Config) *fleet {
	return &fleet{
		expiry: cfg.Expiry, max: cfg.MaxDevices, now: time.Now,
		members: map[name]*member{}, known: map[name][]*member{},
	}
}

// device implements registry. Without a host nothing matches: the gateway's own node is not
// the one that telemetry is about.
func (f *fleet) device(n *names) owner {
	none := owner{outcome: unmatched}
	key := name{n[roleHost], n[roleUUID]}
	switch {
	case key.host == "":
		return none
	case key.device != "":
	case n[rolePartition] != "":
		key.device = n[rolePartition]
	case n[roleIndex] != "":
		key.device = "#" + n[roleIndex]
	default:
		return none // a PCI address: agents do not report it with the owner
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	found := f.known[key]
	switch {
	case len(found) > 1:
		return owner{outcome: ambiguous}
	case len(found) == 0 || f.now().Sub(found[0].seen) > f.expiry:
		return none
	}
	return found[0].gpu.who(n)
}

// runner implements registry. Processes and containers of other nodes are unknown, and pids
// are only unique per node.
func (*fleet) runner(*names) owner { return owner{outcome: unmatched} }

// merge adds one batch.
func (f *fleet) merge(drafts map[name]*member) {
	if len(drafts) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	// Also sweep when full: expired devices make room for new ones.
	if since := now.Sub(f.swept); since > f.expiry/4 || len(f.members) >= f.max && since > f.expiry/64 {
		f.sweep(now)
	}
	for key, d := range drafts {
		old, ok := f.members[key]
		switch {
		case now.Sub(d.tick.AsTime()) > f.expiry:
			continue // stale data from a persistent queue
		case !ok && len(d.holders) == 0:
			continue
		case !ok && len(f.members) >= f.max:
			f.refused.Add(1)
			continue
		case ok && d.tick < old.tick:
			continue // out of order
		case ok && d.tick == old.tick: // the rest of a split batch
			d.join(old)
		}
		d.seen = now
		if ok {
			f.remove(key, old)
		}
		if len(d.holders) > 0 {
			f.add(key, d)
		}
	}
}

func (f *fleet) add(key name, m *member) {
	m.gpu = m.build(key.device)
	f.members[key] = m
	for _, n := range m.names {
		f.known[n] = append(f.known[n], m)
	}
}

func (f *fleet) remove(key name, m *member) {
	delete(f.members, key)
	for _, n := range m.names {
		rest := slices.DeleteFunc(f.known[n], func(o *member) bool { return o == m })
		if len(rest) == 0 {
			delete(f.known, n)
		} else {
			f.known[n] = rest
		}
	}
}

// sweep forgets devices that were not heard of for expiry.
func (f *fleet) sweep(now time.Time) {
	f.swept = now
	for key, m := range f.members {
		if now.Sub(m.seen) > f.expiry {
			f.remove(key, m)
		}
	}
}

// size returns the number of known devices.
func (f *fleet) size() int {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return len(f.members)
}

// join adds the first part of a split batch.
func (m *member) join(old *member) {
	for _, h := range old.holders {
		m.hold(h)
	}
	for _, n := range old.names {
		m.call(n)
	}
}

// maxHolders exceeds what an agent distinguishes on one device.
const maxHolders = 512

// hold adds a holder and reports whether there was room.
func (m *member) hold(h holder) bool {
	if slices.ContainsFunc(m.holders, func(o holder) bool {
		return o.kind == h.kind && o.partition == h.partition && slices.Equal(o.tags, h.tags)
	}) {
		return true
	}
	if len(m.holders) >= maxHolders {
		return false
	}
	m.holders = append(m.holders, h)
	return true
}

func (m *member) call(n name) {
	if n.host != "" && !slices.Contains(m.names, n) {
		m.names = append(m.names, n)
	}
}

// build returns the device with its partitions and their owners.
func (m *member) build(uuid string) gpu {
	g := gpu{part: part{id: uuid, owner: sole(m.holders)}}
	for i, h := range m.holders {
		if h.partition == "" || slices.ContainsFunc(m.holders[:i], func(o holder) bool { return o.partition == h.partition }) {
			continue
		}
		var there []holder
		for _, o := range m.holders {
			if o.partition == h.partition {
				there = append(there, o)
			}
		}
		g.partitions = append(g.partitions, part{id: h.partition, profile: h.profile, owner: sole(there)})
	}
	// The holder of a partition does not hold the device.
	if len(g.partitions) > 0 && g.outcome == matched {
		g.owner = owner{outcome: unmatched}
	}
	return g
}
