package accounting

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// What is known of a job's usage. The empty word means that nobody asked.
const (
	UsageOK      = "ok"
	UsageMissing = "missing" // no agent saw the job, or its series are gone
	UsageError   = "error"   // who has the series did not answer
)

// Usage is what a job did with its GPUs, as the agents of its nodes measured it.
type Usage struct {
	Status    string
	Allocated float64 // GPU seconds; half of a GPU for a second is half of one
	Active    Measure // of them, in which it did something; GPU seconds
	Idle      Measure // of them, in which it did nothing; GPU seconds
	Energy    Measure // J
	Peak      Measure // memory of the fullest of its GPUs or partitions, bytes
}

// Measure is a number that may not be known.
type Measure = optional.Float

// Efficiency is the part of the time that it had GPUs in which it used them.
func (u *Usage) Efficiency() Measure {
	active, ok := u.Active.Get()
	if u.Status != UsageOK || !ok || u.Allocated <= 0 {
		return Measure{}
	}
	return optional.Of(min(1, active/u.Allocated))
}

// The series of the agent that tell of a workload.
const (
	seriesAllocated = "gpu_workload_allocated_time_seconds_total"
	seriesActive    = "gpu_workload_active_time_seconds_total"
	seriesIdle      = "gpu_workload_idle_time_seconds_total"
	seriesEnergy    = "gpu_workload_energy_joules_total"
	seriesMemory    = "gpu_workload_memory_used_bytes"
)

// sums are those that begin at 0 with the job and grow.
var sums = []string{seriesAllocated, seriesActive, seriesIdle, seriesEnergy}

// series is one of the agent's, with the labels that it has.
type series struct {
	labels map[string]string
	points []point // in the order of time
}

type point struct {
	at    float64 // seconds since 1970
	value float64
}

// device returns what the series is of, and its lane: whose look at the device it is. A
// second Prometheus, or a second way to the same one, sees the same again.
func (s *series) device() (device, lane string) {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(s.labels)) {
		// What is known of a job may grow while it runs: another label, the same series.
		if key == "__name__" || key == "user_name" || key == "gpu_share_basis" || strings.HasPrefix(key, "slurm_") || strings.HasPrefix(key, "gpu_workload_") {
			continue
		}
		b.WriteString(key + "\x00" + s.labels[key] + "\x00")
	}
	return s.labels["gpu_uuid"] + "\x00" + s.labels["gpu_partition_id"], b.String()
}

// of reports whether the series is of a job: the agent may not know the name of the cluster.
func (s *series) of(j *Job) bool {
	cluster := s.labels["slurm_cluster"]
	return s.labels["slurm_job_id"] == j.ID && (cluster == "" || j.Cluster == "" || cluster == j.Cluster)
}

// window is when samples are a job's.
type window struct{ from, to float64 }

// after is how long the last values of a job can be found: the agent shows its sums for
// 5 minutes more.
const after = 6 * time.Minute

// afterRequeue is the same of a row whose job goes on in another: that may begin soon.
const afterRequeue = time.Minute

// continues are the states of such rows.
var continues = []string{"REQUEUED", "RESIZING", "PREEMPTED", "NODE_FAIL"}

// before is how far back a job of the same number, which was requeued, still shows.
const before = 5 * time.Minute

// windowOf returns when samples are the job's: to a while after its end, or until the next
// of the same number begins.
func windowOf(j *Job, all []Job, now time.Time) window {
	end := j.End
	if end.IsZero() {
		end = now
	}
	tail := after
	if slices.Contains(continues, j.State) {
		tail = afterRequeue
	}
	w := window{float64(j.Start.Unix()), float64(end.Add(tail).Unix())}
	for i := range all {
		o := &all[i]
		if o.ID == j.ID && o.Cluster == j.Cluster && o.Start.After(j.Start) {
			w.to = min(w.to, float64(o.Start.Unix()))
		}
	}
	return w
}

// total adds up what the sums of a job grew by, each device once. known is false where
// there is no sample.
func total(list []*series, w window) (sum float64, known bool) {
	devices := map[string]map[string][]*series{}
	for _, s := range list {
		device, lane := s.device()
		if devices[device] == nil {
			devices[device] = map[string][]*series{}
		}
		devices[device][lane] = append(devices[device][lane], s)
	}
	for _, lanes := range devices {
		var most float64
		for _, lane := range lanes {
			if grown, ok := grow(lane, w); ok {
				most, known = max(most, grown), true
			}
		}
		sum += most
	}
	return sum, known
}

// grow returns by how much series that follow each other grew in a window. The first began
// at 0 with the job. One that is lower than before began anew: its agent was killed. One
// that begins where another stands goes on with it under more labels.
func grow(lane []*series, w window) (sum float64, known bool) {
	type sample struct {
		point
		of int
	}
	var all []sample
	for i, s := range lane {
		for _, p := range s.points {
			if p.at >= w.from-before.Seconds() && p.at <= w.to {
				all = append(all, sample{p, i})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b sample) int { return cmp.Compare(a.at, b.at) })
	last := make([]float64, len(lane))
	seen := make([]bool, len(lane))
	var stand float64 // of the series that was seen last
	for i := 0; i < len(all); {
		at, most := all[i].at, 0.0
		next := stand
		for ; i < len(all) && all[i].at == at; i++ {
			p := all[i]
			from := 0.0
			switch {
			case seen[p.of]:
				from = last[p.of]
			case p.value >= stand:
				from = stand
			}
			grown := p.value - from
			if grown < 0 {
				grown = p.value
			}
			if grown > most || next == stand {
				next = p.value
			}
			most = max(most, grown)
			last[p.of], seen[p.of] = p.value, true
		}
		stand = next
		if at >= w.from { // before that it was another run of the same number
			sum += most
			known = true
		}
	}
	return sum, known
}

// peak returns the highest value in a window.
func peak(list []*series, w window) Measure {
	var m Measure
	for _, s := range list {
		for _, p := range s.points {
			if p.at >= w.from && p.at <= w.to {
				m = optional.Of(max(m.Default(p.value), p.value))
			}
		}
	}
	return m
}

// usageOf puts together what the series of a job say, by their names.
func usageOf(byName map[string][]*series, w window) Usage {
	allocated, ok := total(byName[seriesAllocated], w)
	if !ok {
		return Usage{Status: UsageMissing}
	}
	u := Usage{Status: UsageOK, Allocated: allocated, Peak: peak(byName[seriesMemory], w)}
	for name, to := range map[string]*Measure{seriesActive: &u.Active, seriesIdle: &u.Idle, seriesEnergy: &u.Energy} {
		if sum, ok := total(byName[name], w); ok {
			*to = optional.Of(sum)
		}
	}
	return u
}
