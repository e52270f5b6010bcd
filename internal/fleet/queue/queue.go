// Package queue is the model of the reading side of schedulers: it derives from a store of time series which jobs of each
// cluster wait and why, and in front of which free devices.
//
// A plain sum over the counts of one list counts nothing twice, unless the list says otherwise.
package queue

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Cluster is what one scheduler says of its cluster at one moment. A list is empty if the scheduler does not say it.
type Cluster struct {
	Name      string         // may be empty: Kubernetes does not know the name of a cluster
	Scheduler string         // slurm, kubernetes
	Up        optional.Float // 1 if it answered everything, else 0; absent if that is not known, as in the part that a tenant may see

	Jobs        []Count // with devices, by queue, team and state
	PendingJobs []Count // with devices, by queue, team and reason
	Waiting     []Job   // the jobs that have waited longest, and one for all others
	Queues      []Queue // as the scheduler counts them itself

	// Whole devices.
	Pending   []Count // that jobs wait for, by queue, team, model and reason
	Allocated []Count // that jobs have, by queue, team and model
	Devices   []Count // of the cluster, by model and state
	Stranded  []Count // that nobody has and nobody can use, by model and cause
	// Placeable are the jobs of a size for which there are free devices, by model and size: sizes compete for the same
	// devices. Fragmented is the part of the free devices that jobs of a size cannot use, by model and size: never add it.
	Placeable, Fragmented []Count
	// Unusable is the part of the free devices that a job of the last day cannot use, on average.
	Unusable optional.Float
}

// Down reports whether it is known that the scheduler does not answer everything.
func (c *Cluster) Down() bool { return c.Up.OK() && c.Up.Default(0) == 0 }

// Any reports whether the scheduler says anything of itself, its jobs or its devices.
func (c *Cluster) Any() bool {
	return c.Up.OK() || len(c.Jobs)+len(c.PendingJobs)+len(c.Pending)+len(c.Waiting)+len(c.Allocated)+len(c.Devices)+len(c.Queues) > 0
}

// Source names in words who says what is known of the cluster.
func (c *Cluster) Source() string {
	who, ok := map[string]string{slurm: "The Slurm controller", Kubernetes: "The Kubernetes API"}[c.Scheduler]
	if !ok {
		who = "The metrics page of " + c.Scheduler
	}
	if c.Name != "" {
		who += " of " + c.Name
	}
	return who
}

// Key is what the things of one Count have in common. A field is empty where a list does not have it.
type Key struct {
	Queue  string // partition, namespace
	Team   string
	Model  string // of the devices; empty: any, or not known
	State  string // of a job or a device
	Reason string // why jobs wait
	Cause  string // why devices cannot be used
	Size   int    // devices of one job on one node
}

// Count is a number of jobs or devices, or a ratio.
type Count struct {
	Key
	N float64
}

// Job is a job that waits.
type Job struct {
	ID, Name string
	// Queue, Team, Model and Reason as in Key.
	Queue, Team, Model, Reason string
	Devices                    float64        // whole devices that it asks for
	Seconds                    optional.Float // how long it has waited; absent for the other jobs together
}

// Queue is what a queueing system says of one of its queues. A number is absent if the system does not say it or has no
// such limit.
type Queue struct {
	Queue, Team, Model                      string
	Used, Nominal, Limit, Borrowed, Pending optional.Float // devices
	FairShare                               optional.Float // in the measure of the system
}

// series are the lists with their series, and the labels that fill a Key beside the scheduler.
var series = map[string]struct {
	list   func(*Cluster) *[]Count
	labels []string
}{
	SeriesJobs:        {func(c *Cluster) *[]Count { return &c.Jobs }, []string{LabelQueue, LabelTeam, LabelState}},
	SeriesPendingJobs: {func(c *Cluster) *[]Count { return &c.PendingJobs }, []string{LabelQueue, LabelTeam, LabelReason}},
	SeriesPending:     {func(c *Cluster) *[]Count { return &c.Pending }, []string{LabelQueue, LabelTeam, LabelModel, LabelReason}},
	SeriesAllocated:   {func(c *Cluster) *[]Count { return &c.Allocated }, []string{LabelQueue, LabelTeam, LabelModel}},
	SeriesDevices:     {func(c *Cluster) *[]Count { return &c.Devices }, []string{LabelModel, LabelDeviceState}},
	SeriesStranded:    {func(c *Cluster) *[]Count { return &c.Stranded }, []string{LabelModel, LabelCause}},
	SeriesPlaceable:   {func(c *Cluster) *[]Count { return &c.Placeable }, []string{LabelModel, LabelSize}},
	SeriesFragmented:  {func(c *Cluster) *[]Count { return &c.Fragmented }, []string{LabelModel, LabelSize}},
}

// fields are the fields of a Key by label.
var fields = map[string]func(*Key) *string{
	LabelQueue:       func(k *Key) *string { return &k.Queue },
	LabelTeam:        func(k *Key) *string { return &k.Team },
	LabelModel:       func(k *Key) *string { return &k.Model },
	LabelState:       func(k *Key) *string { return &k.State },
	LabelDeviceState: func(k *Key) *string { return &k.State },
	LabelReason:      func(k *Key) *string { return &k.Reason },
	LabelCause:       func(k *Key) *string { return &k.Cause },
}

// queued are the numbers of a Queue by series, and of a Job.
var (
	queued = map[string]func(*Queue) *optional.Float{
		SeriesUsed:      func(q *Queue) *optional.Float { return &q.Used },
		SeriesNominal:   func(q *Queue) *optional.Float { return &q.Nominal },
		SeriesLimit:     func(q *Queue) *optional.Float { return &q.Limit },
		SeriesBorrowed:  func(q *Queue) *optional.Float { return &q.Borrowed },
		SeriesQueued:    func(q *Queue) *optional.Float { return &q.Pending },
		SeriesFairShare: func(q *Queue) *optional.Float { return &q.FairShare },
	}
	waiting = map[string]func(*Job, float64){
		SeriesWaiting:     func(j *Job, v float64) { j.Devices = v },
		SeriesWaitingTime: func(j *Job, v float64) { j.Seconds = optional.Of(v) },
	}
)

// expr asks for everything at once. What distinguishes only who sent a sample, and how, is not a label of a Key.
var expr = func() string {
	names := slices.Concat(slices.Sorted(maps.Keys(series)), slices.Sorted(maps.Keys(queued)), slices.Sorted(maps.Keys(waiting)), []string{SeriesUp, SeriesUnusable})
	labels := slices.Concat([]string{fleet.LabelName, LabelCluster, LabelScheduler, LabelSize, LabelJob, LabelJobName}, slices.Sorted(maps.Keys(fields)))
	return "max by (" + strings.Join(labels, ", ") + ") (" + fleet.Select("", nil, fleet.LabelName+"=~"+strconv.Quote(strings.Join(names, "|"))) + ")"
}()

// At returns what every scheduler says at a moment, ordered by name and scheduler. A cluster is there as long as its
// scheduler is watched.
func At(ctx context.Context, store query.Store, at time.Time) ([]Cluster, error) {
	list, err := store.Instant(ctx, expr, at)
	if err != nil {
		return nil, err
	}
	clusters := map[[2]string]*reading{}
	for _, s := range list {
		id := [2]string{s.Labels[LabelCluster], s.Labels[LabelScheduler]}
		if math.IsNaN(s.Value) || id[1] == "" {
			continue
		}
		c := clusters[id]
		if c == nil {
			c = &reading{Cluster: Cluster{Name: id[0], Scheduler: id[1]}, jobs: map[string]*Job{}, queues: map[Key]*Queue{}}
			clusters[id] = c
		}
		c.add(s)
	}
	out := make([]Cluster, 0, len(clusters))
	for _, c := range clusters {
		out = append(out, c.finish())
	}
	slices.SortFunc(out, func(a, b Cluster) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Scheduler, b.Scheduler))
	})
	return out, nil
}

// reading is a Cluster that is being read.
type reading struct {
	Cluster
	jobs   map[string]*Job // by ID
	queues map[Key]*Queue
}

// add fills in what one series says.
func (c *reading) add(s query.Sample) {
	l := s.Labels
	switch name := l[fleet.LabelName]; {
	case name == SeriesUp:
		c.Up = optional.Flag(s.Value == 1)
	case name == SeriesUnusable:
		c.Unusable = optional.Of(s.Value)
	case waiting[name] != nil:
		// Between two rounds a job may be there twice, under its old and its new reason.
		j := c.jobs[l[LabelJob]]
		if j == nil {
			j = &Job{ID: l[LabelJob], Name: l[LabelJobName], Queue: l[LabelQueue], Team: l[LabelTeam], Model: l[LabelModel], Reason: l[LabelReason]}
			c.jobs[j.ID] = j
		}
		waiting[name](j, s.Value)
	case queued[name] != nil:
		key := Key{Queue: l[LabelQueue], Team: l[LabelTeam], Model: l[LabelModel]}
		q := c.queues[key]
		if q == nil {
			q = &Queue{Queue: key.Queue, Team: key.Team, Model: key.Model}
			c.queues[key] = q
		}
		*queued[name](q) = optional.Of(s.Value)
	default:
		c.count(name, s)
	}
}

// count adds a Count to its list.
func (c *reading) count(name string, s query.Sample) {
	one, ok := series[name]
	if !ok {
		return
	}
	n := Count{N: s.Value}
	for _, label := range one.labels {
		if field := fields[label]; field != nil {
			*field(&n.Key) = s.Labels[label]
			continue
		}
		size, err := strconv.Atoi(s.Labels[label])
		if err != nil || size < 1 {
			return
		}
		n.Size = size
	}
	list := one.list(&c.Cluster)
	*list = append(*list, n)
}

// finish returns the Cluster with its lists in order: of jobs, the longest wait first.
func (c *reading) finish() Cluster {
	for _, one := range series {
		sort(*one.list(&c.Cluster))
	}
	for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
		c.Waiting = append(c.Waiting, *c.jobs[id])
	}
	slices.SortStableFunc(c.Waiting, func(a, b Job) int {
		return cmp.Or(cmp.Compare(b.Seconds.Default(-1), a.Seconds.Default(-1)), cmp.Compare(b.Devices, a.Devices))
	})
	for _, q := range c.queues {
		c.Queues = append(c.Queues, *q)
	}
	slices.SortFunc(c.Queues, func(a, b Queue) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Team, b.Team), cmp.Compare(a.Model, b.Model))
	})
	return c.Cluster
}

// sort orders counts: the smallest size first, then the most.
func sort(list []Count) {
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(b.N, a.N), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Team, b.Team), cmp.Compare(a.Model, b.Model),
			cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Cause, b.Cause))
	})
}

// By returns sums of a list: key keeps or skips a count, and clears what is summed over.
func By(list []Count, key func(*Key) bool) []Count {
	sums := map[Key]float64{}
	for _, c := range list {
		if key(&c.Key) {
			sums[c.Key] += c.N
		}
	}
	out := make([]Count, 0, len(sums))
	for k, n := range sums {
		out = append(out, Count{k, n})
	}
	sort(out)
	return out
}

// Sum returns the sum of the counts that keep accepts.
func Sum(list []Count, keep func(Key) bool) float64 {
	n := 0.0
	for _, c := range list {
		if keep(c.Key) {
			n += c.N
		}
	}
	return n
}
