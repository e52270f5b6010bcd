package slurmctl

import (
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Bounds are those of the histograms, in seconds: from one second to seven days.
var Bounds = []float64{1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 345600, 604800}

// Histogram counts durations since it was made.
type Histogram struct {
	Counts []uint64 // one more than Bounds
	Count  uint64
	Sum    float64 // seconds
}

func (h *Histogram) add(d time.Duration) {
	if h.Counts == nil {
		h.Counts = make([]uint64, len(Bounds)+1)
	}
	s := max(0, d.Seconds())
	i, _ := slices.BinarySearch(Bounds, s)
	h.Counts[i]++
	h.Count++
	h.Sum += s
}

// Durations follows jobs from round to round and counts how long each waited, when it
// starts, and how long it ran and was suspended, when it ends. Jobs that already had
// started in the first round do not count: the histograms would begin with a heap of them.
type Durations struct {
	// By partition.
	Wait, Run, Suspended map[string]*Histogram

	known map[jobKey]jobLife
	last  time.Time
}

// jobKey is a job and when it was submitted: numbers begin again some day, and a job that
// goes back into the queue is submitted again.
type jobKey struct {
	id     string
	submit int64
}

type jobLife struct {
	job     slurm.Job
	skip    bool // it had started before we came
	started bool // its wait has been counted
	ended   bool // its run has been counted
}

// NewDurations returns empty histograms.
func NewDurations() *Durations {
	return &Durations{Wait: map[string]*Histogram{}, Run: map[string]*Histogram{}, Suspended: map[string]*Histogram{}}
}

// Observe takes the jobs of a round. A job that ended and was forgotten by the controller
// between two rounds is taken to have ended now, if the last round is at most gap ago:
// MinJobAge should be longer than a round.
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

// step counts what is new of a job.
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
			histogram(d.Wait, j.Partition).add(j.Start.Sub(from))
		}
	}
	if life.ended || !j.Ended() || j.End.IsZero() {
		return
	}
	life.ended = true
	suspended := suspended(j)
	histogram(d.Suspended, j.Partition).add(suspended)
	histogram(d.Run, j.Partition).add(j.End.Sub(j.Start) - suspended)
}

// suspended returns how long a job that ended was suspended. Suspend is when it was last
// resumed, PreSuspend how long it had run until then.
func suspended(j *slurm.Job) time.Duration {
	if j.Suspend.IsZero() || j.Suspend.Before(j.Start) {
		return 0
	}
	return min(max(0, j.Suspend.Sub(j.Start)-j.PreSuspend), max(0, j.End.Sub(j.Start)))
}

// brief returns what Durations needs of a job: there may be many.
func brief(j *slurm.Job) slurm.Job {
	nodes := ""
	if j.NodeList != "" {
		nodes = "+"
	}
	return slurm.Job{
		Partition: j.Partition, State: j.State, NodeList: nodes,
		Submit: j.Submit, Eligible: j.Eligible, Start: j.Start, End: j.End, Suspend: j.Suspend, PreSuspend: j.PreSuspend,
	}
}

func histogram(m map[string]*Histogram, partition string) *Histogram {
	h := m[partition]
	if h == nil {
		h = &Histogram{}
		m[partition] = h
	}
	return h
}
