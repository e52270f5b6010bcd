package watch

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/internal/tracer/training"
)

// maxWriters bounds the processes whose writes are sampled.
const maxWriters = 128

// Writers samples once a second what processes write.
type Writers struct {
	proc string

	mu  sync.Mutex
	all map[uint32]*training.Sampler
}

// NewWriters returns a Writers that reads the host's proc.
func NewWriters(proc string) *Writers {
	return &Writers{proc: proc, all: map[uint32]*training.Sampler{}}
}

// Follow sets the processes. What is known about those that are followed already stays.
func (w *Writers) Follow(pids []uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := make(map[uint32]*training.Sampler, len(pids))
	for _, pid := range pids[:min(len(pids), maxWriters)] {
		if next[pid] = w.all[pid]; next[pid] == nil {
			next[pid] = &training.Sampler{}
		}
	}
	w.all = next
}

// Of returns what a process has written; nil if that is unknown.
func (w *Writers) Of(pid uint32, ended bool) *training.Writes {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.all[pid]
	if s == nil || !s.Known() {
		return nil
	}
	if ended {
		s.End()
	}
	out := s.Writes
	return &out
}

// Run samples until ctx ends.
func (w *Writers) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.Sample(now)
		}
	}
}

// Sample reads what the followed processes have written. A process that is gone, or that we may not look at,
// has no new sample.
func (w *Writers) Sample(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pid, s := range w.all {
		b, err := os.ReadFile(filepath.Join(w.proc, strconv.FormatUint(uint64(pid), 10), "io"))
		if err != nil {
			continue
		}
		if _, written, err := host.ParseIO(b); err == nil {
			if n, ok := written.Get(); ok && n >= 0 {
				s.Sample(now, uint64(n))
			}
		}
	}
}
