package training

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// maxPending bounds the intervals that wait until it is known whether a process trains: an hour at the usual
// interval. Older ones are combined.
const maxPending = 360

// totals are the counters of a process at one reading.
type totals struct {
	at           time.Time
	launches     uint64
	bubble       time.Duration
	sleep        time.Duration // outside of calls, summed over threads
	sleepKnown   bool
	barriers     map[string]time.Duration // waits after collectives, by communicator
	written      Writes
	writtenKnown bool
}

// interval is what a process did between two readings.
type interval struct {
	from, to   time.Time
	launched   bool
	bubble     time.Duration // at most the interval
	collective time.Duration
	writing    time.Duration
	saved      Writes // complete checkpoints, and when the last one ended
	cut        cut
}

func (i *interval) length() time.Duration { return i.to.Sub(i.from) }

// process is a process that may train.
type process struct {
	pid      uint32
	since    time.Time
	workload string
	rhythm   rhythm
	last     totals
	began    time.Time // of what is counted
	pending  []interval
	older    bool   // the steps at the first reading are not counted
	counted  uint64 // steps
	leader   bool

	usual     []time.Duration // recent times of a step
	firstStep time.Time
	lastStep  time.Time
	waiting   time.Duration // of a step that began before the last reading
	lastSave  time.Time
	unsaved   time.Duration // of steps since then

	joined string    // the job that it is part of
	before *previous // what it goes on with; nil: nothing
	told   bool      // that it goes on
}

// newProcess returns the state of a process that is seen first. The tracer counts since then.
func newProcess(p *tracer.Process, now time.Time) *process {
	began := p.Since
	if began.IsZero() || began.After(now) {
		began = now
	}
	return &process{pid: p.PID, since: p.Since, began: began, last: totals{at: began}}
}

func isLaunch(o *tracer.OpStat) bool {
	return o.Class == tracer.Launch || o.Class == tracer.Graph && o.Op == "cuGraphLaunch"
}

// barriers returns the waits after collectives by communicator.
func barriers(p *tracer.Process) map[string]time.Duration {
	all := map[string]time.Duration{}
	for i := range p.Comms {
		c := &p.Comms[i]
		all[cmp.Or(c.ID, c.Key)] += time.Duration(c.BarrierWait.Sum * float64(time.Second))
	}
	return all
}

func totalsOf(p *tracer.Process, now time.Time) totals {
	t := totals{at: now, barriers: barriers(p), sleepKnown: p.Host.Known, sleep: max(0, p.Host.Blocked-p.Host.BlockedInCall)}
	for i := range p.Ops {
		if isLaunch(&p.Ops[i]) {
			t.launches += p.Ops[i].Time.Count
		}
	}
	for i := range p.Devices {
		t.bubble += p.Devices[i].Bubble
	}
	return t
}

// leastWaits returns for each communicator with several ranks on this machine the least that one of them
// waited since the previous reading. The others waited for that rank.
func leastWaits(processes []tracer.Process, known map[uint32]*process) map[string]time.Duration {
	least, ranks := map[string]time.Duration{}, map[string]int{}
	for i := range processes {
		p := &processes[i]
		k := known[p.PID]
		if k == nil {
			continue
		}
		for id, w := range barriers(p) {
			d := max(0, w-k.last.barriers[id])
			if n, ok := least[id]; !ok || d < n {
				least[id] = d
			}
			ranks[id]++
		}
	}
	for id, n := range ranks {
		if n < 2 {
			delete(least, id)
		}
	}
	return least
}

// leads reports whether a process counts for its job: it is rank 0 of its largest communicator, or has none.
func leads(p *tracer.Process) bool {
	size, rank := 1, 0
	for i := range p.Comms {
		if c := &p.Comms[i]; c.Size > size && c.Rank >= 0 {
			size, rank = c.Size, c.Rank
		}
	}
	return rank == 0
}

// read adds a reading.
func (p *process) read(tp *tracer.Process, now time.Time, written *Writes, least map[string]time.Duration) {
	p.rhythm.see(tp, now)
	t := totalsOf(tp, now)
	if written != nil {
		t.written, t.writtenKnown = *written, true
	}
	if now.After(p.last.at) {
		p.pending = append(p.pending, p.between(&t, least))
	}
	p.last, p.leader = t, leads(tp)
	if len(p.pending) > maxPending {
		p.pending[1].from = p.pending[0].from
		p.pending = slices.Delete(p.pending, 0, 1)
	}
}

// report adds what happened since the last report, once it is known that the process trains.
func (p *process) report(g *Growth) {
	if p.older && len(p.pending) > 0 {
		p.counted, p.older = p.rhythm.steps(&p.pending[0].cut), false
	}
	for i := range p.pending {
		p.spend(i, g)
	}
	p.pending = nil
	p.began = p.last.at
}

func (p *process) between(t *totals, least map[string]time.Duration) interval {
	i := interval{from: p.last.at, to: t.at, launched: t.launches > p.last.launches, cut: p.rhythm.cuts[len(p.rhythm.cuts)-1]}
	all := i.length()
	i.bubble = min(all, max(0, t.bubble-p.last.bubble))
	if t.sleepKnown && p.last.sleepKnown { // what waits for input sleeps; what prepares the next launch does not
		i.bubble = min(i.bubble, max(0, t.sleep-p.last.sleep))
	}
	for id, w := range t.barriers {
		if n, ok := least[id]; ok {
			i.collective += max(0, w-p.last.barriers[id]-n)
		}
	}
	i.collective = min(i.collective, all)
	if t.writtenKnown && p.last.writtenKnown {
		i.writing = min(all, max(0, t.written.Time-p.last.written.Time))
		i.saved = Writes{t.written.Checkpoints - p.last.written.Checkpoints, t.written.Bytes - p.last.written.Bytes, 0, t.written.Last}
	}
	return i
}

// spend divides a pending interval among activities.
func (p *process) spend(at int, g *Growth) {
	i := &p.pending[at]
	n := uint64(0)
	if all := p.rhythm.steps(&i.cut); all > p.counted {
		n = all - p.counted
		p.counted = all
	}
	left := i.length()
	take := func(a Activity, d time.Duration) time.Duration {
		d = min(max(0, d), left)
		if d > 0 {
			g.Time[a] += d
			left -= d
		}
		return d
	}
	stepping := func() {
		p.unsaved += left
		take(Step, left)
	}
	usual := p.typical()
	defer p.saves(i, g)
	if n == 0 && p.lastStep.IsZero() {
		take(p.starting(), left)
		return
	}
	if n == 0 && usual > 0 && i.to.Sub(p.lastStep) < 2*usual { // in the middle of a long step
		p.waiting += left
		stepping()
		return
	}
	if n == 0 {
		take(Checkpoint, i.writing)
		if p.waiting = 0; i.launched {
			take(Other, left)
		}
		take(Idle, left)
		return
	}
	if p.lastStep.IsZero() { // the interval begins before the first step
		each := p.pace(at, left/time.Duration(n))
		take(p.starting(), left-time.Duration(n)*each)
		p.firstStep = i.to.Add(-time.Duration(n-1) * each)
		p.made(n, each, i.to, g)
		stepping()
		return
	}
	checkpoint := i.writing
	if usual > 0 { // writing that does not delay steps costs nothing
		checkpoint = min(checkpoint, max(0, left-time.Duration(n)*usual))
	}
	take(Checkpoint, checkpoint)
	// Much more than the usual time is not steps, but something between them.
	if extra := left - time.Duration(n)*usual; usual > 0 && extra > left/4 && extra > 2*usual {
		take(Other, extra)
	}
	each := (left + p.waiting) / time.Duration(n)
	p.made(n, each, i.to, g)
	take(Data, i.bubble)
	take(Collective, i.collective)
	stepping()
}

// starting is what a process does before its first step.
func (p *process) starting() Activity {
	if p.before != nil {
		return Restart
	}
	return Startup
}

// pace returns the time of the first steps, which is at most the mean of their interval: that of the
// following interval, if there is one.
func (p *process) pace(at int, mean time.Duration) time.Duration {
	for i := at + 1; i < len(p.pending); i++ {
		next := &p.pending[i]
		if n := p.rhythm.steps(&next.cut); n > p.counted {
			return min(mean, next.length()/time.Duration(n-p.counted))
		}
	}
	return mean
}

// made records n steps.
func (p *process) made(n uint64, each time.Duration, at time.Time, g *Growth) {
	g.Steps = append(g.Steps, Steps{n, each})
	p.lastStep, p.waiting = at, 0
	const recent = 31
	if p.usual = append(p.usual, each); len(p.usual) > recent {
		p.usual = p.usual[1:]
	}
}

// typical returns the usual time of a step; 0 if it is not known.
func (p *process) typical() time.Duration {
	if len(p.usual) == 0 {
		return 0
	}
	list := slices.Clone(p.usual)
	slices.Sort(list)
	return list[len(list)/2]
}

// saves adds the checkpoints of an interval. What was written before the first step is none.
func (p *process) saves(i *interval, g *Growth) {
	if i.saved.Checkpoints == 0 || p.lastStep.IsZero() {
		return
	}
	g.Checkpoints += i.saved.Checkpoints
	g.CheckpointBytes += i.saved.Bytes
	p.lastSave = i.saved.Last
	p.unsaved = min(p.unsaved, max(0, p.lastStep.Sub(i.saved.Last)))
}
