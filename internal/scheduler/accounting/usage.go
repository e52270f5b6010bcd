package accounting

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Values of Usage.Status. Empty means that usage was not queried.
const (
	UsageOK      = "ok"
	UsageMissing = "missing" // no agent saw the job, or its series have expired
	UsageError   = "error"   // the store did not answer
)

// Usage is how a job used its GPUs, as measured by the agents of its nodes.
type Usage struct {
	Status    string
	Allocated float64        // GPU seconds, shares in proportion
	Active    optional.Float // GPU seconds with activity
	Idle      optional.Float // GPU seconds without activity
	Energy    optional.Float // J
	Peak      optional.Float // highest memory use of any of its GPUs or partitions, bytes
	// Unseen are the GPU seconds on the job's counters when the store first saw them. They are
	// not in Allocated, just as no bill includes them.
	Unseen float64
}

// Efficiency returns the fraction of its allocated GPU time that the job used.
func (u *Usage) Efficiency() optional.Float {
	active, ok := u.Active.Get()
	if u.Status != UsageOK || !ok || u.Allocated <= 0 {
		return optional.Float{}
	}
	return optional.Of(min(1, active/u.Allocated))
}

// Meter reads the usage of jobs from the store with the agents' series. It counts with fleet.Meter,
// as bills do.
type Meter struct {
	store query.Store
	now   func() time.Time
}

// NewMeter returns a Meter of store.
func NewMeter(store query.Store) *Meter { return &Meter{store: store, now: time.Now} }

const (
	// after is how long the last values of a job remain readable: agents export its counters
	// for 5 more minutes.
	after = 6 * time.Minute
	// afterRequeue is the same for a row whose job continues in another row, which may start
	// soon.
	afterRequeue = time.Minute
	// skew is the allowed clock difference between the controller and a node.
	skew = time.Minute
	// chunk is the longest period of one query. It may be long because few series match.
	chunk = 7 * 24 * time.Hour

	maxIDs     = 50      // jobs per query
	maxSamples = 200_000 // per metric and query, estimated at one every 30 s
)

// continues are the states of rows whose job continues in another row.
var continues = []string{"REQUEUED", "RESIZING", "PREEMPTED", "NODE_FAIL"}

// Usage returns the usage of the jobs, in order. If some queries fail, it returns the other results
// along with the error, and the failed jobs have UsageError.
func (m *Meter) Usage(ctx context.Context, jobs []Job) ([]Usage, error) {
	out := make([]Usage, len(jobs))
	for i := range out {
		out[i].Status = UsageError
	}
	var errs []error
	for _, g := range groups(jobs, m.now()) {
		found, err := m.group(ctx, jobs, g)
		if err != nil {
			errs = append(errs, err)
			if len(errs) >= 2 || ctx.Err() != nil { // the store is failing: stop querying
				break
			}
			continue
		}
		for i, u := range found {
			out[g.at[i]] = u
		}
	}
	return out, errors.Join(errs...)
}

// group is a set of jobs that share queries.
type group struct {
	at       []int // indices of the jobs
	from, to time.Time
	samples  int
	alone    bool // another job has the same ID
}

// groups combines jobs of similar time and length, so that a long job does not lengthen the query for
// short ones. A job whose ID is reused forms its own group, limited to its own time.
func groups(jobs []Job, now time.Time) []group {
	numbers := map[string]int{}
	order := make([]int, 0, len(jobs))
	for i := range jobs {
		if !jobs[i].Start.IsZero() && slurm.IsNumber(jobs[i].ID) {
			order = append(order, i)
			numbers[jobs[i].ID]++
		}
	}
	length := func(j *Job) time.Duration {
		if j.End.IsZero() {
			return now.Sub(j.Start)
		}
		return j.End.Sub(j.Start)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if c := math.Ilogb(length(&jobs[a]).Hours()+1) - math.Ilogb(length(&jobs[b]).Hours()+1); c != 0 {
			return c
		}
		return jobs[a].Start.Compare(jobs[b].Start)
	})
	var out []group
	for _, i := range order {
		j := &jobs[i]
		one := group{at: []int{i}, from: j.Start.Add(-skew), to: j.Start.Add(length(j) + after)}
		if one.alone = numbers[j.ID] > 1 || slices.Contains(continues, j.State); one.alone {
			one.from, one.to = own(j, jobs, now)
		}
		one.samples = int(max(j.GPUs, 1)) * int(one.to.Sub(one.from)/(30*time.Second)+1)
		if n := len(out) - 1; n >= 0 && !one.alone && !out[n].alone {
			g := &out[n]
			both := group{at: append(slices.Clone(g.at), i), from: earlier(g.from, one.from), to: g.to, samples: g.samples + one.samples}
			if one.to.After(both.to) {
				both.to = one.to
			}
			longest := max(g.to.Sub(g.from), one.to.Sub(one.from))
			if len(both.at) <= maxIDs && both.samples <= maxSamples && both.to.Sub(both.from) <= 2*longest+time.Hour {
				*g = both
				continue
			}
		}
		out = append(out, one)
	}
	return out
}

// own returns the period in which samples belong to the job: until a while after its end, or until
// the next job with the same ID starts.
func own(j *Job, all []Job, now time.Time) (from, to time.Time) {
	to = j.End
	if to.IsZero() {
		to = now
	}
	tail := after
	if slices.Contains(continues, j.State) {
		tail = afterRequeue
	}
	to = to.Add(tail)
	for i := range all {
		o := &all[i]
		if o.ID == j.ID && o.Cluster == j.Cluster && o.Start.After(j.Start) {
			to = earlier(to, o.Start)
		}
	}
	return j.Start, to
}

// total accumulates the accounts of one job.
type total struct {
	held, active       fleet.Seconds
	energy             fleet.Energy
	hasActive, hasHeld bool
	hasEnergy          bool
	peak               optional.Float
	unseen             fleet.Seconds
}

func (t *total) add(from, to fleet.Sums) {
	if from == to && from != (fleet.Sums{}) {
		return // the last value of an earlier run with the same ID
	}
	t.held += to.Held - from.Held
	t.hasHeld = true
	if to.HasActive {
		t.active += to.Active - from.Active
		t.hasActive = true
	}
	if to.HasEnergy {
		t.energy += to.Energy - from.Energy
		t.hasEnergy = true
	}
}

func (t *total) usage() Usage {
	if !t.hasHeld {
		return Usage{Status: UsageMissing}
	}
	u := Usage{Status: UsageOK, Allocated: t.held.Float(), Peak: t.peak, Unseen: t.unseen.Float()}
	if t.hasActive {
		u.Active, u.Idle = optional.Of(t.active.Float()), optional.Of((t.held - min(t.active, t.held)).Float())
	}
	if t.hasEnergy {
		u.Energy = optional.Of(t.energy.Joules())
	}
	return u
}

// group returns the usage of the jobs of a group, in order.
func (m *Meter) group(ctx context.Context, jobs []Job, g group) ([]Usage, error) {
	totals := make([]total, len(g.at))
	each := func(l query.Labels, f func(*total)) {
		for i, n := range g.at {
			if of(l, &jobs[n]) {
				f(&totals[i])
			}
		}
	}
	match := matchers(jobs, g.at)
	meter := fleet.NewMeter(m.store, fleet.MeterOptions{
		Matchers: match, Workloads: true,
		Late: func(row query.Labels, held fleet.Seconds) { each(row, func(t *total) { t.unseen += held }) },
	})
	for from := g.from; from.Before(g.to); from = from.Add(chunk) {
		to := earlier(from.Add(chunk), g.to)
		err := meter.Between(ctx, from, to, func(r *fleet.DayRow, from fleet.Sums) { each(r.Labels, func(t *total) { t.add(from, r.Sums) }) })
		if err != nil {
			return nil, err
		}
		peaks, err := m.store.Instant(ctx, fmt.Sprintf("max_over_time(%s[%s])", fleet.Select(fleet.SeriesWorkloadMemory, nil, match...), query.Duration(to.Sub(from))), to)
		if err != nil {
			return nil, err
		}
		for _, s := range peaks {
			each(s.Labels, func(t *total) {
				if v, ok := t.peak.Get(); !ok || s.Value > v {
					t.peak = optional.Of(s.Value)
				}
			})
		}
	}
	out := make([]Usage, len(totals))
	for i := range totals {
		out[i] = totals[i].usage()
	}
	return out, nil
}

// matchers select the series of jobs. An agent may not know the name of its cluster.
func matchers(jobs []Job, at []int) []string {
	var ids, clusters []string
	for _, i := range at {
		ids = append(ids, jobs[i].ID)
		clusters = append(clusters, regexp.QuoteMeta(jobs[i].Cluster))
	}
	slices.Sort(ids)
	slices.Sort(clusters)
	out := []string{fleet.LabelSlurmJob + "=~" + strconv.Quote(strings.Join(slices.Compact(ids), "|"))}
	if !slices.Contains(clusters, "") {
		out = append(out, fleet.LabelSlurmCluster+"=~"+strconv.Quote("|"+strings.Join(slices.Compact(clusters), "|")))
	}
	return out
}

// of reports whether a series belongs to a job: the agent may not know the name of its cluster.
func of(l query.Labels, j *Job) bool {
	cluster := l[fleet.LabelSlurmCluster]
	return l[fleet.LabelSlurmJob] == j.ID && (cluster == "" || j.Cluster == "" || cluster == j.Cluster)
}

// Ran reports whether a job can have usage: it started and had GPUs.
func (j *Job) Ran() bool { return !j.Start.IsZero() && (j.GPUs > 0 || j.Shards > 0) }
