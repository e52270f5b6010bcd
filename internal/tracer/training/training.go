// Package training recognizes training loops from outside: in what the tracer counts of a process, without
// its cooperation. It says how many steps a process made, how long they took, what the rest of its time went
// to, and how often it began again.
//
// A process trains if it launches kernels of an optimizer, see Evidence. A step is one update by the
// optimizer: passes whose gradients are accumulated are part of a step, evaluation is none. How many launches
// an update takes is found in the counts, see rhythm; until it is known nothing is reported, and then all
// steps since the process began.
//
// The package reads nothing: its input are tracer.Snapshots and what was written by a process, see Writes.
// The parts of a process's time, see Activity, add up to its time. Those that are estimates say so.
package training

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Activity is what a process does at a time.
type Activity string

// The activities. They exclude each other.
const (
	Startup    Activity = "startup"         // before the first step
	Restart    Activity = "restart"         // before the first step of a process that goes on where another one ended
	Step       Activity = "step"            // steps
	Data       Activity = "data_wait"       // the device had nothing to do between a synchronization and the next launch
	Collective Activity = "collective_wait" // waits after collectives, as far as another rank of this machine waited less
	Checkpoint Activity = "checkpoint"      // no steps while the process writes
	Other      Activity = "other"           // work without steps: evaluation, compilation, generation
	Idle       Activity = "idle"            // no launch
)

// Activities returns all activities, in the order in which a waterfall shows them.
func Activities() []Activity {
	return []Activity{Startup, Restart, Step, Data, Collective, Checkpoint, Other, Idle}
}

// Steps counts steps that took the same time, as far as is known: their mean.
type Steps struct {
	Count uint64
	Mean  time.Duration
}

// Growth is what happened to one process that trains since the previous reading. When a process is
// recognized, its first Growth covers all that was seen of it.
type Growth struct {
	PID   uint32
	Began time.Time // of what the growth covers
	// Leader counts steps for its job: it is rank 0, or alone. Other ranks make the same steps.
	Leader bool
	Steps  []Steps
	Time   map[Activity]time.Duration
	// Checkpoints are complete ones, with what was written for them.
	Checkpoints     uint64
	CheckpointBytes uint64
	// Restarted is set in the first Growth of a process that goes on with a training whose processes had
	// ended.
	Restarted bool
	// Redone is the time of the steps that were made after the last checkpoint before a restart: they were
	// lost. It is known only if a checkpoint was seen.
	Redone time.Duration
	// Down is the time from the last step before to the first one after a restart.
	Down time.Duration
}

// Facts are what is known about a process beside the snapshot.
type Facts struct {
	// Workload identifies what a restarted process belongs to. It stays the same when a job is requeued or a
	// pod is replaced. Empty: unknown, and nothing counts as a restart.
	Workload string
	// Written says what the process has written so far; nil if that is unknown.
	Written *Writes
}

// Limits of what is remembered.
const (
	maxProcesses = 512
	maxJobs      = 512
	forgetJob    = 24 * time.Hour
)

// Observer follows the processes of one machine. It is not safe for concurrent use.
type Observer struct {
	processes map[uint32]*process
	jobs      map[string]*job
	last      time.Time
	refused   uint64
}

// New returns an Observer.
func New() *Observer {
	return &Observer{processes: map[uint32]*process{}, jobs: map[string]*job{}}
}

// Refused returns how many processes were not followed, because there were too many.
func (o *Observer) Refused() uint64 { return o.refused }

// Trains returns the processes that train, as of the last reading.
func (o *Observer) Trains() []uint32 {
	var list []uint32
	for pid, p := range o.processes {
		if p.rhythm.marker != "" {
			list = append(list, pid)
		}
	}
	return list
}

// Observe adds a reading, and returns what the processes that train did since the previous one.
func (o *Observer) Observe(s *tracer.Snapshot, facts func(pid uint32) Facts) []Growth {
	least := leastWaits(s.Processes, o.processes)
	var out []Growth
	for i := range s.Processes {
		tp := &s.Processes[i]
		p := o.processes[tp.PID]
		if p != nil && p.since.Sub(tp.Since).Abs() >= time.Second { // another one with the same PID
			o.end(p, p.last.at)
			p = nil
		}
		if p == nil {
			if len(o.processes) >= maxProcesses {
				o.refused++
				continue
			}
			p = newProcess(tp, s.Time)
			o.processes[tp.PID] = p
		}
		f := facts(tp.PID)
		if f.Workload != "" {
			p.workload = f.Workload
		}
		p.read(tp, s.Time, f.Written, least)
		if p.rhythm.marker != "" {
			g := Growth{PID: p.pid, Began: p.began, Leader: p.leader, Time: map[Activity]time.Duration{}}
			o.join(p)
			p.report(&g)
			o.resumed(p, &g)
			if len(g.Time) > 0 {
				out = append(out, g)
			}
		}
		if tp.Ended {
			o.end(p, s.Time)
		}
	}
	o.forget(s)
	o.last = s.Time
	return out
}

// forget drops processes that are gone without a last word, and jobs that ended long ago.
func (o *Observer) forget(s *tracer.Snapshot) {
	there := make(map[uint32]bool, len(s.Processes))
	for i := range s.Processes {
		there[s.Processes[i].PID] = true
	}
	for pid, p := range o.processes {
		if !there[pid] {
			o.end(p, p.last.at)
		}
	}
	for key, j := range o.jobs {
		if j.running == 0 && s.Time.Sub(j.ended) > forgetJob {
			delete(o.jobs, key)
		}
	}
}
