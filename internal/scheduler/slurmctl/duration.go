package slurmctl

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Durations tracks jobs across rounds. It records how long a job waited when the job
// starts, and how long it ran and was suspended when it ends. Jobs that had already started
// in the first round are excluded; otherwise the histograms would begin with a burst.
type Durations struct {
	// Histograms by partition. GPUWait is Wait of the jobs with GPUs.
	Wait, GPUWait, Run, Suspended scheduler.Histograms

	known map[jobKey]jobLife
	last  time.Time
}

// jobKey identifies a job by number and submit time: numbers wrap, and a requeued job is
// submitted again.
type jobKey struct {
	id     string
	submit int64
}

type jobLife struct {
	job     slurm.Job
	skip    bool // started before the first round
	started bool // the wait is recorded
	ended   bool // the run is recorded
}

// NewDurations returns a tracker with empty histograms.
func NewDurations() *Durations {
	return &Durations{Wait: scheduler.Histograms{}, GPUWait: scheduler.Histograms{}, Run: scheduler.Histograms{}, Suspended: scheduler.Histograms{}}
}

// Observe takes the jobs of a round. A job that the controller purged between two rounds
// is taken to have ended now if the previous round is at most gap ago, so MinJobAge should
// exceed the interval between rounds.
func (d *Durations) Observe(now time.Time, jobs []slurm.Job, gap time.Duration) {
	first := d.known == nil
	if first {
		d.known = make(map[jobKey]jobLife, len(jobs))
	}
	seen := make(map[jobKey]bool, len(jobs))
	for i := range jobs {
		j := &jobs[i]
		key := jobKey{j.ID, j.Submit.Unix()}
		seen[key] = true
		life, known := d.known[key]
		if !known {
			life.skip = first && !j.Pending()
		}
		life.job = brief(j)
		d.step(&life)
		d.known[key] = life
	}
	near := now.Sub(d.last) <= gap
	for key, life := range d.known {
		if seen[key] {
			continue
		}
		if near && life.started && !life.ended && !life.skip {
			life.job.End, life.job.State = now, "COMPLETED"
			d.step(&life)
		}
		delete(d.known, key)
	}
	d.last = now
}

// step records a job's transitions since the last round.
func (d *Durations) step(life *jobLife) {
	j := &life.job
	if life.skip || !j.Ran() || j.Start.IsZero() {
		return
	}
	if !life.started {
		life.started = true
		from := j.Eligible
		if from.IsZero() {
			from = j.Submit
		}
		if !from.IsZero() {
			d.Wait.Add(j.Partition, j.Start.Sub(from))
			if j.GPUs > 0 {
				d.GPUWait.Add(j.Partition, j.Start.Sub(from))
			}
		}
	}
	if life.ended || !j.Ended() || j.End.IsZero() {
		return
	}
	life.ended = true
	suspended := suspended(j)
	d.Suspended.Add(j.Partition, suspended)
	d.Run.Add(j.Partition, j.End.Sub(j.Start)-suspended)
}

// suspended returns how long an ended job was suspended. Suspend is when the job last
// resumed, PreSuspend how long it had run until then.
func suspended(j *slurm.Job) time.Duration {
	if j.Suspend.IsZero() || j.Suspend.Before(j.Start) {
		return 0
	}
	return min(max(0, j.Suspend.Sub(j.Start)-j.PreSuspend), max(0, j.End.Sub(j.Start)))
}

// brief returns only the fields that Durations needs, to save memory.
func brief(j *slurm.Job) slurm.Job {
	nodes := ""
	if j.NodeList != "" {
		nodes = "+"
	}
	return slurm.Job{
		Partition: j.Partition, State: j.State, NodeList: nodes, GPUs: j.GPUs,
		Submit: j.Submit, Eligible: j.Eligible, Start: j.Start, End: j.End, Suspend: j.Suspend, PreSuspend: j.PreSuspend,
	}
}
