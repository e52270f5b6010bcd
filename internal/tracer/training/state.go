package training

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// State is what an Observer knows about processes that train, so that another one goes on where it stopped.
type State struct {
	Processes []ProcessState      `json:"processes,omitempty"`
	Jobs      map[string]JobState `json:"jobs,omitempty"`
}

// ProcessState is one process.
type ProcessState struct {
	PID       uint32          `json:"pid"`
	Since     time.Time       `json:"since"`
	Marker    string          `json:"marker"`
	Every     uint64          `json:"every"`
	Offset    uint64          `json:"offset,omitempty"`
	Counted   uint64          `json:"counted"`
	Usual     []time.Duration `json:"usual,omitempty"`
	FirstStep time.Time       `json:"first_step,omitzero"`
	LastStep  time.Time       `json:"last_step,omitzero"`
	Waiting   time.Duration   `json:"waiting,omitempty"`
	LastSave  time.Time       `json:"last_save,omitzero"`
	Unsaved   time.Duration   `json:"unsaved,omitempty"`
	Job       string          `json:"job,omitempty"`
	Goes      bool            `json:"goes_on,omitempty"` // with a training that had ended
	Told      bool            `json:"told,omitempty"`
	Leader    bool            `json:"leader,omitempty"`
}

// JobState is one job.
type JobState struct {
	Running  int           `json:"running"`
	Ended    time.Time     `json:"ended,omitzero"`
	LastStep time.Time     `json:"last_step,omitzero"`
	Unsaved  time.Duration `json:"unsaved,omitempty"`
	Saved    bool          `json:"saved,omitempty"`
	Before   *JobState     `json:"before,omitempty"`
}

// State returns what is known.
func (o *Observer) State() State {
	s := State{Jobs: map[string]JobState{}}
	for _, pid := range slices.Sorted(maps.Keys(o.processes)) {
		p := o.processes[pid]
		if p.rhythm.marker == "" {
			continue
		}
		s.Processes = append(s.Processes, ProcessState{
			PID: pid, Since: p.since, Marker: p.rhythm.marker, Every: p.rhythm.every, Offset: p.rhythm.offset, Counted: p.counted, Usual: p.usual,
			FirstStep: p.firstStep, LastStep: p.lastStep, Waiting: p.waiting, LastSave: p.lastSave, Unsaved: p.unsaved,
			Job: p.joined, Goes: p.before != nil, Told: p.told, Leader: p.leader,
		})
	}
	for key, j := range o.jobs {
		state := JobState{Running: j.running, Ended: j.ended, LastStep: j.now.lastStep, Unsaved: j.now.unsaved, Saved: j.now.saved}
		if b := j.before; b != nil {
			state.Before = &JobState{LastStep: b.lastStep, Unsaved: b.unsaved, Saved: b.saved}
		}
		s.Jobs[key] = state
	}
	return s
}

// Resume makes a new Observer go on after the last reading of another one. Without its state, what processes
// did before that reading is not counted.
func (o *Observer) Resume(s *State, processes []tracer.Process, at time.Time) {
	if s == nil {
		for i := range processes {
			if tp := &processes[i]; !tp.Ended && len(o.processes) < maxProcesses {
				p := newProcess(tp, at)
				p.began, p.last, p.older = at, totalsOf(tp, at), true
				o.processes[tp.PID] = p
			}
		}
		return
	}
	for key, j := range s.Jobs {
		if len(o.jobs) >= maxJobs {
			break
		}
		now := &job{running: j.Running, ended: j.Ended, now: previous{j.LastStep, j.Unsaved, j.Saved}}
		if b := j.Before; b != nil {
			now.before = &previous{b.LastStep, b.Unsaved, b.Saved}
		}
		o.jobs[key] = now
	}
	known := map[uint32]*ProcessState{}
	for i := range s.Processes {
		known[s.Processes[i].PID] = &s.Processes[i]
	}
	for i := range processes {
		tp := &processes[i]
		k := known[tp.PID]
		if tp.Ended || k == nil || k.Since.Sub(tp.Since).Abs() >= time.Second || k.Every == 0 || len(o.processes) >= maxProcesses {
			continue // nothing of it was counted
		}
		p := newProcess(tp, at)
		p.began, p.last = at, totalsOf(tp, at)
		o.processes[tp.PID] = p
		p.rhythm.kinds = map[string]Evidence{k.Marker: EvidenceOf(k.Marker)}
		p.rhythm.marker, p.rhythm.every, p.rhythm.offset = k.Marker, k.Every, k.Offset
		p.counted, p.usual, p.firstStep, p.lastStep, p.waiting = k.Counted, k.Usual, k.FirstStep, k.LastStep, k.Waiting
		p.lastSave, p.unsaved, p.joined, p.told, p.leader = k.LastSave, k.Unsaved, k.Job, k.Told, k.Leader
		if j := o.jobs[k.Job]; j != nil && k.Goes {
			p.before = j.before
		}
	}
	for key, j := range o.jobs { // processes that ended meanwhile have no last word
		j.running = 0
		for _, p := range o.processes {
			if p.joined == key {
				j.running++
			}
		}
	}
	for _, k := range s.Processes {
		if o.processes[k.PID] != nil && o.processes[k.PID].joined == k.Job {
			continue
		}
		if j := o.jobs[k.Job]; j != nil && k.LastStep.After(j.now.lastStep) {
			j.now.lastStep, j.ended = k.LastStep, at
			j.now.saved, j.now.unsaved = !k.LastSave.IsZero(), k.Unsaved
		}
	}
	o.last = at
}
