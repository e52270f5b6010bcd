package workload

import (
	"maps"
	"sync"
	"time"
)

// ReportedFor is how long a report stands: applications report at least once a minute.
const ReportedFor = 5 * time.Minute

// maxReports bounds what is remembered.
const maxReports = 4096

// Reports says which jobs report a metric by themselves, see Workload.JobKey, so that nobody else counts it as well. The zero
// value is ready. It is safe for concurrent use.
type Reports struct {
	mu      sync.Mutex
	last    map[report]time.Time
	watched map[string]time.Time
	swept   time.Time
}

// sweep forgets what is over, at most once a minute.
func (r *Reports) sweep(now time.Time) {
	if now.Sub(r.swept) < time.Minute {
		return
	}
	r.swept = now
	maps.DeleteFunc(r.last, func(_ report, t time.Time) bool { return now.Sub(t) > ReportedFor })
	maps.DeleteFunc(r.watched, func(_ string, t time.Time) bool { return now.Sub(t) > ReportedFor })
}

type report struct{ job, metric string }

// Report notes that a job has reported a metric. It returns whether it has been watched from outside
// before, so that its beginning has been counted already.
func (r *Reports) Report(job, metric string, at time.Time) (watched bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[report]time.Time{}
	}
	r.sweep(at)
	key := report{job, metric}
	if _, there := r.last[key]; there || len(r.last) < maxReports {
		r.last[key] = at
	}
	_, watched = r.watched[job]
	return watched
}

// Reported returns whether a job reports a metric.
func (r *Reports) Reported(job, metric string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.last[report{job, metric}]
	return ok && now.Sub(at) <= ReportedFor
}

// Watch notes that a job is watched from outside.
func (r *Reports) Watch(job string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched == nil {
		r.watched = map[string]time.Time{}
	}
	r.sweep(now)
	if _, there := r.watched[job]; there || len(r.watched) < maxReports {
		r.watched[job] = now
	}
}
