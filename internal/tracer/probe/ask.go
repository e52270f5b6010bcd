package probe

import "time"

// Names returns the symbols of the kernels of a process that its calls have named, by handle.
func (p *Probe) Names(pid uint32) (map[uint64]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := map[uint64]string{}
	if p.loaded == nil {
		return names, nil
	}
	newest := map[uint64]uint32{} // programs before exec have other handles
	err := each(p.maps.Names, func(k kernelHandleKey, v *kernelName) {
		if pidOf(k.Tgid) == pid && k.Tgid >= newest[k.Handle] {
			newest[k.Handle] = k.Tgid
			names[k.Handle] = text(v.Text[:])
		}
	})
	return names, err
}

// Busy returns how long a process has had work on its devices that nobody had waited for, summed over them.
func (p *Probe) Busy(pid uint32) (busy time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded == nil {
		return 0, nil
	}
	err = each(p.maps.Devs, func(k kernelDevKey, v *kernelDevVal) {
		if pidOf(k.Tgid) == pid {
			busy += time.Duration(v.Busy)
		}
	})
	return busy, err
}
