//go:build linux

package inspect

import (
	"context"
	"os"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/profile"
	"github.com/gpumeter/gpumeter/internal/tracer/profile/sampler"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// knower is a tracer that knows more of a process than a profile sees: a live.Tracer.
type knower interface {
	KernelNames(pid uint32) map[uint64]string
	Busy(pid uint32) time.Duration
}

// Owners know the workloads of processes.
type Owners interface {
	Process(pid uint32) (workload.Workload, bool)
}

// Profile takes a profile of the chosen processes, with what a tracer that runs meanwhile knows
// of them. owners may be nil.
func Profile(ctx context.Context, t any, owners Owners, choice *Choice, o sampler.Options) (profile.Profile, error) {
	of := func(pid uint32) *workload.Workload {
		if owners == nil {
			return nil
		}
		if w, ok := owners.Process(pid); ok {
			return &w
		}
		return nil
	}
	o.Takes = func(pid uint32) bool { return choice.Takes(pid, of(pid)) }
	if k, ok := t.(knower); ok {
		o.Names, o.Busy = k.KernelNames, k.Busy
	}
	p, err := sampler.Take(ctx, o)
	p.Host, _ = os.Hostname()
	for i := range p.Processes {
		if w := of(p.Processes[i].PID); w != nil {
			p.Processes[i].Workload = w.Attributes
		}
	}
	return p, err
}

// Profile takes a profile.
func (s *Session) Profile(ctx context.Context, choice *Choice, o sampler.Options) (profile.Profile, error) {
	s.Tick(ctx, time.Now()) // for the workloads of processes
	return Profile(ctx, s.Tracer, s.Machine, choice, o)
}
