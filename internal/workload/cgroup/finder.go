package cgroup

import (
	"sync"
	"time"
)

const (
	maxCache = 4096 // processes remembered
	// remember is for how long an answer is used again. Runtimes and Slurm move a process
	// into its group as they start it, and never out; "in none" may become wrong and is
	// asked again sooner.
	remember     = 5 * time.Minute
	rememberNone = 10 * time.Second
)

// Finder finds what the control groups of processes say to a parser of /proc/PID/cgroup.
// It may be used concurrently.
type Finder[T any] struct {
	proc  string
	parse func([]byte) (T, bool)
	now   func() time.Time

	mu    sync.Mutex
	known map[process]answer[T]
}

// process is one process for ever: the kernel gives a pid to another one later.
type process struct {
	pid   uint32
	start uint64
}

type answer[T any] struct {
	value T
	ok    bool
	until time.Time
}

// NewFinder returns a Finder for the process files at proc, normally "/proc" or where that
// of the host is mounted.
func NewFinder[T any](proc string, parse func([]byte) (T, bool)) *Finder[T] {
	return &Finder[T]{proc: proc, parse: parse, now: time.Now, known: map[process]answer[T]{}}
}

// Find returns what the parser makes of the control groups of a process. The error of one
// that is gone, or is not in this PID namespace, is fs.ErrNotExist.
func (f *Finder[T]) Find(pid uint32) (value T, ok bool, err error) {
	st, err := ReadStat(f.proc, pid)
	if err != nil {
		return value, false, err
	}
	p, now := process{pid, st.Start}, f.now()
	f.mu.Lock()
	a, hit := f.known[p]
	f.mu.Unlock()
	if hit && now.Before(a.until) {
		return a.value, a.ok, nil
	}
	file, err := read(f.proc, pid, "cgroup")
	if err != nil {
		return value, false, err
	}
	a = answer[T]{until: now.Add(rememberNone)}
	if a.value, a.ok = f.parse(file); a.ok {
		a.until = now.Add(remember)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.known) >= maxCache {
		f.forget(now)
	}
	f.known[p] = a
	return a.value, a.ok, nil
}

// forget makes room: answers that are too old go, or all if none is. They are only asked
// again.
func (f *Finder[T]) forget(now time.Time) {
	before := len(f.known)
	for p, a := range f.known {
		if !now.Before(a.until) {
			delete(f.known, p)
		}
	}
	if len(f.known) == before {
		clear(f.known)
	}
}
