package discover

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Limits of a scan. What is beyond them waits for the next.
const (
	maxAsked   = 256  // sockets per scan
	maxSockets = 8192 // sockets that are remembered
	maxOfOne   = 256  // sockets of a process, those with the lowest ports
	maxEngines = 256  // engines of a machine, the oldest
	maxPages   = 16   // engines of a process
	atATime    = 8    // sockets that are asked concurrently
	// maxClosed is how often a socket may hang up: a program that speaks another protocol does so each time.
	maxClosed = 3
)

// The first and the longest pause before an undecided socket is asked again.
const firstPause, longestPause = 30 * time.Second, 10 * time.Minute

// question is what a scan takes from the tick.
type question struct {
	at      time.Time
	pids    set             // processes on devices
	holders map[string]bool // workloads that hold a device, by ID
}

// key identifies a listening socket of a process.
type key struct {
	pid   uint32
	start uint64
	inode uint64
}

// socket is what is remembered about a listening socket for as long as its process lives.
type socket struct {
	key
	held
	answer
	endpoint *endpoint
	client   *http.Client
	asked    bool
	hint     workload.Page // what its pod says of it
	reached  []netip.AddrPort
	spared   bool // it is not asked
	tries    int  // that left it undecided
	closed   int  // times that it hung up, one after the other
	due      time.Time
	counts   map[string]float64 // counters of a page that another socket may have, too, at the last scan
	unlike   map[key]bool       // sockets of the same process that have a page of their own
	reason   string             // why it is unreachable
}

// scanner has what scans remember. One scan runs at a time.
type scanner struct {
	processes
	owner     func(pid uint32) (workload.Workload, bool)
	timeout   time.Duration
	ephemeral bool // ask sockets on ports that the kernel chose, too
	enter     func(namespace int) error
	slots     inference.Slots
	publish   func([]*engine, Status)

	boot       time.Time // zero if unknown
	sockets    map[key]*socket
	candidates set
	listening  int
	crowded    int // engines beyond the limits
}

// scan looks for engines once.
func (s *scanner) scan(ctx context.Context, q question) {
	if len(q.pids)+len(q.holders) == 0 && len(s.sockets) == 0 {
		s.publish(nil, Status{}) // nothing holds a device: there is nothing to look at
		return
	}
	if s.boot.IsZero() { // once: the start of a process must not change with the clock
		s.boot = bootTime(s.proc)
	}
	if err := s.refresh(func(pid uint32) bool { return q.pids[pid] || s.candidates[pid] }); err != nil {
		status := s.status()
		status.Err = err
		s.publish(s.engines(), status)
		return
	}
	s.candidates = s.around(s.seeds(q))
	for k, x := range s.sockets { // an engine stays one when the driver does not answer for a while
		if x.verdict == found && s.lives(k) {
			s.candidates[k.pid] = true
		}
	}
	delete(s.candidates, s.self()) // the agent may be in the control group of an engine
	s.keep(s.held(s.candidates), q.at)
	s.publish(s.engines(), s.status())
	s.askAll(ctx, q.at)
	s.tellApart(ctx)
	s.publish(s.engines(), s.status())
}

// seeds returns the processes that are on a device, or whose workload holds one.
func (s *scanner) seeds(q question) set {
	seeds := maps.Clone(q.pids)
	if s.owner != nil && len(q.holders) > 0 {
		for pid := range s.all {
			if w, ok := s.owner(pid); ok && q.holders[w.ID] {
				seeds[pid] = true
			}
		}
	}
	return seeds
}

// self returns the pid of the agent, 0 if the procfs is of another pid namespace.
func (s *scanner) self() uint32 {
	link, err := os.Readlink(filepath.Join(s.proc, "self"))
	if err != nil {
		return 0
	}
	pid, err := strconv.ParseUint(link, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(pid)
}

func (s *scanner) lives(k key) bool {
	p := s.all[k.pid]
	return p != nil && p.start == k.start
}

// keep remembers new sockets and forgets those that are closed, or whose process has ended.
func (s *scanner) keep(list []held, at time.Time) {
	s.listening = len(list)
	open, many := map[key]bool{}, map[uint32]int{}
	for _, h := range list {
		k := key{h.holder.pid, h.holder.start, h.inode}
		open[k] = true
		if many[k.pid]++; many[k.pid] > maxOfOne { // it must not crowd out others
			delete(open, k)
			s.rejected++
			continue
		}
		if x := s.sockets[k]; x != nil {
			x.held = h
			continue
		}
		if len(s.sockets) >= maxSockets {
			s.rejected++
			continue
		}
		e := &endpoint{proc: s.proc, pid: k.pid, start: k.start, namespace: h.namespace, address: h.address, timeout: s.timeout, enter: s.enter}
		s.sockets[k] = &socket{key: k, held: h, endpoint: e, client: inference.NewClient(e.transport(), s.timeout), due: at}
	}
	for k, x := range s.sockets {
		// What is known about a process that is on no device for a moment stays known.
		if !open[k] && (s.candidates[k.pid] || !s.lives(k)) {
			x.client.CloseIdleConnections()
			delete(s.sockets, k)
		}
	}
}

// hints notes what pods say of the sockets, and asks again where they say something new.
func (s *scanner) hints(at time.Time) {
	if s.owner == nil {
		return
	}
	for _, x := range s.sockets {
		if x.verdict == found || !s.candidates[x.pid] {
			continue
		}
		hint := workload.Page{}
		if w, ok := s.owner(x.pid); ok {
			for _, p := range slices.Backward(w.Pages) {
				if p.Port == 0 || p.Port == x.address.Port() {
					hint = p
				}
			}
		}
		if hint == (workload.Page{}) || hint == x.hint { // a source that is silent for a moment says nothing new
			continue
		}
		x.hint, x.verdict, x.spared, x.due, x.tries, x.closed = hint, undecided, false, at, 0, 0
	}
}

// inTurn orders sockets that are due: the new ones first, and among those the first of every process before the second
// of any, so that a process with many sockets does not hold up the others. Of the sockets of a process those come first
// at which its pod says that there is a page.
func inTurn(due []*socket) []*socket {
	plain := func(x *socket) int {
		if x.hint.Port == 0 {
			return 1
		}
		return 0
	}
	slices.SortFunc(due, func(a, b *socket) int {
		return cmp.Or(cmp.Compare(a.tries, b.tries), cmp.Compare(plain(a), plain(b)), cmp.Compare(a.pid, b.pid), cmp.Compare(a.address.Port(), b.address.Port()), cmp.Compare(a.inode, b.inode))
	})
	turns, turn := map[uint32]int{}, make(map[*socket]int, len(due))
	for _, x := range due {
		turn[x] = turns[x.pid]
		turns[x.pid]++
	}
	slices.SortStableFunc(due, func(a, b *socket) int { return cmp.Or(cmp.Compare(a.tries, b.tries), cmp.Compare(turn[a], turn[b])) })
	return due
}

// askAll asks the sockets whose time has come.
func (s *scanner) askAll(ctx context.Context, at time.Time) {
	s.hints(at)
	var due []*socket
	for _, x := range s.sockets {
		if x.due.Sub(at) > longestPause { // the clock was set back
			x.due = at
		}
		if s.candidates[x.pid] && x.verdict == undecided && !x.due.After(at) {
			due = append(due, x)
		}
	}
	due = inTurn(due)
	due = due[:min(len(due), maxAsked)]
	type reply struct {
		*socket
		answer
	}
	replies := make(chan reply)
	running := 0
	take := func() {
		r := <-replies
		running--
		if ctx.Err() != nil {
			return // an aborted request says nothing
		}
		if s.learn(r.socket, r.answer, at); r.verdict == found {
			s.publish(s.engines(), s.status())
		}
	}
	for _, x := range due {
		if ctx.Err() != nil {
			break
		}
		commands := s.commands(s.family(x.pid))
		if x.spared = x.hint.Port == 0 && s.spare(x, commands); x.spared {
			x.verdict = none
			continue
		}
		if running == atATime {
			take()
		}
		running++
		a := &asker{Target: inference.Target{URL: x.endpoint.url(cmp.Or(x.hint.Scheme, "http")), Client: x.client}, slots: s.slots, tensorRT: isTensorRT(commands), hint: x.hint.Path}
		go func() { replies <- reply{x, a.askEither(ctx)} }()
	}
	for running > 0 {
		take()
	}
}

// family returns the processes of the tree and the control group of a process.
func (s *scanner) family(pid uint32) []uint32 {
	out := append(s.tree(pid), s.peers[s.all[pid].group]...)
	slices.Sort(out)
	return slices.Compact(out)
}

// spare reports whether a socket must not be asked: it is on a port that the kernel chose. There NCCL,
// Gloo and PyTorch talk to each other, and old versions take a request for a message of theirs.
func (s *scanner) spare(x *socket, commands string) bool {
	if s.ephemeral {
		return false
	}
	first, last := uint16(32768), uint16(60999) // the kernel's defaults, which containers have
	if b, err := readFile(filepath.Join(s.proc, "sys/net/ipv4/ip_local_port_range")); err == nil {
		if a, b, err := parseRange(b); err == nil {
			first, last = a, b
		}
	}
	port := x.address.Port()
	return port >= first && port <= last && !names(commands, port)
}

// learn remembers what came of asking a socket.
func (s *scanner) learn(x *socket, a answer, at time.Time) {
	x.answer, x.asked, x.reason = a, true, ""
	if u, ok := errors.AsType[*unreachableError](a.err); ok {
		x.reason = u.reason
	}
	if x.closed++; !a.hungUp {
		x.closed = 0
	}
	if x.closed == maxClosed {
		x.verdict = none
	}
	if x.verdict == found {
		x.reached = x.endpoint.reached()
	}
	if x.verdict != undecided {
		if x.verdict == none {
			x.client.CloseIdleConnections()
		}
		return
	}
	pause := longestPause
	if x.tries < 10 {
		pause = min(longestPause, firstPause<<x.tries)
	}
	x.tries++
	x.due = at.Add(pause)
}

// status returns what the last scan found.
func (s *scanner) status() Status {
	out := Status{Processes: len(s.candidates), Sockets: s.listening, Unreadable: s.unreadable, Rejected: s.rejected + s.crowded}
	reasons := map[string]int{}
	for _, x := range s.sockets {
		if !s.candidates[x.pid] {
			continue
		}
		switch {
		case x.spared:
			out.Spared++
		case x.asked && x.reason != "":
			reasons[x.reason]++
		case x.asked:
			out.Asked++
			if x.verdict == undecided {
				out.Undecided++
			}
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		out.Unreachable = append(out.Unreachable, Unreachable{reason, reasons[reason]})
	}
	return out
}
