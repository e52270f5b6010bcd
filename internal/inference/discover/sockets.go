package discover

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// held is a listening socket that a candidate holds.
type held struct {
	listener
	namespace uint64
	holder    *process // the one that started first, of several
}

// space has the listening sockets of a network namespace by inode, at a scan. All processes in it share it: there
// may be as many sockets as the machine has ports and addresses.
type space struct {
	listeners map[uint64]listener
	news      map[*space]bool // answers of since, during the scan
}

// since reports whether a socket listens that did not before.
func (s *space) since(before *space) bool {
	if before == nil {
		return true
	}
	news, known := s.news[before]
	if !known {
		for inode := range s.listeners {
			if _, there := before.listeners[inode]; !there {
				news = true
				break
			}
		}
		s.news[before] = news
	}
	return news
}

// held returns the listening sockets of processes. Of several sockets at the same address of a namespace,
// which share its connections, there is one.
func (p *processes) held(candidates set) []held {
	namespaces := map[uint64]*space{}
	found := map[uint64]held{} // by inode
	for _, pid := range slices.Sorted(maps.Keys(candidates)) {
		self := p.all[pid]
		link, err := os.Readlink(p.path(pid, "ns/net"))
		if err != nil {
			p.note(err)
			continue
		}
		namespace, ok := parseNamespace(link)
		if !ok {
			continue
		}
		if namespaces[namespace] == nil {
			namespaces[namespace] = &space{listeners: p.listeners(pid), news: map[*space]bool{}}
		}
		all := namespaces[namespace]
		p.look(self, all)
		for _, inode := range self.holds {
			l, listens := all.listeners[inode]
			other, shared := found[inode]
			if listens && (!shared || first(self, other.holder)) {
				found[inode] = held{l, namespace, self}
			}
		}
	}
	for _, all := range namespaces {
		all.news = nil // it refers to the scan before, which can be forgotten
	}
	type place struct {
		namespace uint64
		address   netip.AddrPort
	}
	places := map[place]held{}
	for _, h := range found {
		at := place{h.namespace, h.address}
		if other, ok := places[at]; !ok || first(h.holder, other.holder) || h.holder == other.holder && h.inode < other.inode {
			places[at] = h
		}
	}
	return slices.SortedFunc(maps.Values(places), func(a, b held) int {
		return cmp.Or(cmp.Compare(a.holder.pid, b.holder.pid), cmp.Compare(a.address.Port(), b.address.Port()), a.address.Compare(b.address), cmp.Compare(a.inode, b.inode))
	})
}

// first reports whether a process started before another.
func first(a, b *process) bool {
	return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.pid, b.pid)) < 0
}

// listeners returns the listening sockets in the network namespace of a process by inode, nil if they cannot be
// read.
func (p *processes) listeners(pid uint32) map[uint64]listener {
	var out map[uint64]listener
	for _, name := range []string{"net/tcp", "net/tcp6"} {
		b, err := readSockets(p.path(pid, name))
		if err != nil {
			p.note(err) // without IPv6 there is no tcp6
			continue
		}
		if out == nil {
			out = map[uint64]listener{}
		}
		list, bad := parseListeners(b)
		p.unreadable += bad
		for _, l := range list {
			out[l.inode] = l
		}
	}
	return out
}

// look reads the open files of a process, unless no socket listens that did not when they were last read:
// a server with many connections has many files.
func (p *processes) look(self *process, all *space) {
	if !all.since(self.looked) {
		if self.looked != nil {
			self.looked = all // the older one can be forgotten
		}
		return
	}
	var holds []uint64
	seen := map[uint64]bool{}
	err := p.files(self.pid, func(inode uint64) {
		if _, ok := all.listeners[inode]; ok && !seen[inode] {
			seen[inode] = true
			holds = append(holds, inode)
		}
	})
	if err != nil {
		p.note(err)
		self.looked, self.holds = nil, nil
		return
	}
	self.looked, self.holds = all, holds
}

// readSockets reads a file of sockets in /proc up to the last that listens: those come first, and a busy server has
// a million others.
func readSockets(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []byte
	for len(out) < maxSocketFile {
		begin := len(out)
		out = append(out, make([]byte, 1<<16)...)
		n, err := io.ReadFull(f, out[begin:])
		out = out[:begin+n]
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", name, err)
		}
		if !listens(out) {
			return out, nil
		}
	}
	return out, nil
}

// listens reports whether the last whole row of a file of sockets is of one that listens.
func listens(file []byte) bool {
	rows := bytes.Split(file[max(0, len(file)-1024):], []byte("\n"))
	if len(rows) < 3 {
		return false
	}
	fields := bytes.Fields(rows[len(rows)-2])
	return len(fields) > 3 && string(fields[3]) == "0A"
}

// files calls f for each socket that a process has open.
func (p *processes) files(pid uint32, f func(inode uint64)) error {
	folder, err := os.Open(p.path(pid, "fd"))
	if err != nil {
		return err
	}
	defer folder.Close()
	for n := 0; n < maxFiles; {
		names, err := folder.Readdirnames(1024)
		for _, name := range names {
			link, err := os.Readlink(p.path(pid, "fd/"+name))
			if err != nil {
				continue // closed meanwhile
			}
			if inode, ok := parseSocket(link); ok {
				f(inode)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		n += len(names)
	}
	p.rejected++
	return nil
}

// commands returns the command lines of processes, their words separated by spaces.
func (p *processes) commands(pids []uint32) string {
	var b strings.Builder
	for i, pid := range pids {
		if i == maxCommands {
			p.rejected++
			break
		}
		line, err := readFile(p.path(pid, "cmdline"))
		if err != nil {
			p.note(err)
			continue
		}
		b.WriteString(strings.ReplaceAll(string(line[:min(len(line), maxCommand)]), "\x00", " ") + "\n")
	}
	return b.String()
}

// maxCommands and maxCommand bound the command lines that are read for a socket, and their bytes.
const maxCommands, maxCommand = 256, 16 << 10

// isTensorRT reports whether command lines are of trtllm-serve.
func isTensorRT(commands string) bool {
	return strings.Contains(commands, "trtllm-serve") || strings.Contains(commands, "tensorrt_llm.commands.serve")
}

// names reports whether command lines have a port, as in --port 8000, --port=8000 or :8000.
func names(commands string, port uint16) bool {
	return slices.Contains(strings.FieldsFunc(commands, func(r rune) bool { return r < '0' || r > '9' }), strconv.Itoa(int(port)))
}
