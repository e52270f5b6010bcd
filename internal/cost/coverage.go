package cost

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sighting"
	"github.com/gpumeter/gpumeter/internal/natural"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Why device time of a period is unknown.
const (
	// NotSeenBefore: the store has no sample of the device before its first one in the period.
	NotSeenBefore = "not_seen_before"
	// NotSeenSince: the store has no sample after the last one.
	NotSeenSince = "not_seen_since"
	// NotSeen: the device was seen in the day before the period, but not in it.
	NotSeen = "not_seen"
	// Gap: no samples, or no accounts, in between: the agent or its connection was away.
	Gap = "gap"
	// Sampling: so little that the distance between samples and the ends of the period explains it.
	Sampling = "sampling"
)

// Unknown is device time that a bill lacks, and why.
type Unknown struct {
	Why  string  `json:"why"`
	Time Seconds `json:"seconds"`
}

// Covered is how much of a period the bill knows about one device.
type Covered struct {
	Node    string    `json:"node"`
	GPU     string    `json:"gpu"` // index
	UUID    string    `json:"uuid"`
	Model   string    `json:"model"`
	Known   Seconds   `json:"known_seconds"`
	Unknown Seconds   `json:"unknown_seconds"`
	Why     []Unknown `json:"why,omitempty"`
	// Cost is what the unknown time would cost, without energy, at the prices of the device itself:
	// nobody knows who held it.
	Cost Money `json:"cost"`
	// Unpriced is the part of Unknown without a price, which Cost does not include.
	Unpriced Seconds `json:"unpriced_seconds,omitempty"`

	labels query.Labels
}

// Priced reports whether any of the unknown time has a price.
func (g *Covered) Priced() bool { return g.Unpriced < g.Unknown || g.Unknown == 0 }

// Coverage is how much of a period a bill knows.
type Coverage struct {
	GPUs    []Covered `json:"gpus"` // by node and index
	Known   Seconds   `json:"known_seconds"`
	Unknown Seconds   `json:"unknown_seconds"`
	Cost    Money     `json:"cost"`
	// Unpriced is the part of Unknown without a price, which Cost does not include.
	Unpriced Seconds `json:"unpriced_seconds,omitempty"`

	// From and To are the period, and Tolerance what sampling alone may leave unknown of a device.
	From      time.Time     `json:"-"`
	To        time.Time     `json:"-"`
	Tolerance time.Duration `json:"-"`
}

// Incomplete returns the devices that lack more than sampling explains, the worst first.
func (c *Coverage) Incomplete() []Covered {
	out := slices.DeleteFunc(slices.Clone(c.GPUs), func(g Covered) bool { return g.Unknown.Duration() <= c.Tolerance })
	slices.SortStableFunc(out, func(a, b Covered) int { return cmp.Compare(b.Unknown/60e6, a.Unknown/60e6) })
	return out
}

// Cover compares the bill of a whole fleet, or of some of its machines, with the time that its
// devices could have had. A bill of some workloads has no coverage: the rest of a device is
// somebody else's.
func Cover(ctx context.Context, store query.Store, p Prices, s *Statement, match map[string]string) (*Coverage, error) {
	var seen map[string]*sighting.Device
	var err error
	var listing sync.WaitGroup
	listing.Go(func() { seen, err = sighting.Devices(ctx, store, match, s.From, s.To) })
	period := s.To.Sub(s.From)
	c := &Coverage{GPUs: []Covered{}, From: s.From, To: s.To, Tolerance: max(90*time.Second, period/1000)}
	known, labels := map[string]Seconds{}, map[string]query.Labels{}
	for i := range s.Rows {
		r := &s.Rows[i]
		uuid := r.about().device
		before, ok := known[uuid]
		if !ok {
			labels[uuid] = r.Labels
		}
		known[uuid] = before + r.Time()
	}
	if listing.Wait(); err != nil {
		return nil, err
	}
	for uuid, l := range labels {
		if seen[uuid] == nil {
			seen[uuid] = &sighting.Device{Labels: l, In: true}
		}
	}
	unknown := func(uuid string) Seconds { return max(0, Seconds(period.Microseconds())-known[uuid]) }
	var search []string
	for uuid, d := range seen {
		if d.In && unknown(uuid).Duration() > c.Tolerance {
			search = append(search, uuid)
		}
	}
	if err := sighting.Search(ctx, store, seen, search, s.From, s.To); err != nil {
		return nil, err
	}
	for _, uuid := range search { // a list of devices may reach beyond the period
		if d := seen[uuid]; d.First.IsZero() && known[uuid] == 0 {
			d.In = false
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(seen)) {
		d := seen[uuid]
		g := Covered{
			Node: fleet.NodeOf(d.Labels), GPU: d.Labels[fleet.LabelIndex], UUID: d.Labels[fleet.LabelUUID], Model: d.Labels[fleet.LabelModel],
			Known: known[uuid], Unknown: unknown(uuid), labels: fleet.OfMachine(d.Labels),
		}
		g.Why = c.why(d, g.Unknown)
		g.Cost, g.Unpriced = c.price(p, d, g.labels, g.Why)
		c.GPUs = append(c.GPUs, g)
		c.Known += g.Known
		c.Unknown += g.Unknown
		c.Cost += g.Cost
		c.Unpriced += g.Unpriced
	}
	slices.SortStableFunc(c.GPUs, func(a, b Covered) int {
		return cmp.Or(natural.Compare(a.Node, b.Node), natural.Compare(a.GPU, b.GPU))
	})
	return c, nil
}

// why divides the unknown time of a device by its reasons. The parts add up.
func (c *Coverage) why(d *sighting.Device, unknown Seconds) []Unknown {
	if unknown == 0 {
		return nil
	}
	if !d.In {
		return []Unknown{{NotSeen, unknown}}
	}
	if unknown.Duration() <= c.Tolerance {
		return []Unknown{{Sampling, unknown}}
	}
	var out []Unknown // a zero First is long before the period
	take := func(reason string, span time.Duration) {
		if t := min(Seconds(span.Microseconds()), unknown); t > 0 {
			out = append(out, Unknown{reason, t})
			unknown -= t
		}
	}
	if before := d.First.Sub(c.From); before > c.Tolerance {
		take(NotSeenBefore, before)
	}
	if after := c.To.Sub(d.Last); after > c.Tolerance && !d.Last.IsZero() {
		take(NotSeenSince, after)
	}
	take(Gap, unknown.Duration())
	slices.SortStableFunc(out, func(a, b Unknown) int { return cmp.Compare(b.Time, a.Time) })
	return out
}
