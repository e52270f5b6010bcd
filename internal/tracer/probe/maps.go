package probe

import (
	"errors"
	"fmt"
	"maps"
	"unsafe"

	"github.com/cilium/ebpf"
)

const batch = 256 // entries per system call

// each calls f for all entries of a map. Entries added or deleted meanwhile may be missed, and
// the kernel may return an entry twice if it restarts a bucket.
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
			size *= 4 // a bucket has more entries
		default:
			return fmt.Errorf("cannot read the map %s: %w", m, err)
		}
	}
}

// tgid returns the process of a key; every key starts with it.
func tgid[K comparable](k *K) uint32 { return *(*uint32)(unsafe.Pointer(k)) }

// pidBits is the number of bits of a key's tgid that hold the pid; see bpf/tracer.h.
const pidBits = 22

func pidOf(tgid uint32) uint32 { return tgid & (1<<pidBits - 1) }

// drop deletes all entries of the given processes, identified as in keys.
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

// images returns the key values of a process that exited: of its last program and of the
// programs replaced by exec. If only the latter have ended, the running program is left out.
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

// forget deletes all entries of the given processes in all maps.
func (p *Probe) forget(pid map[uint32]bool) error {
	return errors.Join(
		drop[kernelOpKey, kernelOpVal](p.maps.Ops, pid),
		drop[kernelErrorKey, uint64](p.maps.Errors, pid),
		drop[kernelKernelKey, kernelKernelVal](p.maps.Kernels, pid),
		drop[kernelHandleKey, kernelName](p.maps.Names, pid),
		drop[kernelAllocKey, kernelAllocVal](p.maps.Allocs, pid),
		drop[kernelDevKey, kernelDevVal](p.maps.Devs, pid),
		drop[kernelDevKey, kernelUuid](p.maps.Uuids, pid),
		drop[kernelStreamKey, kernelStreamVal](p.maps.Streams, pid),
		drop[kernelHandleKey, kernelMarkVal](p.maps.Marks, pid),
		drop[kernelHandleKey, kernelContextVal](p.maps.Contexts, pid),
		drop[kernelHandleKey, kernelCommVal](p.maps.Comms, pid),
		drop[kernelCollKey, kernelCollVal](p.maps.Colls, pid),
		drop[kernelProcKey, kernelProcVal](p.maps.Procs, pid),
	)
}
