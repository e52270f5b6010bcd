// Package work measures how long jobs on this machine take until their first work on a device, from its ticks: the agent of the
// machine is the only one who sees that, and all devices of a pod are on one machine. So each job counts once here, and nobody
// has to be asked who counts it.
package work

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Phase is the phase of a job from its start until its first work.
const Phase = "warmup"

const (
	// maxGap is for how long nobody may have watched a job before its first work is seen: what happened earlier is not known.
	// Restarts and updates of the agent are shorter, the longest interval of ticks is as well.
	maxGap = 6 * time.Minute
	// keep is how long a job is remembered that has left, or was not seen for another reason.
	keep = time.Hour
	// maxJobs bounds the jobs that are remembered.
	maxJobs = 5000
	// maxClusters bounds the schedulers and clusters that are told apart: a machine has one or two.
	maxClusters = 8
)

// Source is a scheduler and its cluster.
type Source struct {
	Scheduler string `json:"scheduler"`
	Cluster   string `json:"cluster,omitempty"` // empty: not known here
}

// Sums are durations of the jobs of a Source.
type Sums struct {
	Source
	// Worked are from the creation of a job to its first work, by queue. Phases are from its start, by phase and size of the
	// request.
	Worked scheduler.Histograms `json:"worked"`
	Phases scheduler.Histograms `json:"phases"`
}

func (s *Sums) clone() *Sums { return &Sums{s.Source, s.Worked.Clone(), s.Phases.Clone()} }

// Totals are what was counted since a moment.
type Totals struct {
	Since time.Time
	Sums  []*Sums
}

// Watch counts the first work of jobs. It is not safe for concurrent use.
type Watch struct {
	file    *file // nil: nothing is kept
	state   state
	written Totals
	saved   time.Time
	dirty   bool // a count is not in the file
	refused int
}

// state is what outlives the process.
type state struct {
	Version int `json:"version"`
	// Since is when the counts began. Whoever had started before may have worked before.
	Since time.Time       `json:"since"`
	Jobs  map[string]*job `json:"jobs"`
	Sums  []*Sums         `json:"sums"`
}

// job is what is known of a job.
type job struct {
	Started time.Time `json:"started,omitzero"` // the earliest that was heard of
	Seen    time.Time `json:"seen"`             // on a device, last
	Devices int64     `json:"devices,omitempty"`
	Done    bool      `json:"done,omitempty"` // it has counted, or it never will
}

// sight is a job at a tick.
type sight struct {
	workload.Job
	devices int64
	works   bool
}

// sights returns the jobs that were given devices, by ID.
func sights(t *node.Tick) map[string]*sight {
	all := map[string]*sight{}
	whole := map[[2]string]bool{} // by job and device: several containers may have one
	for i := range t.Readings {
		r := &t.Readings[i]
		for j := range r.Holders {
			h := &r.Holders[j]
			if h.Ended || h.Job == nil || !h.Granted {
				continue
			}
			s := all[h.Job.ID]
			if s == nil {
				s = &sight{Job: *h.Job}
				all[h.Job.ID] = s
			}
			s.works = s.works || h.Works
			if key := [2]string{h.Job.ID, r.ID.UUID}; h.Whole && !whole[key] {
				whole[key] = true
				s.devices++
			}
		}
	}
	return all
}

// See takes a tick. The error says why the counts cannot be kept; those that Totals returns stay as they were then.
func (w *Watch) See(t *node.Tick) error {
	if t.Paused {
		return nil
	}
	if w.state.Since.IsZero() {
		w.state.Since = t.Time.Round(0)
	}
	all := sights(t)
	for _, id := range slices.Sorted(maps.Keys(all)) {
		w.see(all[id], t.Time.Round(0))
	}
	maps.DeleteFunc(w.state.Jobs, func(_ string, j *job) bool { return t.Time.Sub(j.Seen) > keep })
	return w.save(t.Time)
}

func (w *Watch) see(s *sight, now time.Time) {
	j, known := w.state.Jobs[s.ID]
	if !known {
		if len(w.state.Jobs) >= maxJobs {
			w.refused++
			return
		}
		j = &job{Seen: now}
		w.state.Jobs[s.ID] = j
		started := !s.Started.IsZero()
		j.Done = s.Restarted || started && (s.Started.Before(w.state.Since) || now.Sub(s.Started) > maxGap)
	}
	if now.Sub(j.Seen) > maxGap {
		j.Done = true
	}
	if !s.Started.IsZero() && (j.Started.IsZero() || s.Started.Before(j.Started)) {
		j.Started = s.Started
	}
	j.Seen, j.Devices = now, max(j.Devices, s.devices)
	// What a device does before the job has started is the work of another, which has just left.
	if j.Done || !s.works || j.Started.IsZero() || now.Before(j.Started) {
		return
	}
	j.Done, w.dirty = true, true
	sums := w.sums(Source{s.Scheduler, s.Cluster})
	if !s.Created.IsZero() {
		sums.Worked.Add(s.Queue, now.Sub(s.Created))
	}
	sums.Phases.Add(scheduler.PhaseKey(Phase, j.Devices), now.Sub(j.Started))
}

func (w *Watch) sums(of Source) *Sums {
	if len(w.state.Sums) >= maxClusters {
		of.Cluster = "other"
	}
	for _, s := range w.state.Sums {
		if s.Source == of {
			return s
		}
	}
	s := &Sums{of, scheduler.Histograms{}, scheduler.Histograms{}}
	w.state.Sums = append(w.state.Sums, s)
	return s
}

// Totals returns what has been counted, as far as it is kept: what is not, the next process counts again.
func (w *Watch) Totals() Totals { return w.written }

// Refused returns how many jobs were too many to be remembered.
func (w *Watch) Refused() int { return w.refused }

func (w *Watch) totals() Totals {
	t := Totals{Since: w.state.Since}
	for _, s := range w.state.Sums {
		t.Sums = append(t.Sums, s.clone())
	}
	return t
}

// New returns a Watch that keeps its counts in a folder, and continues those there; empty: it keeps none. The error says why it
// begins anew or keeps none; the Watch works anyway.
func New(dir string) (*Watch, error) {
	w := &Watch{state: state{Version: version, Jobs: map[string]*job{}}}
	if dir == "" {
		return w, nil
	}
	f, err := open(dir)
	if err != nil {
		return w, fmt.Errorf("cannot keep the first work of jobs: %w", err)
	}
	w.file = f
	old, err := f.load()
	if err != nil {
		return w, fmt.Errorf("cannot continue the first work of jobs: %w", err)
	}
	if old != nil {
		w.state = *old
		w.written = w.totals()
	}
	return w, nil
}
