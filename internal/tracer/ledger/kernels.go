package ledger

import (
	"time"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// maxKernelName truncates kernel names: template instances are long, and names that differ only beyond
// it share a series.
const maxKernelName = 128

// kernels adds the launches of a process. The process reports only its top kernels, which vary; the
// rest arrives as Other. The total number of launches is exact: for a kernel that was in the rest
// before, only launches that cannot belong to others count as new. The comparison spans all devices,
// because a kernel that leaves the top moves its launches from its device to the rest, which has no
// device.
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
	remainder := -1 // device of the rest
	rest := func(k *tracer.Kernel) bool { return k.Name == Other && p.KernelsFolded > 0 }
	for i := range p.Kernels {
		k := &p.Kernels[i]
		sum.add(k)
		if rest(k) {
			remainder = k.Device
		}
	}
	left := tally{more(sum.launches, had.launches), max(0, sum.time-had.time)}
	// Kernels that were known before are exact and come first.
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

// tally is a number of launches and the seconds in the calls.
type tally struct {
	launches uint64
	time     float64
}

func (t *tally) add(k *tracer.Kernel) {
	t.launches += k.Count
	t.time += k.Time.Seconds()
}

// take removes up to n launches and seconds from t.
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
			sum.Since = l.last // the name may have had a series before
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

// retire drops the kernel that has not been launched for the longest time, if that is long enough: the
// work of a process changes, and the kernels of its warm-up must not occupy all names. It reports
// whether it dropped one.
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

// Cut truncates a name to maxKernelName bytes.
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
