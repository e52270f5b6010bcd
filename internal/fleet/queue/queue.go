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
	Name      string // may be empty: Kubernetes does not know the name of a cluster
	Scheduler string // slurm, kubernetes
	Up        bool   // it answered everything

	Jobs    []Count // with devices, by queue, team and state
	Waiting []Count // jobs with devices, by queue, team and reason

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

// series are the lists with their series, and the labels that fill a Key beside the scheduler.
var series = map[string]struct {
	list   func(*Cluster) *[]Count
	labels []string
}{
	fleet.SeriesQueueJobs:       {func(c *Cluster) *[]Count { return &c.Jobs }, []string{fleet.LabelQueue, fleet.LabelQueueTeam, fleet.LabelQueueState}},
	fleet.SeriesQueueWaiting:    {func(c *Cluster) *[]Count { return &c.Waiting }, []string{fleet.LabelQueue, fleet.LabelQueueTeam, fleet.LabelQueueReason}},
	fleet.SeriesQueuePending:    {func(c *Cluster) *[]Count { return &c.Pending }, []string{fleet.LabelQueue, fleet.LabelQueueTeam, fleet.LabelQueueModel, fleet.LabelQueueReason}},
	fleet.SeriesQueueAllocated:  {func(c *Cluster) *[]Count { return &c.Allocated }, []string{fleet.LabelQueue, fleet.LabelQueueTeam, fleet.LabelQueueModel}},
	fleet.SeriesQueueDevices:    {func(c *Cluster) *[]Count { return &c.Devices }, []string{fleet.LabelQueueModel, fleet.LabelQueueDeviceState}},
	fleet.SeriesQueueStranded:   {func(c *Cluster) *[]Count { return &c.Stranded }, []string{fleet.LabelQueueModel, fleet.LabelQueueStranded}},
	fleet.SeriesQueuePlaceable:  {func(c *Cluster) *[]Count { return &c.Placeable }, []string{fleet.LabelQueueModel, fleet.LabelQueueSize}},
	fleet.SeriesQueueFragmented: {func(c *Cluster) *[]Count { return &c.Fragmented }, []string{fleet.LabelQueueModel, fleet.LabelQueueSize}},
}

// fields are the fields of a Key by label.
var fields = map[string]func(*Key) *string{
	fleet.LabelQueue:            func(k *Key) *string { return &k.Queue },
	fleet.LabelQueueTeam:        func(k *Key) *string { return &k.Team },
	fleet.LabelQueueModel:       func(k *Key) *string { return &k.Model },
	fleet.LabelQueueState:       func(k *Key) *string { return &k.State },
	fleet.LabelQueueDeviceState: func(k *Key) *string { return &k.State },
	fleet.LabelQueueReason:      func(k *Key) *string { return &k.Reason },
	fleet.LabelQueueStranded:    func(k *Key) *string { return &k.Cause },
}

// expr asks for everything at once. What distinguishes only who sent a sample, and how, is not a label of a Key.
var expr = func() string {
	names := slices.Concat(slices.Sorted(maps.Keys(series)), []string{fleet.SeriesSchedulerUp, fleet.SeriesQueueUnusable})
	labels := slices.Concat([]string{fleet.LabelName, fleet.LabelSchedulerCluster, fleet.LabelScheduler, fleet.LabelQueueSize}, slices.Sorted(maps.Keys(fields)))
	return "max by (" + strings.Join(labels, ", ") + ") (" + fleet.Select("", nil, fleet.LabelName+"=~"+strconv.Quote(strings.Join(names, "|"))) + ")"
}()

// At returns what every scheduler says at a moment, ordered by name and scheduler. A cluster is there as long as its
// scheduler is watched.
func At(ctx context.Context, store query.Store, at time.Time) ([]Cluster, error) {
	list, err := store.Instant(ctx, expr, at)
	if err != nil {
		return nil, err
	}
	clusters := map[[2]string]*Cluster{}
	for _, s := range list {
		id := [2]string{s.Labels[fleet.LabelSchedulerCluster], s.Labels[fleet.LabelScheduler]}
		if math.IsNaN(s.Value) || id[1] == "" {
			continue
		}
		c := clusters[id]
		if c == nil {
			c = &Cluster{Name: id[0], Scheduler: id[1]}
			clusters[id] = c
		}
		c.add(s)
	}
	out := make([]Cluster, 0, len(clusters))
	for _, c := range clusters {
		for _, one := range series {
			sort(*one.list(c))
		}
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b Cluster) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Scheduler, b.Scheduler))
	})
	return out, nil
}

// add fills in what one series says.
func (c *Cluster) add(s query.Sample) {
	switch name := s.Labels[fleet.LabelName]; name {
	case fleet.SeriesSchedulerUp:
		c.Up = s.Value == 1
	case fleet.SeriesQueueUnusable:
		c.Unusable = optional.Of(s.Value)
	default:
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
		list := one.list(c)
		*list = append(*list, n)
	}
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
