package ledger

import (
	"time"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// maxKernelName is where the name of a kernel is cut: templates are long, and those that
// differ only behind it are one series.
const maxKernelName = 128

// kernels adds the launches of a process. It tells its top kernels only, which are not
// always the same; the rest comes as other. All launches together are exact: of a kernel
// that was in the rest before, only what cannot be of others counts as new. They are
// compared over all devices, because a kernel that leaves the top ones takes its launches
// from its device to the rest, which is of none.
func (l *Ledger) kernels(p, before *Presence, at func(int) *Subject) {
	type key struct {
		symbol, name string
		device       int
	}
	was := make(map[key]*tracer.Kernel, len(before.Kernels))
	var sum, had tally
	for i := range before.Kernels {
		k := &before.Kernels[i]
		was[key{k.Symbol, k.Name, k.Device}] = k
		had.add(k)
	}
	remainder := -1 // the device of the rest
	rest := func(k *tracer.Kernel) bool { return k.Name == Other && p.KernelsFolded > 0 }
	for i := range p.Kernels {
		k := &p.Kernels[i]
		sum.add(k)
		if rest(k) {
			remainder = k.Device
		}
	}
	left := tally{more(sum.launches, had.launches), max(0, sum.time-had.time)}
	// Those that were known are exact. They go first.
	for _, known := range []bool{true, false} {
		for i := range p.Kernels {
			k := &p.Kernels[i]
			b := was[key{k.Symbol, k.Name, k.Device}]
			if rest(k) || (b != nil) != known {
				continue
			}
			if b == nil {
				b = &tracer.Kernel{}
			}
			l.launched(at(k.Device), k, left.take(more(k.Count, b.Count), grown(k.Time, b.Time)))
		}
	}
	if left.launches > 0 {
		l.launched(at(remainder), &tracer.Kernel{Name: Other}, left)
	}
}

// tally is launches, and the seconds in the calls.
type tally struct {
	launches uint64
	time     float64
}

func (t *tally) add(k *tracer.Kernel) {
	t.launches += k.Count
	t.time += k.Time.Seconds()
}

// take takes as much of t as there is.
func (t *tally) take(n uint64, seconds float64) tally {
	took := tally{min(n, t.launches), min(seconds, t.time)}
	t.launches -= took.launches
	t.time -= took.time
	return took
}

func (l *Ledger) launched(s *Subject, k *tracer.Kernel, n tally) {
	if n.launches == 0 {
		return
	}
	name := Cut(k.Name)
	sum := s.Kernels[name]
	if sum == nil && name != Other && len(s.Kernels) >= l.cfg.MaxKernels && !s.retire(l.now) {
		name, sum = Other, s.Kernels[Other]
	}
	if sum == nil {
		sum = &Kernel{}
		if s.retired {
			sum.Since = l.last // its name may have had a series before
		}
		s.Kernels[name] = sum
	}
	sum.Launches += n.launches
	sum.Time += n.time
	sum.last = l.now
	if name != Other {
		sum.Grid, sum.Block = volume(k.Grid), volume(k.Block)
	}
}

// retire forgets the kernel that was not launched for the longest time, if that is long:
// what a process does changes, and names of its warm-up must not stand for all of it. It
// reports whether there was one.
func (s *Subject) retire(now time.Time) bool {
	oldest := ""
	for name, k := range s.Kernels {
		if name != Other && (oldest == "" || k.last.Before(s.Kernels[oldest].last) || k.last.Equal(s.Kernels[oldest].last) && name < oldest) {
			oldest = name
		}
	}
	if oldest == "" || now.Sub(s.Kernels[oldest].last) < keep {
		return false
	}
	delete(s.Kernels, oldest)
	s.retired = true
	return true
}

func volume(d [3]uint32) int64 { return int64(d[0]) * int64(d[1]) * int64(d[2]) }

// Cut returns at most maxKernelName bytes of a name.
func Cut(name string) string {
	if len(name) <= maxKernelName {
		return name
	}
	n := maxKernelName
	for n > 0 && !utf8.RuneStart(name[n]) {
		n--
	}
	return name[:n]
}
