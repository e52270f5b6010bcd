package cost

import (
	"maps"
	"math/big"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sighting"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Rows returns a row for each device that lacks more than sampling explains: the time that nobody
// saw, and what it would cost. They are rows beside a bill, in none of its sums.
func (c *Coverage) Rows() []Row {
	list := c.Incomplete()
	out := make([]Row, 0, len(list))
	for i := range list {
		g := &list[i]
		labels := query.Labels{}
		maps.Copy(labels, g.labels)
		delete(labels, fleet.LabelIndex) // as in the rows of a bill
		labels[fleet.LabelUUID], labels[fleet.LabelKind] = g.UUID, fleet.KindNotSeen
		out = append(out, Row{Labels: labels, Amounts: Amounts{NotSeen: g.Unknown, NotSeenCost: g.Cost, Unpriced: g.Unpriced}})
	}
	return out
}

// NotSeen groups the time that nobody saw by one or more dimensions, as By groups a bill, and
// returns the sum.
func (c *Coverage) NotSeen(dims ...Dimension) ([]Group, Group) {
	s := Statement{Rows: c.Rows()}
	sum := Group{Name: "(" + fleet.KindNotSeen + ")", Devices: len(s.Rows)}
	for i := range s.Rows {
		sum.Amounts = sum.Add(s.Rows[i].Amounts)
	}
	return s.By(dims...), sum
}

// price returns what the unknown time of a device would cost, and how much of it has no price.
func (c *Coverage) price(p Prices, d *sighting.Device, labels query.Labels, why []Unknown) (cost Money, unpriced Seconds) {
	free := maps.Clone(labels)
	free[fleet.LabelKind] = fleet.KindUnallocated
	for _, u := range why {
		m, without := p.during(free, c.when(d, u.Why), u.Time)
		cost, unpriced = cost+m, unpriced+without
	}
	return cost, unpriced
}

// when returns the spans in which time of a device is unknown for a reason, the whole period if that
// is all that is known.
func (c *Coverage) when(d *sighting.Device, why string) []sighting.Span {
	switch {
	case why == NotSeenBefore:
		return []sighting.Span{{From: c.From, To: d.First}}
	case why == NotSeenSince:
		return []sighting.Span{{From: d.Last, To: c.To}}
	case why == Gap && len(d.Gaps) > 0:
		return d.Gaps
	}
	return []sighting.Span{{From: c.From, To: c.To}}
}

// during returns the cost of device time that is spread evenly over spans, at the mean of their
// prices. Without a price change that is the price.
func (p Prices) during(labels query.Labels, spans []sighting.Span, t Seconds) (cost Money, unpriced Seconds) {
	var all, priced int64 // microseconds
	weighted := new(big.Int)
	for _, s := range spans {
		edges := p.edges(s.From, s.To)
		for i, at := range edges[:len(edges)-1] {
			us := max(0, edges[i+1].Sub(at).Microseconds())
			all += us
			if x, ok := p.At(labels, at); ok {
				priced += us
				weighted.Add(weighted, new(big.Int).Mul(big.NewInt(us), big.NewInt(int64(x.PerHour))))
			}
		}
	}
	if priced == 0 || all == 0 {
		return 0, t
	}
	part := Seconds(muldiv(int64(t), priced, uint64(all)))
	mean := Nano(weighted.Quo(weighted, big.NewInt(priced)).Int64())
	return mean.Capacity(part), t - part
}
