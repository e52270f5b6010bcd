package anomaly

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Numbers of windows that decide about an anomaly.
const (
	sure      = 2  // consecutive slow windows, if mostly explained
	together  = 4  // consecutive slow windows, if mostly waiting for other ranks: each of them may pause for some seconds
	patient   = 6  // consecutive slow windows, if mostly unexplained, or if the input is late
	over      = 2  // quiet windows after which an anomaly has ended; for late input it is patient
	vanished  = 6  // windows without a judgment after which an anomaly has ended
	normal    = 30 // slow windows after which the level is the new normal
	maxCauses = 8  // causes kept per episode

	part = 0.25 // fraction of the loss that a cause must explain in every window
)

// Detector finds anomalies in windows. It is not safe for concurrent use. Windows should be
// several seconds long: shorter ones are noisy.
type Detector struct {
	processes map[uint32]*watched
	last      time.Time // time of the previous window
	started   time.Time // start of the tracer
	length    time.Duration
	window    uint64
	counts    map[Cause]uint64
	refused   uint64
}

// NewDetector returns a Detector without history.
func NewDetector() *Detector {
	return &Detector{processes: map[uint32]*watched{}, counts: map[Cause]uint64{}}
}

// watched is a process with its history.
type watched struct {
	pid      uint32
	name     string
	workload string
	device   string
	totals   totals
	phases   []*phase
	episode  *episode
	idle     float64       // part of the last windows in which it had less to do
	windows  float64       // number of them
	waiting  time.Time     // start of the pending synchronization
	longest  time.Duration // longest completed synchronization seen
}

// Counts returns the number of anomalies opened by largest cause. All causes are included.
func (d *Detector) Counts() map[Cause]uint64 {
	all := map[Cause]uint64{}
	for _, c := range Causes {
		all[c] = d.counts[c]
	}
	return all
}

// Refused returns how often a process was skipped in a window because of maxTracked.
func (d *Detector) Refused() uint64 { return d.refused }

// Tracked returns the number of tracked processes.
func (d *Detector) Tracked() int { return len(d.processes) }

// Active returns the open anomalies in their current state, by pid.
func (d *Detector) Active() []Anomaly {
	var list []Anomaly
	for _, pid := range slices.Sorted(maps.Keys(d.processes)) {
		if p := d.processes[pid]; p.episode != nil && p.episode.open {
			list = append(list, p.episode.anomaly(p, Open, d.last))
		}
	}
	return list
}

// Observe takes the next window and returns the anomalies that opened, ended or were adopted,
// by pid. A window that is not later than the previous one, or that follows a long gap, only
// moves the clock: what happened in between is unknown.
func (d *Detector) Observe(w Window) []Anomaly {
	now := w.Snapshot.Time
	length := now.Sub(d.last)
	usable := !d.last.IsZero() && length > 0 && w.Snapshot.Started.Equal(d.started) && (d.length == 0 || length < longWindow*d.length)
	d.length = max(0, length)
	if d.last.IsZero() {
		d.length = 0
	}
	d.last, d.started = now, w.Snapshot.Started
	d.window++

	var list []Anomaly
	all := d.measure(&w, length, usable, &list)
	for _, pid := range slices.Sorted(maps.Keys(d.processes)) {
		p := d.processes[pid]
		r := all[pid]
		if r == nil || r.process.Ended {
			if p.episode != nil && p.episode.open {
				list = append(list, p.episode.anomaly(p, Ended, now))
			}
			delete(d.processes, pid)
			continue
		}
		if r.sample != nil {
			list = append(list, d.step(p, r, all, &w)...)
		}
	}
	return list
}

// measure updates the totals and returns what each process did in the window.
func (d *Detector) measure(w *Window, length time.Duration, usable bool, list *[]Anomaly) map[uint32]*running {
	all := map[uint32]*running{}
	for i := range w.Snapshot.Processes {
		p := &w.Snapshot.Processes[i]
		facts, has := w.Hosts[p.PID]
		known := d.processes[p.PID]
		if known != nil && !same(known.totals.since, p.Since) { // the pid was reused
			if known.episode != nil && known.episode.open {
				*list = append(*list, known.episode.anomaly(known, Ended, w.Snapshot.Time))
			}
			delete(d.processes, p.PID)
			known = nil
		}
		if known == nil && len(d.processes) >= maxTracked {
			d.refused++
			continue
		}
		r := &running{process: p}
		all[p.PID] = r
		t := totalsOf(p, facts, has)
		if known == nil {
			d.processes[p.PID] = &watched{pid: p.PID, name: p.Name, totals: t}
			continue
		}
		if usable {
			r.sample, _ = t.between(&known.totals, length)
		}
		known.name, known.totals = p.Name, t
	}
	for _, r := range all {
		if r.sample != nil {
			r.placed = r.sample.place(w, r.process, all)
			r.sample.signals()
			r.sample.deviceSignals(r.placed)
		}
	}
	return all
}

// step judges one process in one window.
func (d *Detector) step(p *watched, r *running, all map[uint32]*running, w *Window) []Anomaly {
	now := w.Snapshot.Time
	p.describe(r, w)
	j := &judge{
		process: r.process, sample: r.sample, placed: r.placed, phase: p.phaseOf(r.sample, d.window),
		groups: w.Snapshot.Groups, all: all, now: now, waited: p.wait(r.process, now),
	}
	j.longest, j.idle = p.longest, p.idle // wait may have updated the first
	if p.episode != nil {
		j.idle = p.episode.idle
	}
	ruling := j.rule()
	switch ruling.kind {
	case quiet:
		j.phase.learn(r.sample.values, r.sample.mix)
		j.phase.learnGrids(r.sample.grids)
	case other: // if it lasts, it is how the process is now
		j.phase.hold(r.sample.values)
		if j.phase.other++; j.phase.other >= normal {
			j.phase.adopt()
		}
	case slow:
		if ruling.op != Sync && ruling.op != Collective {
			j.phase.hold(r.sample.values)
		}
	}
	p.rest(j, ruling)
	var list []Anomaly
	if a, ok := p.follow(j, ruling); ok {
		list = append(list, a)
		if a.State == Open {
			d.counts[a.Cause()]++
		}
	}
	return list
}

// rest keeps the part of the windows in which the process had less to do, or its input was late:
// what happens often is no anomaly. A full stop, such as for a checkpoint, does not count.
func (p *watched) rest(j *judge, r ruling) {
	if j.sample.launches < minCalls {
		return
	}
	p.windows = min(p.windows+1, memory)
	p.idle -= p.idle / p.windows
	late := len(r.claims) > 0 && r.claims[0].cause == LateInput
	if r.kind == unasked || late || r.kind != slow && j.rests() {
		p.idle += 1 / p.windows
	}
}

// describe stores the human-readable facts about a process.
func (p *watched) describe(r *running, w *Window) {
	if len(r.placed) > 0 {
		p.device = r.placed[0].uuid
	}
	for i := range w.Devices {
		for _, q := range w.Devices[i].Processes {
			if q.PID == p.pid && q.Workload != "" {
				p.workload = q.Workload
				return
			}
		}
	}
}

// wait returns how long the pending synchronization has taken, and records completed ones:
// a program may regularly have long ones.
func (p *watched) wait(q *tracer.Process, now time.Time) time.Duration {
	var since time.Time
	for i := range q.Devices {
		if at := q.Devices[i].WaitingSince; !at.IsZero() && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	if !p.waiting.IsZero() && !same(p.waiting, since) {
		p.longest = max(p.longest, now.Sub(p.waiting))
	}
	p.waiting = since
	if since.IsZero() {
		return 0
	}
	return max(0, now.Sub(since))
}

// same reports whether two timestamps from the kernel's clock are the same moment. The
// conversion to wall-clock time varies slightly between readings.
func same(a, b time.Time) bool { return a.Sub(b).Abs() < time.Second }

// phaseOf returns the phase of a window, a new one if none is similar. A window without
// launches belongs to the last phase.
func (p *watched) phaseOf(s *sample, window uint64) *phase {
	var best *phase
	nearest := samePhase
	for _, ph := range p.phases {
		if s.launches < minCalls {
			if best == nil || ph.used > best.used {
				best = ph
			}
		} else if d := distance(ph.mix, s.mix); d <= nearest {
			best, nearest = ph, d
		}
	}
	if best == nil {
		best = newPhase(maps.Clone(s.mix))
		if len(p.phases) >= maxPhases {
			oldest := slices.MinFunc(p.phases, func(a, b *phase) int { return int(int64(a.used) - int64(b.used)) })
			p.phases = slices.DeleteFunc(p.phases, func(ph *phase) bool { return ph == oldest })
		}
		p.phases = append(p.phases, best)
	}
	best.used = window
	return best
}
