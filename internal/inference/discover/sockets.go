package discover

import (
	"cmp"
	"errors"
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

// held returns the listening sockets of processes. Of several sockets at the same address of a namespace,
// which share its connections, there is one.
func (p *processes) held(candidates set) []held {
	namespaces := map[uint64]map[uint64]listener{}
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
			namespaces[namespace] = p.listeners(pid)
		}
		all := namespaces[namespace]
		p.look(self, all)
		for _, inode := range self.holds {
			l, listens := all[inode]
			other, shared := found[inode]
			if listens && (!shared || first(self, other.holder)) {
				found[inode] = held{l, namespace, self}
			}
		}
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
		return cmp.Or(cmp.Compare(a.holder.pid, b.holder.pid), a.address.Compare(b.address), cmp.Compare(a.inode, b.inode))
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
		b, err := readFile(p.path(pid, name))
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
func (p *processes) look(self *process, all map[uint64]listener) {
	news := self.looked == nil
	for inode := range all {
		news = news || !self.looked[inode]
	}
	if !news {
		return
	}
	looked, holds := map[uint64]bool{}, []uint64(nil)
	err := p.files(self.pid, func(inode uint64) {
		if _, ok := all[inode]; ok && !slices.Contains(holds, inode) {
			holds = append(holds, inode)
		}
	})
	if err != nil {
		p.note(err)
		self.looked, self.holds = nil, nil
		return
	}
	for inode := range all {
		looked[inode] = true
	}
	self.looked, self.holds = looked, holds
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
