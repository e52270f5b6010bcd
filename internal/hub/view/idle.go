package view

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// A device is idle if somebody holds it and has not used it for idleAfter. Used means
// more than usedAtLeast of a step of the history: a notebook that looks at its GPU once a
// minute does not work on it.
const (
	idleAfter   = 10 * time.Minute
	usedAtLeast = 0.02
	quietUtil   = 0.05 // who is busier at this moment is not looked at

	recently     = time.Hour // is looked at more closely
	longAgo      = 24 * time.Hour
	maxIdleCells = 200_000 // devices times steps of one look
	maxNamed     = 250     // devices that are named in one question: some stores take no longer one
	maxQuestions = 8       // if there are more devices, all of the fleet are asked for
)

// idleness finds out how long the devices that are held have not been used.
func (v *viewer) idleness(ctx context.Context, f *fleet) error {
	var quiet []int
	for i := range f.gpus {
		switch g := &f.gpus[i]; {
		case g.held == 0 || math.IsNaN(g.util):
		case g.util >= quietUtil:
			g.idle = 0
		default:
			quiet = append(quiet, i)
		}
	}
	left, err := v.lookBack(ctx, f, quiet, recently, 2*time.Minute)
	if err != nil {
		return err
	}
	_, err = v.lookBack(ctx, f, left, longAgo, 30*time.Minute)
	return err
}

// lookBack sets for how long devices are idle, up to a length of time, and returns those
// that have been for all of it.
func (v *viewer) lookBack(ctx context.Context, f *fleet, which []int, length, step time.Duration) ([]int, error) {
	if len(which) == 0 {
		return nil, nil
	}
	if least := length * time.Duration(len(which)) / maxIdleCells; step < least {
		step = least.Round(time.Second)
	}
	series, err := v.uses(ctx, f, which, length, step)
	if err != nil {
		return nil, err
	}
	idle := map[int]time.Duration{}
	for _, s := range series {
		i, ok := f.index[s.Labels["gpu_uuid"]]
		if !ok || !f.holds(i, s.Labels) || len(s.Points) == 0 || !s.Points[len(s.Points)-1].Time.After(f.at.Add(-step)) {
			continue // nobody's, or of somebody who has left
		}
		d := streak(s.Points)
		if before, ok := idle[i]; ok {
			d = min(d, before) // one of them uses it
		}
		idle[i] = d
	}
	var left []int
	for _, i := range which {
		d, ok := idle[i]
		if !ok {
			continue
		}
		// The second look is coarser: it may not take away what the first saw.
		if g := &f.gpus[i]; math.IsNaN(g.idle) || d.Minutes() > g.idle {
			g.idle = math.Floor(d.Minutes())
		}
		if d >= length-step {
			left = append(left, i)
		}
	}
	return left, nil
}

// exprUse is how long each workload has used devices, with %s for the selector of them.
const exprUse = `max by (gpu_uuid, gpu_partition_id, gpu_workload_kind, gpu_workload_name, ` +
	`k8s_pod_uid, k8s_container_name, container_id, slurm_job_id) ` +
	`(gpu_workload_active_time_seconds_total%s)`

// uses returns how long each workload has used the devices in which, over a length of time.
func (v *viewer) uses(ctx context.Context, f *fleet, which []int, length, step time.Duration) ([]query.Series, error) {
	if len(which) > maxNamed*maxQuestions {
		return v.store.Range(ctx, fmt.Sprintf(exprUse, ""), f.at.Add(-length), f.at, step)
	}
	var out []query.Series
	for part := range slices.Chunk(which, maxNamed) {
		uuids := make([]string, len(part))
		for i, n := range part {
			uuids[i] = regexp.QuoteMeta(f.gpus[n].uuid)
		}
		series, err := v.store.Range(ctx, fmt.Sprintf(exprUse, `{gpu_uuid=~`+strconv.Quote(strings.Join(uuids, "|"))+`}`), f.at.Add(-length), f.at, step)
		if err != nil {
			return nil, err
		}
		out = append(out, series...)
	}
	return out, nil
}

// holds reports whether the workload of a series has a device now.
func (f *fleet) holds(i int, l query.Labels) bool {
	return slices.ContainsFunc(f.gpus[i].owners, func(n int) bool {
		o := &f.owners[n]
		return o.Kind == l["gpu_workload_kind"] && o.Name == l["gpu_workload_name"] && o.Job == l["slurm_job_id"]
	})
}

// streak returns for how long a count of seconds of use has not grown.
func streak(points []query.Point) time.Duration {
	last := len(points) - 1
	first := last
	for ; first > 0; first-- {
		a, b := points[first-1], points[first]
		used := b.Value - a.Value
		if used < 0 || used > usedAtLeast*b.Time.Sub(a.Time).Seconds() {
			break
		}
	}
	return points[last].Time.Sub(points[first].Time)
}
