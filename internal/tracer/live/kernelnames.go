//go:build linux

package live

import "time"

// asked is implemented by probe.Probe.
type asked interface {
	Names(pid uint32) (map[uint64]string, error)
	Busy(pid uint32) (time.Duration, error)
}

// KernelNames returns the readable names of the kernels of a process by their handles. Those that the process
// asked for before it was traced are missing.
func (t *Tracer) KernelNames(pid uint32) map[uint64]string {
	k, ok := t.kernel.(asked)
	if !ok {
		return nil
	}
	names, _ := k.Names(pid) // what could be read
	t.mu.Lock()
	defer t.mu.Unlock()
	for handle, symbol := range names {
		names[handle] = t.names.of(symbol)
	}
	return names
}

// Busy returns how long a process has had work on its devices, at most, since it was first seen.
func (t *Tracer) Busy(pid uint32) time.Duration {
	k, ok := t.kernel.(asked)
	if !ok {
		return 0
	}
	busy, err := k.Busy(pid)
	if err != nil {
		return 0
	}
	return busy
}
