package queue

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Moment is something that happened to a job.
type Moment struct {
	Time time.Time
	What What
	Text string // the reason of AtWaits, the result of AtEnded
}

// What happened to a job.
type What string

// What happens to a job, in the usual order.
const (
	AtCreated     What = "created"     // submitted
	AtReleased    What = "released"    // its last gate was removed, or it may start since then
	AtWaits       What = "waits"       // from here on for this reason
	AtScheduled   What = "scheduled"   // it has its devices
	AtSandboxed   What = "sandboxed"   // volumes and network are there
	AtInitialized What = "initialized" // init containers have ended
	AtStarted     What = "started"     // its first container, or the job
	AtHeld        What = "held"        // the agent of the node saw it on a device
	AtActive      What = "active"      // and saw the first work there
	AtEnded       What = "ended"
)

// order are the moments as they follow each other, for those that the clocks of several machines show at the same time.
var order = []What{AtCreated, AtReleased, AtWaits, AtScheduled, AtSandboxed, AtInitialized, AtStarted, AtHeld, AtActive, AtEnded}

// JobID is a job as the series of its scheduler and of the agents name it.
type JobID struct {
	Scheduler string // LabelScheduler: kubernetes or slurm
	Cluster   string // empty: any
	ID        string // UID of a pod, ID of a Slurm job
}

// holder returns the matchers of the series of its devices.
func (j JobID) holder() map[string]string {
	if j.Scheduler == Kubernetes {
		return map[string]string{fleet.LabelPodUID: j.ID}
	}
	m := map[string]string{fleet.LabelSlurmJob: j.ID}
	if j.Cluster != "" {
		m[fleet.LabelSlurmCluster] = j.Cluster
	}
	return m
}

// waiting returns the matchers of the series of its waiting.
func (j JobID) waiting() map[string]string {
	m := map[string]string{LabelScheduler: j.Scheduler, LabelJob: j.ID}
	if j.Cluster != "" {
		m[LabelCluster] = j.Cluster
	}
	return m
}

// Record is a log record about a job.
type Record struct {
	Time       time.Time
	Name       string
	Attributes map[string]string
}

// Names of the records that Timeline understands.
const (
	recordStarted  = "scheduler.job.started"
	recordEnded    = "scheduler.job.ended"
	recordSlurm    = "slurm.job" // of a job in the queue
	recordSlurmEnd = "slurm.job.end"
	recordHeld     = "gpu.workload.start"
)

// RecordNames returns the names of the records that Timeline understands.
func RecordNames() []string {
	return []string{recordStarted, recordEnded, recordSlurm, recordSlurmEnd, recordHeld}
}

// RecordsOf returns the attributes of the records of a job.
func RecordsOf(j JobID) map[string]string {
	if j.Scheduler == Kubernetes {
		return map[string]string{"k8s.pod.uid": j.ID}
	}
	out := map[string]string{"slurm.job.id": j.ID}
	if j.Cluster != "" {
		out["slurm.cluster"] = j.Cluster
	}
	return out
}

// times are the attributes of records that have a moment, in Unix seconds.
var times = map[string]What{
	"scheduler.job.created_time":     AtCreated,
	"scheduler.job.ungated_time":     AtReleased,
	"scheduler.job.scheduled_time":   AtScheduled,
	"scheduler.job.sandboxed_time":   AtSandboxed,
	"scheduler.job.initialized_time": AtInitialized,
	"scheduler.job.started_time":     AtStarted,
	"scheduler.job.ended_time":       AtEnded,
	"slurm.job.submit_time":          AtCreated,
	"slurm.job.eligible_time":        AtReleased,
	"slurm.job.start_time":           AtStarted,
	"slurm.job.end_time":             AtEnded,
}

// maxReasons bounds the changes of the reason that a timeline has.
const maxReasons = 20

// Timeline returns what is known of one job, in order: from its records, which may be in any order, and from the series of a
// store in (from, to]. What is not known is missing. Times are those of the machine that saw it.
func Timeline(ctx context.Context, store query.Store, j JobID, records []Record, from, to time.Time) ([]Moment, error) {
	t := timeline{}
	for i := range records {
		t.record(&records[i])
	}
	if at, ok := t[AtCreated]; ok && at.Time.After(from) && at.Time.Before(to) {
		from = at.Time.Add(-time.Minute) // clocks differ
	}
	s := span{store, from, to}
	waited, err := s.first(ctx, fleet.Select(SeriesWaitingTime, j.waiting()))
	if err != nil {
		return nil, err
	}
	if !waited.Time.IsZero() {
		// A Slurm job waits since it may start, a pod since it was created.
		t.earliest(map[bool]What{true: AtCreated, false: AtReleased}[j.Scheduler == Kubernetes], waited.Time)
	}
	list, err := s.reasons(ctx, j)
	if err != nil {
		return nil, err
	}
	if _, ok := t[AtHeld]; !ok {
		held, err := s.first(ctx, fleet.Select(fleet.SeriesAllocatedTime, j.holder()))
		if err != nil {
			return nil, err
		}
		t.earliest(AtHeld, held.Time)
	}
	active, err := s.first(ctx, fleet.Select(fleet.SeriesActiveTime, j.holder()))
	if err != nil {
		return nil, err
	}
	t.earliest(AtActive, active.Time)
	for i := range list { // they are known to the length of a step only
		if created, ok := t[AtCreated]; ok && list[i].Time.Before(created.Time) {
			list[i].Time = created.Time
		}
	}
	for _, m := range t {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b Moment) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(slices.Index(order, a.What), slices.Index(order, b.What)), cmp.Compare(a.Text, b.Text))
	})
	return list, nil
}

// timeline has what happens once.
type timeline map[What]Moment

// earliest records a moment unless an earlier one is known. A zero time is none.
func (t timeline) earliest(what What, at time.Time) {
	if old, ok := t[what]; !at.IsZero() && (!ok || at.Before(old.Time)) {
		t[what] = Moment{Time: at, What: what}
	}
}

func (t timeline) record(r *Record) {
	if r.Name == recordHeld {
		t.earliest(AtHeld, r.Time)
		return
	}
	for key, what := range times {
		seconds, err := strconv.ParseInt(r.Attributes[key], 10, 64)
		if err != nil || seconds <= 0 {
			continue
		}
		// Of a job in the queue, Slurm says when it expects the start and the end.
		if r.Name == recordSlurm && (what == AtEnded || what == AtStarted && r.Attributes["slurm.job.state"] == "pending") {
			continue
		}
		t.earliest(what, time.Unix(seconds, 0).UTC())
	}
	if m, ok := t[AtEnded]; ok && (r.Name == recordEnded || r.Name == recordSlurmEnd) {
		m.Text = cmp.Or(r.Attributes["scheduler.job.result"], r.Attributes["slurm.job.state"])
		t[AtEnded] = m
	}
}

// span is a period of a store.
type span struct {
	store    query.Store
	from, to time.Time
}

// steps is into how many parts a period is divided to find something in it.
const steps = 300

// step returns the length of the parts. Less than the interval of samples would find nothing.
func (s span) step() time.Duration {
	return max(30*time.Second, s.to.Sub(s.from)/steps).Truncate(time.Second)
}

// first returns the first value of a selector above 0. All series of it count seconds, and its time is when they began to.
func (s span) first(ctx context.Context, selector string) (query.Point, error) {
	step := s.step()
	coarse, err := s.store.Range(ctx, "max ("+fleet.Over("max_over_time", selector, query.Duration(step))+")", s.from.Add(step), s.to.Add(step), step)
	if err != nil {
		return query.Point{}, err
	}
	var at time.Time
	for _, c := range coarse {
		i := slices.IndexFunc(c.Points, func(p query.Point) bool { return p.Value > 0 })
		if i >= 0 && (at.IsZero() || c.Points[i].Time.Before(at)) {
			at = c.Points[i].Time
		}
	}
	if at.IsZero() {
		return query.Point{}, nil
	}
	fine, err := s.store.Raw(ctx, selector, at.Add(-step), at)
	if err != nil {
		return query.Point{}, err
	}
	var first query.Point
	for _, f := range fine {
		i := slices.IndexFunc(f.Points, func(p query.Point) bool { return p.Value > 0 })
		if i < 0 {
			continue
		}
		p := f.Points[i]
		if p.Time = p.Time.Add(-time.Duration(p.Value * float64(time.Second))); first.Time.IsZero() || p.Time.Before(first.Time) {
			first = p
		}
	}
	return first, nil
}

// reasons returns from when a job waited for which reason, as far as it was one of those that had waited longest.
func (s span) reasons(ctx context.Context, j JobID) ([]Moment, error) {
	step := s.step()
	expr := "max by (" + LabelReason + ") (" + fleet.Over("max_over_time", fleet.Select(SeriesWaiting, j.waiting()), query.Duration(step)) + ")"
	list, err := s.store.Range(ctx, expr, s.from.Add(step), s.to.Add(step), step)
	if err != nil {
		return nil, err
	}
	var out []Moment
	for _, one := range list {
		for i, p := range one.Points {
			if i == 0 || p.Time.Sub(one.Points[i-1].Time) > step+fleet.Near { // a sample may be that far from the next
				out = append(out, Moment{p.Time.Add(-step), AtWaits, one.Labels[LabelReason]})
			}
		}
	}
	slices.SortFunc(out, func(a, b Moment) int { return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Text, b.Text)) })
	return out[:min(len(out), maxReasons)], nil
}

// FindPod returns the UID of the pod of a name, the newest one in (from, to] that waited or had a device, empty if there is none.
func FindPod(ctx context.Context, store query.Store, namespace, name string, from, to time.Time) (string, error) {
	s := span{store, from, to}
	step := s.step()
	uid, newest := "", time.Time{}
	for _, of := range []struct{ uid, selector string }{
		{fleet.LabelPodUID, fleet.Select(fleet.SeriesAllocation, map[string]string{fleet.LabelNamespace: namespace, fleet.LabelPod: name})},
		{LabelJob, fleet.Select(SeriesWaiting, map[string]string{LabelScheduler: Kubernetes, LabelQueue: namespace, LabelJobName: name})},
	} {
		list, err := store.Range(ctx, "max by ("+of.uid+") ("+fleet.Over("max_over_time", of.selector, query.Duration(step))+")", from.Add(step), to.Add(step), step)
		if err != nil {
			return "", err
		}
		for _, one := range list {
			id := one.Labels[of.uid]
			if n := len(one.Points); n > 0 && id != "" && one.Points[n-1].Time.After(newest) {
				uid, newest = id, one.Points[n-1].Time
			}
		}
	}
	return uid, nil
}
