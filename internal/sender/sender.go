// Package sender finds the process, and with it the workload, that telemetry comes from: by what
// the telemetry says about itself, and by the connection it came by.
//
// What applications say is in the terms of their container: process 1 of a pod is another process
// on the host. A process ID therefore counts only together with something that tells the namespace:
// the container, the pod, the job, the sender's socket, or the name of this node.
//
// The package reads /proc/PID/status, and the sockets of processes of other users only as root or
// with CAP_SYS_PTRACE.
package sender

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Claims is what telemetry says about its sender. Empty is unknown.
type Claims struct {
	PID                    uint32 // in the sender's namespace
	Host                   string // host.name
	Container              string // ID without the prefix of the runtime
	PodUID, Pod, Namespace string
	ContainerName          string // in the pod
	SlurmJob               string
}

// Sender is whom telemetry comes from.
type Sender struct {
	// Workloads are the IDs of the workload, or of all those that match.
	Workloads []string
	PID       uint32 // on this machine; 0: unknown
}

// Known reports whether the sender was found.
func (s Sender) Known() bool { return len(s.Workloads) > 0 }

// Lookup is what is known about the workloads of this machine.
type Lookup interface {
	Process(pid uint32) (workload.Workload, bool)
	Container(id string) (workload.Workload, bool)
}

// Limits.
const (
	maxKnown      = 4096             // senders and containers each
	remember      = 10 * time.Second // a sender by its claims
	rememberAlong = 10 * time.Minute // a container that is gone, as long as its devices' past is known
)

// Finder finds senders. It is safe for concurrent use.
type Finder struct {
	lookup Lookup
	proc   string
	sock   *sockets
	now    func() time.Time

	mu         sync.Mutex
	hosts      [2]string // names of this node
	users      map[uint32]user
	holders    []workload.Workload
	seen       map[string]time.Time // holders by ID: when last on a device
	senders    map[Claims]found
	containers map[string]contained
}

// user is a process on a device, or one that was on a device until recently: its last spans come after it.
type user struct {
	gone     time.Time // zero: it is there
	start    uint64
	inner    []uint32 // its IDs from the host's namespace to its own
	workload string
}

type found struct {
	Sender

	until time.Time
}

type contained struct {
	id    string
	until time.Time
}

// New returns a Finder. proc is where the processes of the machine are, normally /proc; own is the proc
// of this process, whose sockets are those of its own network namespace: /proc/self.
func New(lookup Lookup, proc, own string) *Finder {
	f := &Finder{
		lookup: lookup, proc: proc, sock: newSockets(proc, own), now: time.Now,
		users: map[uint32]user{}, seen: map[string]time.Time{}, senders: map[Claims]found{}, containers: map[string]contained{},
	}
	return f
}

// See learns from a tick which processes and workloads use devices.
func (f *Finder) See(t *node.Tick) {
	users := map[uint32]user{}
	f.mu.Lock()
	old := f.users
	f.mu.Unlock()
	for i := range t.Readings {
		for _, p := range t.Readings[i].Processes {
			if _, ok := users[p.PID]; !ok {
				users[p.PID] = f.user(p.PID, old[p.PID])
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hosts = [2]string{t.Host, t.Resource["k8s.node.name"]}
	now := f.now()
	for pid, u := range old {
		if _, there := users[pid]; there || len(users) >= maxKnown {
			continue
		}
		if u.gone.IsZero() {
			u.gone = now
		}
		if now.Sub(u.gone) < rememberAlong {
			users[pid] = u
		}
	}
	f.users = users
	for i := range t.Readings {
		for _, h := range t.Readings[i].Holders {
			if h.Kind == workload.Unallocated || h.Kind == workload.Unattributed || h.Kind == workload.Other {
				continue
			}
			if j := slices.IndexFunc(f.holders, func(w workload.Workload) bool { return w.ID == h.ID }); j < 0 {
				f.holders = append(f.holders, h.Workload)
			} else if !h.Ended {
				f.holders[j] = h.Workload
			}
			f.seen[h.ID] = now
		}
	}
	f.holders = slices.DeleteFunc(f.holders, func(w workload.Workload) bool {
		gone := now.Sub(f.seen[w.ID]) > rememberAlong
		if gone {
			delete(f.seen, w.ID)
		}
		return gone
	})
	clear(f.senders) // a workload may have got a device
}

// user returns what is known of a process on a device. Its workload may be known later than itself.
func (f *Finder) user(pid uint32, old user) user {
	u := user{}
	start, ok := startOf(f.proc, pid)
	if u.start = start; ok && old.inner != nil && old.start == start {
		u.inner, u.workload = old.inner, old.workload
	} else {
		u.inner = innerOf(f.proc, pid)
	}
	if w, ok := f.lookup.Process(pid); ok {
		u.workload = w.ID
	}
	return u
}

// Find returns the sender of telemetry that came from peer, nil if that is unknown.
func (f *Finder) Find(c Claims, peer net.Addr) Sender {
	bare := c.Container == "" && c.PodUID == "" && c.Pod == "" && c.SlurmJob == ""
	var process uint32
	if bare { // only the connection tells which namespace the process ID is of
		if a, ok := peer.(*net.TCPAddr); ok {
			process = f.peer(a.AddrPort())
		}
		if process != 0 && c.PID != 0 && !slices.Contains(innerOf(f.proc, process), c.PID) {
			process = 0 // it forwards what others have sent
		}
		if process != 0 {
			return f.process(process)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if s, ok := f.senders[c]; ok && now.Before(s.until) {
		return s.Sender
	}
	s := f.named(c, bare, now)
	if len(f.senders) >= maxKnown {
		clear(f.senders)
	}
	f.senders[c] = found{s, now.Add(remember)}
	return s
}

func (f *Finder) peer(a netip.AddrPort) uint32 {
	f.mu.Lock()
	likely := make([]uint32, 0, len(f.users))
	for pid := range f.users {
		likely = append(likely, pid)
	}
	f.mu.Unlock()
	return f.sock.owner(a, likely, f.now())
}

// process returns a process of this machine as a sender.
func (f *Finder) process(pid uint32) Sender {
	f.mu.Lock()
	id := ""
	if u := f.users[pid]; u.gone.IsZero() {
		id = u.workload
	}
	f.mu.Unlock()
	if id == "" {
		w, ok := f.lookup.Process(pid)
		if !ok {
			return Sender{}
		}
		id = w.ID
	}
	return Sender{Workloads: []string{id}, PID: pid}
}

// named returns the sender that claims name.
func (f *Finder) named(c Claims, bare bool, now time.Time) Sender {
	if bare {
		return f.ofNode(c)
	}
	var s Sender
	if c.Container != "" {
		if id := f.container(c.Container, now); id != "" {
			s.Workloads = []string{id}
		}
	}
	if !s.Known() {
		for _, w := range f.holders {
			if c.match(&w) {
				s.Workloads = append(s.Workloads, w.ID)
			}
		}
	}
	if c.PID == 0 || !s.Known() {
		return s
	}
	for _, there := range []bool{true, false} {
		if s.PID = f.translate(c.PID, s.Workloads, there); s.PID != 0 {
			break
		}
	}
	return s
}

// translate returns the process on a device that has an ID in its own namespace and is of one of the
// workloads; 0 if there is none, or several, as in two containers of a pod.
func (f *Finder) translate(inner uint32, workloads []string, there bool) (found uint32) {
	for pid, u := range f.users {
		if u.gone.IsZero() != there || !slices.Contains(workloads, u.workload) || len(u.inner) == 0 || u.inner[len(u.inner)-1] != inner && pid != inner {
			continue
		}
		if found != 0 {
			return 0
		}
		found = pid
	}
	return found
}

// container returns the ID of the workload of a container, also for a while after it has ended.
func (f *Finder) container(id string, now time.Time) string {
	if w, ok := f.lookup.Container(id); ok {
		if len(f.containers) >= maxKnown {
			clear(f.containers)
		}
		f.containers[id] = contained{w.ID, now.Add(rememberAlong)}
		return w.ID
	}
	if c := f.containers[id]; now.Before(c.until) {
		return c.id
	}
	return ""
}

// match reports whether claims are about a workload.
func (c *Claims) match(w *workload.Workload) bool {
	is := func(key, want string) bool { return want == "" || w.Attributes[key] == "" || w.Attributes[key] == want }
	switch {
	case c.PodUID != "" && w.Attributes["k8s.pod.uid"] != "":
		return c.PodUID == w.Attributes["k8s.pod.uid"] && is("k8s.container.name", c.ContainerName)
	case c.Pod != "":
		return c.Pod == w.Attributes["k8s.pod.name"] && is("k8s.namespace.name", c.Namespace) && is("k8s.container.name", c.ContainerName)
	case c.SlurmJob != "":
		return c.SlurmJob == w.Attributes["slurm.job.id"]
	}
	return false
}

// ofNode returns the sender whose process ID and host are all that is known. A container that uses the
// host's network has the host's name and process IDs of its own.
func (f *Finder) ofNode(c Claims) Sender {
	if c.PID == 0 || c.Host == "" || c.Host != f.hosts[0] && c.Host != f.hosts[1] {
		return Sender{}
	}
	var candidates []uint32
	for pid, u := range f.users {
		if u.gone.IsZero() && len(u.inner) > 0 && u.inner[len(u.inner)-1] == c.PID {
			candidates = append(candidates, pid)
		}
	}
	pid := c.PID
	switch {
	case len(candidates) == 1:
		pid = candidates[0]
	case len(candidates) > 1 && !slices.Contains(candidates, c.PID):
		return Sender{} // several containers have such a process
	}
	w, ok := f.lookup.Process(pid)
	if inner := innerOf(f.proc, pid); !ok || len(inner) == 0 || inner[len(inner)-1] != c.PID {
		return Sender{}
	}
	return Sender{Workloads: []string{w.ID}, PID: pid}
}

// Skipped returns how many connections were not looked for, because too many were new.
func (f *Finder) Skipped() uint64 { return f.sock.skipped.Load() }
