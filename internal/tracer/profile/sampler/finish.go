//go:build linux

package sampler

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/profile"
)

// counted identifies what is counted: a kernel of a process, or an operation.
type counted struct {
	pid    uint32
	op     uint8
	handle uint64
}

type stackSample struct {
	stack uint64
	kernelProfileSample
}

// finish reads what the kernel has counted and makes the profile.
func (s *sampler) finish(p *profile.Profile) error {
	if err := s.resolve(); err != nil {
		return err
	}
	counts := map[counted]uint64{}
	sampled := map[counted][]stackSample{}
	var waits []profile.Sample
	err := errors.Join(
		each(s.kernel.o.Counts, func(k kernelProfileCountKey, n *uint64) { counts[counted{k.Tgid, k.Op, k.Handle}] = *n }),
		each(s.kernel.o.Samples, func(k kernelProfileSampleKey, v *kernelProfileSample) {
			if kernelProfileKind(k.Kind) == kernelProfileKindPROFILE_LAUNCH {
				at := counted{k.Tgid, k.Op, k.Handle}
				sampled[at] = append(sampled[at], stackSample{k.Stack, *v})
				return
			}
			waits = append(waits, profile.Sample{
				PID: k.Tgid, Samples: v.Samples, Calls: v.Calls, Wait: time.Duration(v.Ns),
				Frames: append(slices.Clone(s.stacks[k.Stack]), profile.Frame{Kind: profile.Wait, Function: opName(k.Op)}),
			})
		}),
	)
	if err != nil {
		return err
	}
	names := map[uint32]map[uint64]string{}
	for at := range counts {
		if names[at.pid] == nil && s.o.Names != nil {
			names[at.pid] = s.o.Names(at.pid)
		}
	}
	launches, taken := map[uint32]uint64{}, map[uint32]uint64{}
	for at, n := range counts {
		launches[at.pid] += n
		leaf := profile.Frame{Kind: profile.Kernel, Function: kernelName(at, names[at.pid])}
		for _, x := range divide(n, sampled[at]) {
			taken[at.pid] += x.Samples
			frames := []profile.Frame{note(profile.NotSampled)}
			if x.Samples > 0 {
				frames = slices.Clone(s.stacks[x.stack])
			}
			p.Samples = append(p.Samples, profile.Sample{PID: at.pid, Frames: append(frames, leaf), Samples: x.Samples, Calls: x.Calls, Threads: x.Threads})
		}
	}
	for _, w := range waits {
		taken[w.PID] += w.Samples
	}
	p.Samples = append(p.Samples, waits...)
	s.describe(p, launches, taken)
	p.Losses, err = s.kernel.losses()
	p.Estimate()
	p.Sort()
	return err
}

// divide divides the counted launches of a kernel among the stacks in which it was sampled. The samples of a
// thread stand for all its launches, but not kernel by kernel.
func divide(n uint64, samples []stackSample) []stackSample {
	if len(samples) == 0 {
		return []stackSample{{kernelProfileSample: kernelProfileSample{Calls: n}}}
	}
	slices.SortFunc(samples, func(a, b stackSample) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.stack, b.stack))
	})
	weights := make([]uint64, len(samples))
	for i, x := range samples {
		weights[i] = x.Calls
	}
	for i, part := range profile.Share(n, weights) {
		if samples[i].Calls > 0 {
			samples[i].Threads = uint64(float64(samples[i].Threads) / float64(samples[i].Calls) * float64(part))
		}
		samples[i].Calls = part
	}
	return samples
}

func opName(id uint8) string {
	if op := tracer.OpByID(id); op != nil {
		return op.Name
	}
	return "?"
}

// kernelName returns the name of a kernel, or of the operation that launches something else.
func kernelName(at counted, names map[uint64]string) string {
	if at.handle == 0 {
		return opName(at.op)
	}
	return cmp.Or(names[at.handle], tracer.KernelUnknown)
}

// describe lists the processes: those with launches or waits, and those that could not be profiled.
func (s *sampler) describe(p *profile.Profile, launches, samples map[uint32]uint64) {
	all := map[uint32]profile.Process{}
	for _, x := range s.all() { // the last one of a pid after those that it replaced
		d := all[x.PID]
		d.PID, d.Name, d.Problem = x.PID, x.Name, cmp.Or(x.problem, d.Problem)
		d.Launches, d.Samples = launches[x.PID], samples[x.PID]
		if x.python != nil {
			d.Python = fmt.Sprintf("3.%d", x.python.Minor)
		}
		if s.o.Busy != nil {
			if now := s.o.Busy(x.PID); now > s.busy[x] {
				d.Busy = now - s.busy[x]
			}
		}
		all[x.PID] = d
	}
	p.Processes = slices.Collect(maps.Values(all))
}
