// Package discover finds the inference engines of a machine without configuration: the processes that
// are on a device, the process trees and control groups around them, and the sockets on which those
// listen, each in its own network namespace.
//
// A socket is asked once whether an engine is behind it, with requests that change nothing, and the
// answer is remembered for as long as its process lives. What holds no device is never asked.
package discover

import (
	"cmp"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Engine is an inference engine on this machine.
type Engine struct {
	// ID identifies the engine on this machine for as long as its process lives, also across restarts of the
	// agent. It changes once if the owner of the process becomes known only later.
	ID string
	// Target is where its metrics page is, and how it is reached.
	Target inference.Target
	// Addresses are where its page can be reached from the network namespace of the agent, on all ports that show it. The
	// URL of the target is valid only in that of the engine.
	Addresses []netip.AddrPort
	// Workload owns the process that serves the page, nil if that is unknown.
	Workload *workload.Workload
	// Devices are the devices and partitions that the engine works on, in the order of the tick.
	Devices []device.ID
	// Started is when the process that serves the page began, zero if unknown.
	Started time.Time
}

// engines returns the engines that are known.
func (s *scanner) engines() []*engine {
	var list []*socket
	reached := map[*socket][]netip.AddrPort{}
	for _, group := range s.alike() { // one process may show the same page on several ports
		own := distinct(group)
		list = append(list, own...)
		for _, x := range group {
			i := slices.IndexFunc(own, func(other *socket) bool { return x == other || !x.apart(other) && !slices.Contains(own, x) })
			if i >= 0 && x.path == own[i].path {
				reached[own[i]] = append(reached[own[i]], x.reached...)
			}
		}
	}
	slices.SortFunc(list, func(a, b *socket) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.pid, b.pid), byPort(a, b))
	})
	out := make([]*engine, 0, len(list))
	s.crowded = 0
	many := map[uint32]int{}
	for _, x := range list {
		if many[x.pid]++; many[x.pid] > maxPages || len(out) == maxEngines {
			s.crowded++
			continue
		}
		u := x.endpoint.url(x.scheme)
		u.Path = x.path
		e := &engine{
			reached: reached[x],
			key:     x.key, endpoint: x.endpoint, target: inference.Target{URL: u, Client: x.client, Format: x.format},
			name: s.name(x.pid), near: of(s.below(x.pid)), tree: of(s.tree(x.pid)), group: of(s.peers[s.all[x.pid].group]),
		}
		if !s.boot.IsZero() {
			const ticks = 100 // per second, on every architecture
			e.started = s.boot.Add(time.Duration(x.start) * (time.Second / ticks)).UTC()
		}
		out = append(out, e)
	}
	return out
}

// byPort compares sockets of one process.
func byPort(a, b *socket) int {
	return cmp.Or(cmp.Compare(a.address.Port(), b.address.Port()), a.address.Compare(b.address), cmp.Compare(a.inode, b.inode))
}

func of(pids []uint32) set {
	out := make(set, len(pids))
	for _, pid := range pids {
		out[pid] = true
	}
	return out
}

// name returns the name of the program that a process runs.
func (s *scanner) name(pid uint32) string {
	name := s.all[pid].name
	if link, err := os.Readlink(s.path(pid, "exe")); err == nil {
		name = filepath.Base(strings.TrimSuffix(link, " (deleted)"))
	}
	return strings.ToValidUTF8(name[:min(len(name), 64)], "?")
}
