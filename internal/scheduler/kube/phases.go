package kube

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/tally"
)

// The phases of a pod until it runs. Those that are not known are missing; the others add up.
const (
	phaseQuota     = "quota"     // from its creation until Kueue had reserved its quota; only of pods behind a gate of Kueue
	phaseAdmission = "admission" // from there until Kueue admitted it: checks of admission
	phaseGated     = "gated"     // from there, or from its creation, until its last scheduling gate was removed; only of pods that had one
	phaseQueued    = "queued"    // from there until it was scheduled
	phaseSandbox   = "sandbox"   // from there until its volumes and its network were there; only if the kubelet says so in time
	phaseInit      = "init"      // from there until its init containers had ended; only of pods that have some and a sandbox phase
	phaseImage     = "image"     // from there, or from scheduling, until its first container ran: mostly images
)

// maxGated bounds the pods that a Note has because of their gates, in each of two lists.
const maxGated = 2000

// gateLog knows when the gates of waiting pods were removed, which the API does not say afterwards.
type gateLog struct {
	closed map[tally.ID]bool
	// open has the moment in Unix seconds. 0: it is not known when, or whether there were any.
	open map[tally.ID]int64
	// until is up to when whoever watched before has seen the gates of new pods, in Unix seconds; 0: not known.
	until int64
}

func newGateLog() gateLog { return gateLog{closed: map[tally.ID]bool{}, open: map[tally.ID]int64{}} }

// seen follows the gates of a pod and reports whether there is news. A pod has its gates when it is created, or never: one that
// a list shows for the first time may have lost them before.
func (g *gateLog) seen(id tally.ID, s sight) bool {
	p := s.pod
	_, known := g.open[id]
	switch {
	case len(p.Gates) > 0:
		if g.closed[id] {
			return false
		}
		g.closed[id] = true
		return true
	case g.closed[id]:
		delete(g.closed, id)
		g.open[id] = 0
		if !s.listed {
			g.open[id] = s.when().Unix()
		}
		return true
	case !known && s.listed && (s.first || s.old == nil) && p.Created.Unix() >= g.until:
		g.open[id] = 0
		return true
	}
	return false
}

// when returns the time of the last change of a pod, as the API server tells it if it does.
func (s *sight) when() time.Time {
	if s.pod.Changed.IsZero() {
		return s.now
	}
	return s.pod.Changed
}

// add adds the phases of a pod that has been scheduled.
func (g *gateLog) add(to scheduler.Histograms, id tally.ID, s sight) {
	from := s.pod.Created
	if opened, ok := g.open[id]; ok {
		if opened == 0 {
			return
		}
		// Where the API server does not tell, the moment is of another clock.
		from = time.Unix(min(max(opened, from.Unix()), s.pod.Scheduled.Unix()), 0)
		s.gated(to, from)
	}
	to.Add(scheduler.PhaseKey(phaseQueued, s.devices), s.pod.Scheduled.Sub(from))
}

// gated adds the phases behind gates that were gone at a moment: those of Kueue, if it held the pod, and what is left.
func (s *sight) gated(to scheduler.Histograms, gone time.Time) {
	at := s.pod.Created
	for _, step := range []part{{phaseQuota, s.pod.ReservedAt.Sub(at)}, {phaseAdmission, s.pod.AdmittedAt.Sub(at)}} {
		// It may have been admitted before the pod came, and its times are of another clock.
		if next := s.pod.Created.Add(step.took); !next.Before(at) && !next.After(gone) {
			to.Add(scheduler.PhaseKey(step.phase, s.devices), next.Sub(at))
			at = next
		}
	}
	to.Add(scheduler.PhaseKey(phaseGated, s.devices), gone.Sub(at))
}

// forget reports whether the pod was known.
func (g *gateLog) forget(id tally.ID) bool {
	_, open := g.open[id]
	known := open || g.closed[id]
	delete(g.open, id)
	delete(g.closed, id)
	return known
}

// all returns whom it knows.
func (g *gateLog) all() []tally.ID {
	return slices.AppendSeq(slices.Collect(maps.Keys(g.closed)), maps.Keys(g.open))
}

// times returns the closed ones as the open ones are: without a time.
func (g *gateLog) times() (closed, open map[tally.ID]int64) {
	closed = make(map[tally.ID]int64, len(g.closed))
	for id := range g.closed {
		closed[id] = 0
	}
	return closed, maps.Clone(g.open)
}

// startup adds the phases of a pod that has started.
func startup(to scheduler.Histograms, s sight) {
	for _, part := range s.pod.startup() {
		to.Add(scheduler.PhaseKey(part.phase, s.devices), part.took)
	}
}

// part is a phase of one pod.
type part struct {
	phase string
	took  time.Duration
}

// startup returns the phases from scheduling to the first container, none if that has not started. If it is not known when the
// pod had its sandbox, or its init containers ended, they are one phase.
func (p *Pod) startup() []part {
	ready, runs := p.Sandboxed, p.Started
	if p.Scheduled.IsZero() || runs.IsZero() {
		return nil
	}
	if ready.IsZero() || p.Initialized.After(runs) || p.Inits && p.Initialized.IsZero() {
		return []part{{phaseImage, runs.Sub(p.Scheduled)}}
	}
	parts := []part{{phaseSandbox, ready.Sub(p.Scheduled)}}
	if p.Inits && p.Initialized.After(ready) {
		parts = append(parts, part{phaseInit, p.Initialized.Sub(ready)})
		ready = p.Initialized
	}
	return append(parts, part{phaseImage, runs.Sub(ready)})
}

// phaseWords says the phases of a start in words.
var phaseWords = map[string]string{
	phaseSandbox: "for volumes and network", phaseInit: "for init containers", phaseImage: "for images and the first container",
}

// took says in up to one line what the start of a pod took.
func (p *Pod) took() []string {
	parts := p.startup()
	if len(parts) < 2 { // what the first line says
		return nil
	}
	words := make([]string, 0, len(parts))
	for _, part := range parts {
		words = append(words, scheduler.Duration(max(0, part.took))+" "+phaseWords[part.phase])
	}
	return []string{"From its node to its start it took " + scheduler.Enumerate(words) + "."}
}
