package cudareceiver

import (
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
	"github.com/gpumeter/gpumeter/internal/tracer/training"
	"github.com/gpumeter/gpumeter/internal/tracer/watch"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// observed is the training.source of everything that this receiver says.
const observed = "observed"

// trainer follows the processes that train.
type trainer struct {
	observer *training.Observer
	writers  *watch.Writers
	tensor   map[string]*tensor // by device or partition, since the last reading
}

// tensor is the mean activity of the tensor pipe, relative to its peak at the highest clock.
type tensor struct {
	sum       float64
	n         int
	processes int
}

func newTrainer(proc string) *trainer {
	return &trainer{observer: training.New(), writers: watch.NewWriters(proc), tensor: map[string]*tensor{}}
}

// see adds a tick.
func (t *trainer) see(tick *node.Tick) {
	parents := map[string]*node.Reading{}
	for i := range tick.Readings {
		parents[tick.Readings[i].ID.UUID] = &tick.Readings[i]
	}
	for i := range tick.Readings {
		r := &tick.Readings[i]
		if !r.Up {
			continue
		}
		clock := r.ComputeClock()
		if p := parents[r.ID.Parent]; p != nil { // a partition has the clock of its device
			clock = p.ComputeClock()
		}
		x := t.tensor[r.ID.UUID]
		if x == nil {
			x = &tensor{}
			t.tensor[r.ID.UUID] = x
		}
		x.processes = max(x.processes, len(r.Processes))
		for _, pipe := range r.Profile.Pipes {
			active, ok := pipe.Active.Get()
			now, clocked := clock.Frequency.Get()
			limit, limited := clock.Limit.Get()
			if pipe.Name == "tensor" && ok && clocked && limited && limit > 0 {
				x.sum, x.n = x.sum+training.MFU(active, now, limit), x.n+1
			}
		}
	}
}

// read adds a reading to the ledger.
func (t *trainer) read(s *tracer.Snapshot, l *ledger.Ledger) {
	ended := map[uint32]bool{}
	var living []uint32
	for i := range s.Processes {
		if p := &s.Processes[i]; p.Ended {
			ended[p.PID] = true
		} else {
			living = append(living, p.PID)
		}
	}
	l.Train(t.observer.Observe(s, func(pid uint32) training.Facts {
		return training.Facts{Workload: l.Job(pid), Written: t.writers.Of(pid, ended[pid])}
	}))
	t.writers.Follow(living)
	t.estimate(l)
}

// estimate sets the estimates since the last reading.
func (t *trainer) estimate(l *ledger.Ledger) {
	for _, sub := range l.Subjects {
		if sub.Training == nil {
			continue
		}
		sub.Training.MFU = nil
		if x := t.tensor[sub.ID.UUID]; x != nil && x.n > 0 && x.processes <= 1 && len(sub.Training.PIDs) == 1 {
			mean := x.sum / float64(x.n)
			sub.Training.MFU = &mean
		}
	}
	t.tensor = map[string]*tensor{}
}

// training records what a subject trained.
func (e *emitter) training(s *ledger.Subject) {
	t := s.Training
	if t == nil {
		return
	}
	said := t.Reported // ends the series of what the workload reports itself
	if t.Steps > 0 && !said[training.MetricSteps] {
		e.count(t.Steps, s, observed, e.mb.RecordTrainingStepsDataPoint)
	}
	if t.Leads && !said[training.MetricRestarts] {
		e.count(t.Restarts, s, observed, e.mb.RecordTrainingRestartsDataPoint)
	}
	if t.Duration.Count > 0 && !said[training.MetricStepDuration] && e.cfg.Metrics.TrainingStepDuration.Enabled && e.fits() {
		e.distribution(metadata.MetricsInfo.TrainingStepDuration.Name, &t.Duration)
		e.mb.RecordTrainingStepDurationDataPoint(e.ts, t.Duration.Sum, 0, "", s.Key, "", observed)
	}
	for _, a := range slices.Sorted(maps.Keys(t.Time)) {
		if !said[training.MetricTime] && e.fits() {
			e.mb.RecordTrainingTimeDataPoint(e.ts, t.Time[a], 0, "", s.Key, "", string(a), observed)
		}
	}
	if t.Checkpoints > 0 && !said[training.MetricCheckpoints] {
		e.count(t.Checkpoints, s, observed, e.mb.RecordTrainingCheckpointCountDataPoint)
	}
	if t.CheckpointBytes > 0 && !said[training.MetricCheckpointIO] {
		e.count(t.CheckpointBytes, s, observed, e.mb.RecordTrainingCheckpointIoDataPoint)
	}
	for _, lost := range []struct {
		reason  string
		seconds float64
	}{{"redone", t.Redone}, {"restart", t.Down}} {
		if lost.seconds > 0 && !said[training.MetricLost] && e.fits() {
			e.mb.RecordTrainingLostTimeDataPoint(e.ts, lost.seconds, 0, "", s.Key, "", lost.reason, observed)
		}
	}
	if part, ok := t.Goodput(); ok && s.Live && !said[training.MetricGoodput] && e.fits() {
		e.mb.RecordTrainingGoodputDataPoint(e.ts, part, 0, "", s.Key, "", observed)
	}
	if t.MFU != nil && s.Live && !said[training.MetricMFU] && e.fits() {
		e.mb.RecordTrainingMfuDataPoint(e.ts, *t.MFU, 0, "", s.Key, "", observed)
	}
}
