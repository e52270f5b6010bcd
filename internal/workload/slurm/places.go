package slurm

import (
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
)

const (
	maxPlaces = 4096 // processes remembered
	// Slurm moves a process into its group as it starts it, and never out. One that is in
	// none may be about to be moved.
	remember     = 5 * time.Minute
	rememberNone = 10 * time.Second
)

// places finds where in Slurm processes are. It may be used concurrently.
type places struct {
	proc string

	mu      sync.Mutex
	known   map[process]placed
	evicted uint64
}

// process is one process for ever: the kernel gives a pid to another one later.
type process struct {
	pid   uint32
	start uint64
}

type placed struct {
	Place
	ok    bool
	until time.Time
}

func (p *places) find(pid uint32) (Place, bool, error) {
	st, err := cgroup.ReadStat(p.proc, pid)
	if err != nil {
		return Place{}, false, err
	}
	one, now := process{pid, st.Start}, time.Now()
	p.mu.Lock()
	a, hit := p.known[one]
	p.mu.Unlock()
	if hit && now.Before(a.until) {
		return a.Place, a.ok, nil
	}
	b, err := readFile(filepath.Join(p.proc, strconv.FormatUint(uint64(pid), 10), "cgroup"), 1<<16)
	if err != nil {
		return Place{}, false, err
	}
	a = placed{until: now.Add(rememberNone)}
	if a.Place, a.ok = ParseCgroup(b); a.ok {
		a.until = now.Add(remember)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.known) >= maxPlaces {
		p.forget(now)
	}
	p.known[one] = a
	return a.Place, a.ok, nil
}

// forget makes room: answers that are too old go, or all if none is.
func (p *places) forget(now time.Time) {
	before := len(p.known)
	for one, a := range p.known {
		if !now.Before(a.until) {
			delete(p.known, one)
		}
	}
	if len(p.known) == before {
		clear(p.known)
		p.evicted += uint64(before)
	}
}
