package probe

import (
	"errors"
	"fmt"
	"maps"
	"unsafe"

	"github.com/cilium/ebpf"
)

const batch = 256 // entries that one system call reads

// each calls f with all entries of a map. One that comes or goes meanwhile may be missed, and
// the kernel may give one twice if it has to begin a bucket anew.
func each[K comparable, V any](m *ebpf.Map, f func(K, *V)) error {
	var (
		cursor ebpf.MapBatchCursor
		size   = min(batch, int(m.MaxEntries()))
	)
	for {
		keys, values := make([]K, size), make([]V, size)
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range keys[:n] {
			f(keys[i], &values[i])
		}
		switch {
		case err == nil:
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case errors.Is(err, errNoSpace) && size < int(m.MaxEntries()):
			size *= 4 // a bucket has more than that
		default:
			return fmt.Errorf("cannot read the map %s: %w", m, err)
		}
	}
}

// tgid is the process of a key: all begin with it.
func tgid[K comparable](k *K) uint32 { return *(*uint32)(unsafe.Pointer(k)) }

// pidBits is how many bits of a key's tgid are the pid; see bpf/tracer.h.
const pidBits = 22

func pidOf(tgid uint32) uint32 { return tgid & (1<<pidBits - 1) }

// drop deletes all entries of processes, by what keys call them.
func drop[K comparable, V any](m *ebpf.Map, gone map[uint32]bool) error {
	var keys []K
	err := each(m, func(k K, _ *V) {
		if gone[tgid(&k)] {
			keys = append(keys, k)
		}
	})
	for i := range keys {
		if err := m.Delete(&keys[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return err
}

// images returns what keys call a process that has ended: the program it ran at last, and
// those before that ended by exec. Where the program of now runs it is left out, if only
// those before it have ended.
func (p *Probe) images(pid uint32) (gone map[uint32]bool, whole bool, err error) {
	ended, living := map[uint32]bool{}, map[uint32]bool{}
	err = each(p.maps.Procs, func(k kernelProcKey, v *kernelProcVal) {
		switch {
		case pidOf(k.Tgid) != pid:
		case v.Ended > 0:
			ended[k.Tgid] = true
		default:
			living[k.Tgid] = true
		}
	})
	if len(ended) > 0 && len(living) > 0 {
		return ended, false, err
	}
	maps.Copy(ended, living)
	ended[pid] = true
	return ended, true, err
}

// forget deletes all entries of processes in all maps.
func (p *Probe) forget(pid map[uint32]bool) error {
	return errors.Join(
		drop[kernelOpKey, kernelOpVal](p.maps.Ops, pid),
		drop[kernelErrorKey, uint64](p.maps.Errors, pid),
		drop[kernelKernelKey, kernelKernelVal](p.maps.Kernels, pid),
		drop[kernelHandleKey, kernelName](p.maps.Names, pid),
		drop[kernelAllocKey, kernelAllocVal](p.maps.Allocs, pid),
		drop[kernelDevKey, kernelDevVal](p.maps.Devs, pid),
		drop[kernelDevKey, kernelUuid](p.maps.Uuids, pid),
		drop[kernelStreamKey, uint64](p.maps.Streams, pid),
		drop[kernelHandleKey, uint32](p.maps.Contexts, pid),
		drop[kernelHandleKey, kernelCommVal](p.maps.Comms, pid),
		drop[kernelCollKey, kernelCollVal](p.maps.Colls, pid),
		drop[kernelProcKey, kernelProcVal](p.maps.Procs, pid),
	)
}
