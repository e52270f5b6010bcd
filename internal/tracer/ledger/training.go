package ledger

import (
	"maps"
	"math"
	"slices"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/training"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Training sums what the processes of a workload that train did on a device.
type Training struct {
	Steps           uint64
	Duration        Distribution
	Time            map[training.Activity]float64 // seconds
	Checkpoints     uint64
	CheckpointBytes uint64
	Restarts        uint64
	Redone, Down    float64 // seconds
	// Fresh is the time since the previous reading, and Stepped the part of it in steps, in seconds.
	Fresh, Stepped float64
	PIDs           []uint32 // the processes that train, as of the last reading
	MFU            *float64 // estimate, since the previous reading; nil: unknown
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
			t.PIDs = append(t.PIDs, g.PID)
			for a, d := range g.Time {
				t.Time[a] += d.Seconds()
				t.Fresh += d.Seconds()
			}
			t.Stepped += g.Time[training.Step].Seconds()
			t.Redone += g.Redone.Seconds()
			t.Down += g.Down.Seconds()
			if n == 0 {
				t.whole(g)
			}
		}
	}
}

// whole adds what counts once for a process, and if ranks do the same, once for a job.
func (t *Training) whole(g *training.Growth) {
	t.Checkpoints += g.Checkpoints
	t.CheckpointBytes += g.CheckpointBytes
	if !g.Leader {
		return
	}
	if g.Restarted {
		t.Restarts++
	}
	for _, s := range g.Steps {
		t.Steps += s.Count
		t.Duration.Count += s.Count
		t.Duration.Sum += float64(s.Count) * s.Mean.Seconds()
		*t.Duration.at(tracer.TimeOffset + tracer.TimeBucket(uint64(max(0, s.Mean)))) += s.Count
	}
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

// Job identifies what a process trains for: the same for all instances of a workload, also after it was
// requeued or its pod was replaced. It is empty for processes without an owner, and for those that are known
// by their program only.
func (l *Ledger) Job(pid uint32) string {
	p := l.Seen[pid]
	if p == nil || !p.known {
		return ""
	}
	w := &p.owner
	switch w.Kind {
	case "", "process", workload.Unattributed, workload.Unallocated, workload.Other:
		return ""
	}
	key := []Pair{{Key: workload.KeyKind, Value: w.Kind}, {Key: workload.KeyName, Value: w.Name}}
	for _, k := range []string{"k8s.namespace.name", "slurm.cluster", "slurm.job.id", "user.name"} {
		key = append(key, Pair{Key: k, Value: w.Attributes[k]})
	}
	return text(key)
}

// Goodput returns the part of the time since the previous reading that was steps; false without such time.
func (t *Training) Goodput() (float64, bool) {
	if t.Fresh <= 0 {
		return math.NaN(), false
	}
	return t.Stepped / t.Fresh, true
}
