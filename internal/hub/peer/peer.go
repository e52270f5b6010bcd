// Package peer shares the capacity of a hub among its clients. No client can take all of it by
// sending slowly, by not reading an answer, by opening connections or by asking much.
//
// A request passes three stages. Its body is read outside of any turn, at a minimum pace, into
// memory that a Room accounts for. It is processed in a turn, which never waits for a client.
// Its answer is written after the turn, again at a minimum pace and accounted for.
package peer

import (
	"net"
	"net/netip"
	"time"
)

// Of returns the peer of a remote address: the IP address, or the /64 network of an IPv6
// address, because one machine can use all of it.
func Of(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if a = a.Unmap().WithZone(""); a.Is6() && !a.IsLoopback() {
		p, _ := a.Prefix(64) // valid for every IPv6 address
		return p.String()
	}
	return a.String()
}

// Pace is the minimum speed of a transfer. A client that stays below is cut off.
type Pace struct {
	Grace time.Duration // a transfer may stall for this long
	Rate  int64         // bytes per second
}

// DefaultPace cuts off a stalled client after 15 s and allows the slowest usable links.
var DefaultPace = Pace{Grace: 15 * time.Second, Rate: 4 << 10}

// Due returns when a transfer that began at start and has moved n bytes must have moved more.
func (p Pace) Due(start time.Time, n int64) time.Time {
	return start.Add(p.Grace + time.Duration(float64(n)/float64(p.Rate)*float64(time.Second)))
}
