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
	AtReserved    What = "reserved"    // its queueing system gave it quota
	AtAdmitted    What = "admitted"    // and admitted it
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
var order = []What{AtCreated, AtReserved, AtAdmitted, AtReleased, AtWaits, AtScheduled, AtSandboxed, AtInitialized, AtStarted, AtHeld, AtActive, AtEnded}

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
	"scheduler.job.reserved_time":    AtReserved,
	"scheduler.job.admitted_time":    AtAdmitted,
	"scheduler.job.ungated_time":     AtReleased,
	"scheduler.job.scheduled_time":   AtScheduled,
	"scheduler.job.sandboxed_time":   AtSandboxed,
	"scheduler.job.initialized_time": AtInitialized,
	"scheduler.job.started_time":     AtStarted,
	"scheduler.job.ended_time":       AtEnded,
	"slurm.job.submit_time":          AtCreated,
	"slurm.job.eligible_time":        AtReleased,
} // start and end of a Slurm job: see run

// maxReasons bounds the changes of the reason that a timeline has.
const maxReasons = 20

// Timeline returns what is known of one job, in order: from its records, which may be in any order, and from the series of a
// store in (from, to]. What is not known is missing. Times are those of the machine that saw it.
func Timeline(ctx context.Context, store query.Store, j JobID, records []Record, from, to time.Time) ([]Moment, error) {
	t := timeline{}
	var last run
	for i := range records {
		t.record(&records[i])
		last.record(&records[i])
	}
	last.into(t)
	created, born := t[AtCreated] // in the period
	if born = born && created.Time.After(from) && created.Time.Before(to); born {
		from = created.Time.Add(-time.Minute) // clocks differ
	}
	s := span{store, from, to}
	waited, err := s.waited(ctx, fleet.Select(SeriesWaitingTime, j.waiting()))
	if err != nil {
		return nil, err
	}
	// A Slurm job waits since it may start, a pod since it was created.
	t.earliest(map[bool]What{true: AtCreated, false: AtReleased}[j.Scheduler == Kubernetes], waited)
	list, err := s.reasons(ctx, j)
	if err != nil {
		return nil, err
	}
	if _, ok := t[AtHeld]; !ok {
		held, err := s.began(ctx, fleet.Select(fleet.SeriesAllocatedTime, j.holder()), born)
		if err != nil {
			return nil, err
		}
		t.earliest(AtHeld, held)
	}
	active, err := s.began(ctx, fleet.Select(fleet.SeriesActiveTime, j.holder()), born)
	if err != nil {
		return nil, err
	}
	t.earliest(AtActive, active)
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
		t.earliest(what, r.at(key))
	}
	if m, ok := t[AtEnded]; ok && r.Name == recordEnded {
		m.Text = r.Attributes["scheduler.job.result"]
		t[AtEnded] = m
	}
}

// at returns the time of an attribute in Unix seconds, zero if there is none.
func (r *Record) at(key string) time.Time {
	seconds, err := strconv.ParseInt(r.Attributes[key], 10, 64)
	if err != nil || seconds <= 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

// run is the last run of a Slurm job: it has several if it was requeued, and a record of each.
type run struct {
	start, end time.Time // zero: not known
	state      string    // in which it ended
}

// began is when the run began, as far as is known: a job that was canceled before its start has only an end.
func (n run) began() time.Time {
	if n.start.IsZero() {
		return n.end
	}
	return n.start
}

// record takes a record if it is of a later run than those before, or says how the last one ended.
func (n *run) record(r *Record) {
	one := run{start: r.at("slurm.job.start_time")}
	switch {
	case r.Name == recordSlurmEnd:
		one.end, one.state = r.at("slurm.job.end_time"), r.Attributes["slurm.job.state"]
	case r.Name != recordSlurm || r.Attributes["slurm.job.state"] == "pending":
		return // of a job in the queue, Slurm says when it expects the start and the end
	}
	if c := one.began().Compare(n.began()); c > 0 || c == 0 && one.end.After(n.end) {
		*n = one
	}
}

// into adds the run to a timeline.
func (n run) into(t timeline) {
	t.earliest(AtStarted, n.start)
	if !n.end.IsZero() && !n.end.Before(n.start) {
		t[AtEnded] = Moment{n.end, AtEnded, n.state}
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

// waited returns since when a job waits by the first value above 0 of a selector, whose series count all seconds of the wait.
func (s span) waited(ctx context.Context, selector string) (first time.Time, err error) {
	list, err := s.first(ctx, selector)
	for _, points := range list {
		p := points[len(points)-1]
		if at := p.Time.Add(-time.Duration(p.Value * float64(time.Second))); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first, err
}

// began returns when the first series of a selector began to count, to the length of an interval between samples. These series
// count weighted seconds, so their values do not say when: it is the last sample at 0, or the first above. The time is zero if it is
// not known because they may have begun before the period. A job that was born in the period has nothing from before.
func (s span) began(ctx context.Context, selector string, born bool) (first time.Time, err error) {
	list, err := s.first(ctx, selector)
	for _, points := range list {
		p := points[len(points)-1]
		if n := len(points) - 2; n >= 0 {
			p.Time = points[n].Time
		} else if !born && (p.Time.Sub(s.from) <= fleet.Near || p.Value > p.Time.Sub(s.from).Seconds()) {
			return time.Time{}, nil
		}
		if first.IsZero() || p.Time.Before(first) {
			first = p.Time
		}
	}
	return first, err
}

// first returns the samples of the series of a selector that were the first to be above 0: each list ends with the first such
// sample, and has those shortly before it.
func (s span) first(ctx context.Context, selector string) ([][]query.Point, error) {
	step := s.step()
	coarse, err := s.store.Range(ctx, "max ("+fleet.Over("max_over_time", selector, query.Duration(step))+")", s.from.Add(step), s.to.Add(step), step)
	if err != nil {
		return nil, err
	}
	var at time.Time
	for _, c := range coarse {
		i := slices.IndexFunc(c.Points, func(p query.Point) bool { return p.Value > 0 })
		if i >= 0 && (at.IsZero() || c.Points[i].Time.Before(at)) {
			at = c.Points[i].Time
		}
	}
	if at.IsZero() {
		return nil, nil
	}
	since := at.Add(-step - fleet.Near)
	if since.Before(s.from) {
		since = s.from
	}
	fine, err := s.store.Raw(ctx, selector, since, at)
	if err != nil {
		return nil, err
	}
	var out [][]query.Point
	for _, f := range fine {
		if i := slices.IndexFunc(f.Points, func(p query.Point) bool { return p.Value > 0 }); i >= 0 {
			out = append(out, f.Points[:i+1])
		}
	}
	return out, nil
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
