package discover

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// Limits of a scan. What is beyond them is counted; no real machine comes close.
const (
	maxProcesses  = 1 << 17  // of the machine
	maxCandidates = 4096     // processes around devices
	maxFiles      = 1 << 16  // open files of a process
	maxFile       = 1 << 20  // bytes of a file in /proc
	maxSocketFile = 32 << 20 // bytes of one with sockets: 200,000 that listen
)

// process is what is remembered about a process.
type process struct {
	stat
	pid   uint32
	group string // control group of its container, service or job, empty if it is in none
	age   int    // in scans
	round int    // the scan that read it last
	// looked are the listening sockets of its namespace when its open files were last read, and holds
	// those among them that it has open.
	looked *space
	holds  []uint64
}

// processes remembers the processes of the machine between scans. Reading all of them each time would
// cost more than the readings of their devices.
type processes struct {
	proc  string
	all   map[uint32]*process
	kids  map[uint32][]uint32 // processes by parent
	peers map[string][]uint32 // processes by control group of a container, service or job
	round int

	unreadable int // files of the last scan that could not be read, although their process is there
	rejected   int // processes beyond the limits
}

// every is how often a known process is read again that has nothing to do with a device, in scans: its pid
// may have been reused since the last scan, which takes as many new processes as there are pids.
const every = 10

// refresh finds new processes, forgets those that ended, and reads again those that are near.
func (p *processes) refresh(near func(pid uint32) bool) error {
	p.round++
	p.unreadable, p.rejected = 0, 0
	pids, err := p.list()
	if err != nil {
		return err
	}
	before := p.all
	p.all = make(map[uint32]*process, len(pids))
	for _, pid := range pids {
		if old := before[pid]; old != nil {
			old.age++
			p.all[pid] = old
		}
	}
	for _, pid := range pids {
		// A young process may still be on its way into its container.
		old := p.all[pid]
		if old == nil || old.age < 3 || (int(pid)+p.round)%every == 0 || near(pid) || p.all[old.parent] == nil {
			p.read(pid)
		}
	}
	p.kids, p.peers = map[uint32][]uint32{}, map[string][]uint32{}
	for _, pid := range slices.Sorted(maps.Keys(p.all)) {
		self := p.all[pid]
		p.kids[self.parent] = append(p.kids[self.parent], pid)
		// In the group of the first process is the machine, or the container in which the agent is.
		if first := p.all[1]; self.group != "" && (first == nil || self.group != first.group) {
			p.peers[self.group] = append(p.peers[self.group], pid)
		}
	}
	return nil
}

// list returns the pids of the machine.
func (p *processes) list() ([]uint32, error) {
	folder, err := os.Open(p.proc)
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	defer folder.Close()
	var pids []uint32
	for {
		names, err := folder.Readdirnames(4096)
		for _, name := range names {
			pid, err := strconv.ParseUint(name, 10, 32)
			switch {
			case err != nil || pid == 0:
			case len(pids) == maxProcesses:
				p.rejected++
			default:
				pids = append(pids, uint32(pid))
			}
		}
		if errors.Is(err, io.EOF) {
			return pids, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list processes: %w", err)
		}
	}
}

// read reads a process. A pid that was reused is another process, of which nothing is known.
func (p *processes) read(pid uint32) {
	old := p.all[pid]
	if old != nil && old.round == p.round {
		return
	}
	delete(p.all, pid)
	s, err := readStat(p.proc, pid)
	if err != nil || s.ended {
		p.note(err)
		return
	}
	now := old
	if old == nil || old.start != s.start {
		now = &process{pid: pid}
	}
	now.stat, now.round = s, p.round
	b, err := readFile(p.path(pid, "cgroup"))
	p.note(err)
	now.group = parseGroup(b)
	p.all[pid] = now
}

// note counts a file that could not be read, unless its process has ended.
func (p *processes) note(err error) {
	if err != nil && !ended(err) {
		p.unreadable++
	}
}

// ended reports whether a file of /proc could not be read because the process is gone.
func ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

func (p *processes) path(pid uint32, name string) string {
	return filepath.Join(p.proc, strconv.FormatUint(uint64(pid), 10), name)
}

func readStat(proc string, pid uint32) (stat, error) {
	file := filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), "stat")
	b, err := readFile(file)
	if err != nil {
		return stat{}, err
	}
	s, err := parseStat(b)
	if err != nil {
		return stat{}, fmt.Errorf("cannot parse %s: %w", file, err)
	}
	return s, nil
}

// readFile reads the beginning of a file.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	return b, nil
}

// set is a set of processes.
type set map[uint32]bool

// around returns the processes that belong to some processes, themselves included: their trees and
// control groups.
func (p *processes) around(seeds set) set {
	out := set{}
	done := map[string]bool{}
	add := func(pid uint32) {
		if !out[pid] && p.all[pid] != nil {
			if len(out) == maxCandidates {
				p.rejected++
				return
			}
			out[pid] = true
		}
	}
	for pid := range seeds {
		add(pid)
	}
	for _, pid := range slices.Sorted(maps.Keys(seeds)) {
		if p.all[pid] == nil {
			continue
		}
		for _, other := range p.tree(pid) {
			add(other)
		}
		if group := p.all[pid].group; !done[group] {
			done[group] = true
			for _, other := range p.peers[group] {
				add(other)
			}
		}
	}
	return out
}

// tree returns the tree of a process: itself, its ancestors in the same session, and what descends from
// these. vLLM's server is the parent of the process on the device, and TGI's router a sibling.
func (p *processes) tree(pid uint32) []uint32 {
	root := pid
	for range 64 { // a cycle is possible while pids are reused
		self := p.all[root]
		parent := p.all[self.parent]
		if parent == nil || parent.pid <= 1 || parent.session != self.session {
			break
		}
		// The shell of a person has other children, too.
		if parent.terminal && parent.session == parent.pid {
			break
		}
		root = parent.pid
	}
	return p.below(root)
}

// below returns a process and its descendants.
func (p *processes) below(pid uint32) []uint32 {
	out := []uint32{pid}
	seen := set{pid: true}
	for i := 0; i < len(out) && len(out) < maxCandidates; i++ {
		for _, kid := range p.kids[out[i]] {
			if !seen[kid] {
				seen[kid] = true
				out = append(out, kid)
			}
		}
	}
	return out
}
