package sender

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxTable   = 1 << 24 // bytes read of a table of sockets
	maxOpen    = 4096    // open files examined of a process
	maxPeers   = 1024
	eachSearch = 100 * time.Millisecond // between two searches in the long run: each reads all sockets, and may look at all processes
	searches   = 32                     // at once, as when applications start together
	forgetNone = 10 * time.Second       // a socket whose process was not found
)

// sockets finds the processes at the other end of connections to this one.
type sockets struct {
	proc, own string

	mu      sync.Mutex
	known   map[netip.AddrPort]socket
	next    time.Time // when the next search would be allowed if none were saved up
	skipped atomic.Uint64
}

// socket is a socket of a process. link is the name of its open file.
type socket struct {
	pid   uint32
	link  string
	inode string
	until time.Time // of one that was not found
}

func newSockets(proc, own string) *sockets {
	return &sockets{proc: proc, own: own, known: map[netip.AddrPort]socket{}}
}

// owner returns the process at the other end of a connection, 0 if it is not on this machine or not
// visible. likely are processes that are looked at first.
func (s *sockets) owner(peer netip.AddrPort, likely []uint32, now time.Time) uint32 {
	peer = plain(peer)
	if !peer.IsValid() || !peer.Addr().IsLoopback() {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.known[peer]; ok {
		if k.pid == 0 && now.Before(k.until) {
			return 0
		}
		if k.pid != 0 { // the port may belong to another connection by now
			if target, err := os.Readlink(k.link); err == nil && target == k.inode {
				return k.pid
			}
		}
		delete(s.known, peer)
	}
	if now.Add((searches - 1) * eachSearch).Before(s.next) {
		s.skipped.Add(1)
		return 0
	}
	if s.next.Before(now) {
		s.next = now
	}
	s.next = s.next.Add(eachSearch)
	k := socket{until: now.Add(forgetNone)}
	if inode, ok := s.inode(peer); ok {
		k.inode = "socket:[" + strconv.FormatUint(inode, 10) + "]"
		k.pid, k.link = s.search(k.inode, likely)
	}
	if len(s.known) >= maxPeers {
		clear(s.known)
	}
	s.known[peer] = k
	return k.pid
}

// inode returns the inode of the socket whose address is peer and that is connected to a socket of this
// network namespace.
func (s *sockets) inode(peer netip.AddrPort) (uint64, bool) {
	var all []connection
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(s.own, "net", name))
		if err != nil {
			continue
		}
		all = append(all, parseSockets(io.LimitReader(f, maxTable))...)
		f.Close()
	}
	for _, ours := range all {
		if ours.remote != peer {
			continue
		}
		for _, c := range all {
			if c.local == peer && c.remote == ours.local && c.inode != 0 {
				return c.inode, true
			}
		}
	}
	return 0, false
}

// search returns the process that has a socket open.
func (s *sockets) search(inode string, likely []uint32) (pid uint32, link string) {
	for _, pid := range likely {
		if link := s.open(pid, inode); link != "" {
			return pid, link
		}
	}
	list, err := os.ReadDir(s.proc)
	if err != nil {
		return 0, ""
	}
	for _, e := range list {
		n, err := strconv.ParseUint(e.Name(), 10, 31)
		if err != nil {
			continue
		}
		if link := s.open(uint32(n), inode); link != "" {
			return uint32(n), link
		}
	}
	return 0, ""
}

// open returns the name of the open file of a process that is a socket.
func (s *sockets) open(pid uint32, inode string) string {
	dir := filepath.Join(s.proc, strconv.FormatUint(uint64(pid), 10), "fd")
	f, err := os.Open(dir)
	if err != nil {
		return ""
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxOpen)
	for _, name := range names {
		link := filepath.Join(dir, name)
		if target, err := os.Readlink(link); err == nil && target == inode {
			return link
		}
	}
	return ""
}

// connection is a line of a table of sockets.
type connection struct {
	local, remote netip.AddrPort
	inode         uint64
}

// parseSockets parses /proc/net/tcp and tcp6, and skips what is not an established connection.
func parseSockets(r io.Reader) []connection {
	const established = "01"
	var list []connection
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != established {
			continue
		}
		local, ok := parseAddress(f[1])
		remote, also := parseAddress(f[2])
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if !ok || !also || err != nil {
			continue
		}
		list = append(list, connection{local, remote, inode})
	}
	return list
}

// parseAddress parses an address such as 0100007F:10DD: words of 32 bits in the order of the machine, and
// the port.
func parseAddress(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	n, bad := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || bad != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	a, _ := netip.AddrFromSlice(raw)
	return plain(netip.AddrPortFrom(a, uint16(n))), true
}

// plain returns an address without the form of IPv4 in IPv6 and without a zone.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
