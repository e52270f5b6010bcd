package training

import "time"

// previous is what a restarted training had reached.
type previous struct {
	lastStep time.Time
	unsaved  time.Duration // of the steps that no checkpoint has
	saved    bool          // a checkpoint was seen
}

// job is the training of a workload, over all of its processes on this machine.
type job struct {
	running int
	ended   time.Time // of the last process that trained
	now     previous  // of the processes that ended since the last restart
	before  *previous // what the running processes go on with; nil: nothing
}

// join makes a process that trains part of the job of its workload. A process of the same workload that
// trains after all that trained before have ended goes on with what they did. So do the other ranks that
// begin then.
func (o *Observer) join(p *process) {
	if p.workload == "" || p.joined != "" {
		return
	}
	j := o.jobs[p.workload]
	if j == nil {
		if len(o.jobs) >= maxJobs {
			return
		}
		j = &job{}
		o.jobs[p.workload] = j
	}
	p.joined = p.workload
	if j.running == 0 && !j.now.lastStep.IsZero() {
		was := j.now
		j.before, j.now = &was, previous{}
	}
	if j.running++; j.before != nil && p.since.After(j.before.lastStep) {
		p.before = j.before
	}
}

// resumed adds what a restart has cost, once, with the first step.
func (o *Observer) resumed(p *process, g *Growth) {
	if p.before == nil || p.told || p.firstStep.IsZero() {
		return
	}
	p.told = true
	g.Restarted = true
	if p.before.saved {
		g.Redone = p.before.unsaved
	}
	g.Down = max(0, p.firstStep.Sub(p.before.lastStep))
}

// end is the end of a process.
func (o *Observer) end(p *process, at time.Time) {
	delete(o.processes, p.pid)
	j := o.jobs[p.joined]
	if p.joined == "" || j == nil {
		return
	}
	j.running--
	if p.lastStep.After(j.now.lastStep) {
		j.now.lastStep = p.lastStep
	}
	if j.ended = at; p.leader {
		j.now.saved, j.now.unsaved = !p.lastSave.IsZero(), p.unsaved
	}
}
