package anomaly

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// How many windows make an anomaly.
const (
	sure      = 2  // slow ones in a row, most of it explained
	patient   = 4  // slow ones in a row, most of it unexplained
	over      = 2  // quiet ones after the last slow one, and it has ended
	vanished  = 6  // after the last slow one that cannot be judged, and it has ended
	normal    = 30 // slow ones, and it is what is normal now
	maxCauses = 8  // that are kept of an episode

	part = 0.25 // of what a window lost that a cause must have in each
)

// Detector finds anomalies in windows. It is for one goroutine, and for windows of some
// seconds: shorter ones are noise.
type Detector struct {
	processes map[uint32]*watched
	last      time.Time // of the window before
	started   time.Time // of the tracer
	length    time.Duration
	window    uint64
	counts    map[Cause]uint64
	refused   uint64
}

// NewDetector returns a Detector that knows nothing yet.
func NewDetector() *Detector {
	return &Detector{processes: map[uint32]*watched{}, counts: map[Cause]uint64{}}
}

// watched is a process and what is known of it.
type watched struct {
	pid      uint32
	name     string
	workload string
	device   string
	totals   totals
	phases   []*phase
	episode  *episode
	waiting  time.Time     // when the synchronisation under way began
	longest  time.Duration // of those that returned, as far as windows saw
}

// Counts returns how many anomalies were opened, by their largest cause. All causes are in it.
func (d *Detector) Counts() map[Cause]uint64 {
	all := map[Cause]uint64{}
	for _, c := range Causes {
		all[c] = d.counts[c]
	}
	return all
}

// Refused returns how many times a process was not looked at in a window, because there are
// more than can be.
func (d *Detector) Refused() uint64 { return d.refused }

// Tracked returns how many processes are looked at.
func (d *Detector) Tracked() int { return len(d.processes) }

// Active returns the anomalies that are open, as they are now, by pid.
func (d *Detector) Active() []Anomaly {
	var list []Anomaly
	for _, pid := range slices.Sorted(maps.Keys(d.processes)) {
		if p := d.processes[pid]; p.episode != nil && p.episode.open {
			list = append(list, p.episode.anomaly(p, Open, d.last))
		}
	}
	return list
}

// Observe takes the next window and returns the anomalies that opened, ended or became
// normal with it, by pid. A window that is not later than the one before only moves the
// clock, and so does one after a long gap: nobody knows what happened in it.
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

// measure brings the totals up to date and returns what each process did in the window.
func (d *Detector) measure(w *Window, length time.Duration, usable bool, list *[]Anomaly) map[uint32]*running {
	all := map[uint32]*running{}
	for i := range w.Snapshot.Processes {
		p := &w.Snapshot.Processes[i]
		facts, has := w.Hosts[p.PID]
		known := d.processes[p.PID]
		if known != nil && !same(known.totals.since, p.Since) { // the pid was given to another
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
	j.longest = p.longest // wait may have found one
	ruling := j.rule()
	switch ruling.kind {
	case quiet:
		j.phase.learn(r.sample.values, r.sample.mix)
	case slow:
		if ruling.op != Sync && ruling.op != Collective {
			j.phase.hold(r.sample.values)
		}
	}
	var list []Anomaly
	if a, ok := p.follow(j, ruling); ok {
		list = append(list, a)
		if a.State == Open {
			d.counts[a.Cause()]++
		}
	}
	return list
}

// describe keeps what people want to know of a process.
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

// wait returns how long the synchronisation under way has taken, and remembers those that
// returned: a program may have long ones.
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

// same reports whether two readings of the clock of the kernel are of one moment: it is put
// beside that of the day anew with each reading.
func same(a, b time.Time) bool { return a.Sub(b).Abs() < time.Second }

// phaseOf returns the phase that a window is of, a new one if it is like none. A window
// without launches says nothing: it is of the last phase.
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
