//go:build linux

package sampler

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/profile"
)

// kernel is the loaded programs. Nothing is pinned: it ends with this process.
type kernel struct {
	o     kernelObjects
	multi bool // one link for all functions of a file
	links []io.Closer
	epoch uint32 // of the chosen processes
}

// openKernel loads the programs, which take a sample of a thread every pace or so.
func openKernel(pace time.Duration, mode string) (*kernel, error) {
	_ = rlimit.RemoveMemlock() // needed before Linux 5.11; loading reports a failure
	var errs []error
	for _, multi := range []bool{true, false} {
		if multi && mode == modePerf || !multi && mode == modeMulti {
			continue
		}
		k := &kernel{multi: multi, epoch: 1}
		err := k.load(pace)
		if err == nil {
			return k, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("cannot profile: %w", errors.Join(errs...))
}

// Ways to probe functions; see package probe.
const (
	modeMulti = "multi"
	modePerf  = "perf"
)

func (k *kernel) load(pace time.Duration) error {
	spec, err := loadKernel()
	if err != nil {
		return err
	}
	if err := spec.Variables["pace"].Set(uint64(pace)); err != nil {
		return err
	}
	if k.multi {
		for _, p := range spec.Programs {
			p.AttachType = ebpf.AttachTraceUprobeMulti
		}
	}
	if err := spec.LoadAndAssign(&k.o, nil); err != nil {
		return err
	}
	if !k.multi {
		return nil
	}
	// A kernel without these links loads the programs all the same. No file has code at this place, so that
	// the answer is an error either way.
	self, err := link.OpenExecutable("/proc/self/exe")
	if err == nil {
		_, err = self.UprobeMulti(nil, k.o.ProfileLaunch, &link.UprobeMultiOptions{Addresses: []uint64{1 << 40}})
	}
	if errors.Is(err, ebpf.ErrNotSupported) {
		return errors.Join(err, k.o.Close())
	}
	return nil
}

// choose makes the kernel profile a process.
func (k *kernel) choose(pid uint32, t kernelProfileTarget) error {
	if err := k.o.Targets.Put(pid, t); err != nil {
		return err
	}
	k.epoch++
	return k.o.Epoch.Set(k.epoch)
}

// place is where a function is probed.
type place struct {
	op     *tracer.Op // nil: the entry of a backward pass
	offset uint64
}

// attach probes the functions of a file. What was attached before an error stays until close.
func (k *kernel) attach(path string, launches, waits, backwards []place) error {
	file, err := link.OpenExecutable(path)
	if err != nil {
		return err
	}
	// Returns first: one without its entry is recognized.
	for _, x := range []struct {
		program *ebpf.Program
		places  []place
		returns bool
	}{
		{k.o.ProfileWaited, waits, true},
		{k.o.ProfileWait, waits, false},
		{k.o.ProfileBackward, backwards, false},
		{k.o.ProfileLaunch, launches, false},
	} {
		if len(x.places) == 0 {
			continue
		}
		if err := k.probe(file, x.program, x.places, x.returns); err != nil {
			return err
		}
	}
	return nil
}

func (k *kernel) probe(file *link.Executable, program *ebpf.Program, places []place, returns bool) error {
	if k.multi {
		o := &link.UprobeMultiOptions{}
		for _, p := range places {
			o.Addresses = append(o.Addresses, p.offset)
			o.Cookies = append(o.Cookies, p.cookie())
		}
		attach := file.UprobeMulti
		if returns {
			attach = file.UretprobeMulti
		}
		l, err := attach(nil, program, o)
		if err != nil {
			return err
		}
		k.links = append(k.links, l)
		return nil
	}
	attach := file.Uprobe
	if returns {
		attach = file.Uretprobe
	}
	for _, p := range places {
		l, err := attach("function", program, &link.UprobeOptions{Address: p.offset, Cookie: p.cookie()})
		if err != nil {
			return err
		}
		k.links = append(k.links, l)
	}
	return nil
}

func (p place) cookie() uint64 {
	if p.op == nil {
		return 0
	}
	return p.op.Cookie()
}

// detach removes all probes. The counts stay.
func (k *kernel) detach() error {
	var errs []error
	for _, l := range k.links {
		errs = append(errs, l.Close())
	}
	k.links = nil
	return errors.Join(errs...)
}

func (k *kernel) close() error { return errors.Join(k.detach(), k.o.Close()) }

func (k *kernel) losses() (profile.Losses, error) {
	var n [4]uint64
	if err := k.o.Lost.Get(&n); err != nil {
		return profile.Losses{}, err
	}
	return profile.Losses{
		Counts: n[kernelProfileLossPROFILE_FULL_COUNTS], Samples: n[kernelProfileLossPROFILE_FULL_SAMPLES],
		Stacks: n[kernelProfileLossPROFILE_FULL_STACKS], Threads: n[kernelProfileLossPROFILE_FULL_THREADS],
	}, nil
}

// each calls f for all entries of a map.
func each[K comparable, V any](m *ebpf.Map, f func(K, *V)) error {
	var cursor ebpf.MapBatchCursor
	size := min(256, int(m.MaxEntries()))
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
		case errors.Is(err, unix.ENOSPC) && size < int(m.MaxEntries()):
			size *= 4 // a bucket has more entries
		default:
			return fmt.Errorf("cannot read the map %s: %w", m, err)
		}
	}
}
