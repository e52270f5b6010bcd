package ledger

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/training"
)

// Training sums what the processes of a workload that train did on a device.
type Training struct {
	Steps           uint64
	Duration        Distribution
	Time            map[training.Activity]float64 // seconds
	Checkpoints     uint64
	CheckpointBytes uint64
	Restarts        uint64
	Leads           bool    // one of its processes counts for its job
	Redone, Down    float64 // seconds
	// Fresh is the time since the previous reading, and Stepped the part of it in steps, in seconds.
	Fresh, Stepped float64
	PIDs           []uint32 // the processes that train, as of the last reading
	MFU            *float64 // estimate, since the previous reading; nil: unknown
	// Reported has the metrics that the workload reports itself: they are not counted here meanwhile.
	Reported map[string]bool
}

// Reporters knows which jobs report a metric themselves; see workload.Reports.
type Reporters interface {
	Reported(job, metric string, now time.Time) bool
	Watch(job string, now time.Time)
}

// Train adds what processes that train did since the previous reading. What a process did as a whole counts on
// its first device, so that sums over devices are right; its time counts on each.
func (l *Ledger) Train(list []training.Growth) {
	for _, s := range l.Subjects {
		if t := s.Training; t != nil {
			t.Fresh, t.Stepped, t.PIDs = 0, 0, nil
		}
	}
	for i := range list {
		g := &list[i]
		p := l.Seen[g.PID]
		if p == nil {
			continue
		}
		for n, s := range p.places() {
			if s.Training == nil {
				s.Training = &Training{Time: map[training.Activity]float64{}}
			}
			t := s.Training
			t.Reported = l.reported(p)
			t.PIDs = append(t.PIDs, g.PID)
			for a, d := range g.Time {
				if t.Fresh += d.Seconds(); !t.Reported[training.MetricTime] {
					t.Time[a] += d.Seconds()
				}
			}
			t.Stepped += g.Time[training.Step].Seconds()
			if !t.Reported[training.MetricLost] {
				t.Redone += g.Redone.Seconds()
				t.Down += g.Down.Seconds()
			}
			if n == 0 {
				t.whole(g)
			}
		}
	}
}

// whole adds what counts once for a process, and if ranks do the same, once for a job.
func (t *Training) whole(g *training.Growth) {
	if !t.Reported[training.MetricCheckpoints] {
		t.Checkpoints += g.Checkpoints
	}
	if !t.Reported[training.MetricCheckpointIO] {
		t.CheckpointBytes += g.CheckpointBytes
	}
	if !g.Leader {
		return
	}
	t.Leads = true
	if g.Restarted && !t.Reported[training.MetricRestarts] {
		t.Restarts++
	}
	for _, s := range g.Steps {
		if !t.Reported[training.MetricSteps] {
			t.Steps += s.Count
		}
		if t.Reported[training.MetricStepDuration] {
			continue
		}
		t.Duration.Count += s.Count
		t.Duration.Sum += float64(s.Count) * s.Mean.Seconds()
		*t.Duration.at(tracer.TimeOffset + tracer.TimeBucket(uint64(max(0, s.Mean)))) += s.Count
	}
}

// reported returns the metrics of training that the workload of a process reports itself.
func (l *Ledger) reported(p *Presence) map[string]bool {
	r, ok := l.Owners.(Reporters)
	job := l.Job(p.PID)
	if !ok || job == "" {
		return nil
	}
	r.Watch(job, l.now)
	var list map[string]bool
	for _, w := range training.Words() {
		if r.Reported(job, w.Name, l.now) {
			if list == nil {
				list = map[string]bool{}
			}
			list[w.Name] = true
		}
	}
	return list
}

// places returns the subjects of a process, one for each device: those that CUDA named, else the one of the
// whole process.
func (p *Presence) places() []*Subject {
	var list []*Subject
	for _, ordinal := range slices.Sorted(maps.Keys(p.At)) {
		if s := p.At[ordinal]; ordinal >= 0 && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	if s := p.At[-1]; s != nil && len(list) == 0 {
		list = append(list, s)
	}
	return list
}

// Job identifies what a process trains for; see workload.Workload.
func (l *Ledger) Job(pid uint32) string {
	if p := l.Seen[pid]; p != nil && p.known {
		return p.owner.JobKey()
	}
	return ""
}

// Goodput returns the part of the time since the previous reading that was steps; false without such time.
func (t *Training) Goodput() (float64, bool) {
	if t.Fresh <= 0 {
		return math.NaN(), false
	}
	return t.Stepped / t.Fresh, true
}
