package cgroup

import (
	"sync"
	"time"
)

const (
	maxCache = 4096 // number of processes cached
	// remember is how long an answer is cached. Runtimes and Slurm move a process into its
	// group when they start it, and never out; a negative answer may become wrong and is
	// cached for a shorter time.
	remember     = 5 * time.Minute
	rememberNone = 10 * time.Second
)

// Finder applies a parser to the /proc/PID/cgroup of processes and caches the results. It
// is safe for concurrent use.
type Finder[T any] struct {
	proc  string
	parse func([]byte) (T, bool)
	now   func() time.Time

	mu    sync.Mutex
	known map[process]answer[T]
}

// process identifies a process uniquely: PIDs are reused.
type process struct {
	pid   uint32
	start uint64
}

type answer[T any] struct {
	value T
	ok    bool
	until time.Time
}

// NewFinder returns a Finder for the procfs at proc, normally "/proc" or where the host's
// is mounted.
func NewFinder[T any](proc string, parse func([]byte) (T, bool)) *Finder[T] {
	return &Finder[T]{proc: proc, parse: parse, now: time.Now, known: map[process]answer[T]{}}
}

// Find returns the parser's result for a process. The error is fs.ErrNotExist if the
// process has exited or is not in this PID namespace.
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

// forget makes room: it drops expired answers, or all if none has expired.
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
