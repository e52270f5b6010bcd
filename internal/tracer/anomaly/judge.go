package anomaly

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Kind is the limiting factor of a process's speed.
type Kind string

// The kinds.
const (
	GPUBound           Kind = "gpu_bound"           // the host waits for the device
	HostBound          Kind = "host_bound"          // the device waits for the host
	CopyBound          Kind = "copy_bound"          // both wait for copies
	CommunicationBound Kind = "communication_bound" // the process waits for other ranks
	Idle               Kind = "idle"                // the device has hardly any work
)

// Verdict says what a process did between two snapshots. Each share is a fraction of the
// time, 0 to 1, and they add up to at most 1.
type Verdict struct {
	PID           uint32  `json:"pid"`
	Process       string  `json:"process"`
	Kind          Kind    `json:"kind"`
	GPU           float64 `json:"gpu"` // waiting for the device, except for copies and other ranks
	Host          float64 `json:"host"`
	Copy          float64 `json:"copy"`
	Communication float64 `json:"communication"`
	Idle          float64 `json:"idle"`
	// Barrier is the time in waits that follow a collective: the upper bound of Communication,
	// because these waits also include the process's own preceding work.
	Barrier float64 `json:"barrier"`
	Text    string  `json:"text"` // one sentence
}

const (
	// faint is the fraction of time below which a device counts as idle.
	faint = 0.05
	// promptly is the maximum duration in seconds of a launch while the device's queue is not
	// full.
	promptly = 20e-6
	// fewLaunches is the number of launches per collective that belong to the collective.
	fewLaunches = 8
)

// Judge says for each process in both snapshots what it waited for, by pid. Processes whose
// counters were reset are left out.
func Judge(before, after tracer.Snapshot) []Verdict {
	length := after.Time.Sub(before.Time)
	if length <= 0 {
		return nil
	}
	was := map[uint32]*tracer.Process{}
	for i := range before.Processes {
		was[before.Processes[i].PID] = &before.Processes[i]
	}
	var list []Verdict
	for i := range after.Processes {
		p := &after.Processes[i]
		then := was[p.PID]
		if then == nil || !same(then.Since, p.Since) {
			continue
		}
		a, b := totalsOf(then, host.Facts{}, false), totalsOf(p, host.Facts{}, false)
		if s, ok := b.between(&a, length); ok {
			list = append(list, verdict(p, s, after))
		}
	}
	slices.SortFunc(list, func(a, b Verdict) int { return cmp.Compare(a.PID, b.PID) })
	return list
}

func verdict(p *tracer.Process, s *sample, now tracer.Snapshot) Verdict {
	v := Verdict{PID: p.PID, Process: p.Name}
	calls, launching, blocked := 0.0, 0.0, s.blocked()
	collectives := 0.0
	for key, d := range s.ops {
		calls += d.count
		switch key.class {
		case tracer.Launch, tracer.Graph:
			launching += d.sum
		case tracer.Coll:
			collectives += d.sum
		}
	}
	busy := 0.0
	for _, b := range s.busy {
		busy = max(busy, b)
	}
	// A pending synchronization is not in any counter yet.
	pending := 0.0
	for i := range p.Devices {
		if at := p.Devices[i].WaitingSince; !at.IsZero() {
			pending = max(pending, min(now.Time.Sub(at).Seconds(), s.seconds))
		}
	}
	wait := s.wait + max(0, pending-s.wait)
	j := &judge{process: p, sample: s, groups: now.Groups, now: now.Time}
	_, missing := j.behind()
	part := func(seconds float64) float64 { return clip(seconds / s.seconds) }

	ranks := max(otherRanks(s)+collectives, missing)
	v.Barrier = part(max(s.barrier, missing))
	v.Communication = part(ranks)
	v.Copy = min(part(s.copies), 1-v.Communication)
	rest := 1 - v.Communication - v.Copy
	// Time in synchronization includes asynchronous copies and waiting for ranks.
	v.GPU = min(rest, part(max(0, wait-max(ranks-collectives, missing)-asyncCopies(s))+blocked))
	rest -= v.GPU
	if calls == 0 && wait == 0 || busy+s.copies+wait < faint*s.seconds {
		v.Kind, v.Idle = Idle, rest
		v.Text = fmt.Sprintf("%s (pid %d) hardly uses the device: idle", p.Name, p.PID)
		return v
	}
	v.Host = rest
	// If synchronizations are visible, the bubble is the host's share; during the rest host
	// and device worked in parallel.
	if s.wait > 0 && s.bubble > 0 {
		v.Host = min(rest, part(s.bubble+launching-blocked))
	}
	v.Kind = GPUBound
	for _, c := range []struct {
		kind  Kind
		share float64
	}{{HostBound, v.Host}, {CopyBound, v.Copy}, {CommunicationBound, v.Communication}} {
		if c.share > v.share() {
			v.Kind = c.kind
		}
	}
	v.Text = v.sentence()
	return v
}

// otherRanks estimates the seconds in which waits after collectives were for other ranks: all
// of them if hardly anything else was launched, otherwise the excess over other waits.
func otherRanks(s *sample) float64 {
	if s.launches <= fewLaunches*s.barriers {
		return s.barrier
	}
	syncs := 0.0
	for key, d := range s.ops {
		if key.class == tracer.Sync {
			syncs += d.count
		}
	}
	if others := syncs - s.barriers; others >= minCalls {
		return max(0, s.barrier-s.barriers*max(0, s.wait-s.barrier)/others)
	}
	return 0
}

// asyncCopies returns the seconds of copies that a synchronization waited for.
func asyncCopies(s *sample) float64 {
	sum := 0.0
	for key, d := range s.ops {
		if key.class == tracer.Copy {
			sum += copyTime(key.kind, d) - (d.sum - d.wait)
		}
	}
	return sum
}

// share returns the share that belongs to the kind.
func (v Verdict) share() float64 {
	switch v.Kind {
	case HostBound:
		return v.Host
	case CopyBound:
		return v.Copy
	case CommunicationBound:
		return v.Communication
	}
	return v.GPU
}

func (v Verdict) sentence() string {
	text := map[Kind]string{
		GPUBound:           "%s (pid %d) waits %s of the time for the device: GPU-bound",
		HostBound:          "%s (pid %d) keeps the device waiting %s of the time: host-bound",
		CopyBound:          "%s (pid %d) copies %s of the time: copy-bound",
		CommunicationBound: "%s (pid %d) waits %s of the time for other ranks: communication-bound",
	}[v.Kind]
	text = fmt.Sprintf(text, v.Process, v.PID, percent(v.share()))
	if v.Kind == GPUBound && v.Barrier >= 0.1 {
		text += fmt.Sprintf(", or waits for other ranks: %s of the time is in waits after collectives", percent(v.Barrier))
	}
	return text
}
