//go:build linux

package sampler

import (
	"errors"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

const (
	mapsTimeout = 500 * time.Millisecond
	maxSilent   = 64 // processes with a pending read of maps
)

// errSilent means that the kernel does not return a process's maps: reading them takes a lock that a
// process that hangs in a driver may hold forever.
var errSilent = errors.New("cannot read the memory map: the process may hang in a driver")

// mapped is the answer of a read of maps.
type mapped struct {
	maps []target.Mapping
	err  error
}

// maps reads the mappings of a process, with a time limit. A late answer is used at the next look.
func (s *sampler) maps(pid uint32) ([]target.Mapping, error) {
	done, pending := s.silent[pid]
	if pending {
		select {
		case m := <-done:
			delete(s.silent, pid)
			return m.maps, m.err
		default:
			return nil, errSilent
		}
	}
	if len(s.silent) >= maxSilent {
		return nil, errSilent
	}
	done = make(chan mapped, 1)
	go func(proc string) {
		maps, err := target.ReadMaps(proc, pid)
		done <- mapped{maps, err}
	}(s.o.Proc)
	timeout := time.NewTimer(mapsTimeout)
	defer timeout.Stop()
	select {
	case m := <-done:
		return m.maps, m.err
	case <-timeout.C:
		s.silent[pid] = done
		return nil, errSilent
	}
}
