// Package queueing reads what queueing systems say of their own queues on their metrics pages, and says it in one vocabulary:
// the GPUs that a queue may have, has and waits for, its jobs, and how long they waited.
//
// It reads and computes only. Package pages finds and fetches the pages.
package queueing

import (
	"bytes"
	"math"
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

// Name is what a number is about.
type Name string

// The names. Numbers of GPUs may be parts of GPUs.
const (
	Limit     Name = "gpu.limit"         // GPUs that a queue can have at most
	Nominal   Name = "gpu.nominal"       // GPUs that are its own share
	Used      Name = "gpu.used"          // GPUs that it has
	Borrowed  Name = "gpu.borrowed"      // GPUs that it has beyond its own share
	Pending   Name = "gpu.pending"       // GPUs that its jobs wait for
	Capacity  Name = "gpu.capacity"      // GPUs of all queues together
	FairShare Name = "fair_share"        // how much of its fair share it has; whoever has less is served first
	Jobs      Name = "job.count"         // jobs by state
	Evicted   Name = "evicted"           // jobs that lost what they had, by reason; grows
	Attempts  Name = "attempts"          // attempts to place a job, by result; grows
	Wait      Name = "wait.duration"     // seconds from being there to being placed
	Attempt   Name = "attempt.duration"  // seconds that an attempt, or a cycle, took
	asked     Name = "asked for"         // GPUs that it has and waits for
	entitled  Name = "fair share of all" // GPUs that are its fair share now
)

// Point is what one number is about.
type Point struct {
	Name  Name
	Queue string // empty: of all queues, or the system has none
	Model string // of the GPUs, as the system calls it; empty: any, or not known
	Word  string // the state of jobs, the reason of evictions, the result of attempts
}

// Page is a metrics page.
type Page struct {
	Instance string // who served it
	Text     *promtext.Text
}

// Counter is one series of a page that grows until its process restarts. A total has several.
type Counter struct {
	Point
	Instance string
	series   string // identity on its page
	Value    float64
}

// Buckets are the values of a histogram, in seconds.
type Buckets struct {
	Bounds []float64 // finite upper bounds, ascending
	Counts []uint64  // one more than Bounds; not cumulative
	Count  uint64
	Sum    float64
}

// Histogram is one histogram of a page that grows until its process restarts.
type Histogram struct {
	Point
	Instance string
	series   string
	Buckets
}

// Reading is what the pages of one system say.
type Reading struct {
	System     string
	Gauges     map[Point]float64
	Counters   []Counter
	Histograms []Histogram
	// processes are when those that were read began, in seconds since 1970; 0: not known.
	processes map[string]float64
	// Refused counts series that make no sense, such as a negative number of jobs.
	Refused int
}

// Recognize returns the system whose page it is, empty if that is none that is known.
func Recognize(text *promtext.Text) string {
	best := len(systems)
	for i := range text.Samples {
		for at := range systems[:best] {
			if systems[at].marked(text.Samples[i].Name) {
				best = at
				break
			}
		}
	}
	if best == len(systems) {
		return ""
	}
	return systems[best].kind
}

// Wanted reports whether a line of a page tells something about queues, or of which system the page is. Pages may be large, and
// most of their lines are about other things.
func Wanted(line []byte) bool {
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 || line[0] == '#' {
		return false
	}
	name := string(line[:end])
	switch {
	case bytes.Contains(line, []byte(`resource="cpu"`)), bytes.Contains(line, []byte(`resource="memory"`)):
		return false // of each pod and queue
	case name == ksmPhase || name == ksmScheduled:
		return !bytes.HasSuffix(line, []byte("} 0")) // a pod has a line for each phase
	case families[name]:
		return true
	}
	return slices.ContainsFunc(systems, func(s system) bool { return s.marked(name) })
}

// Systems returns the systems that are known, as values of scheduler.type.
func Systems() []string {
	out := make([]string, len(systems))
	for i := range systems {
		out[i] = systems[i].kind
	}
	return out
}

// Standby reports whether a page is that of a process that waits to be elected: what it says of queues is not current, or says
// again what the elected one says.
func Standby(text *promtext.Text) bool {
	seen, leads, follows := false, false, false
	for i := range text.Samples {
		s := &text.Samples[i]
		switch role := s.Get(roleLabel); {
		case s.Name == election:
			seen, leads = true, leads || s.Value == 1
		case role == follower:
			follows = true
		case role != "":
			return false
		}
	}
	return follows || seen && !leads
}

// How processes say whether they are elected.
const (
	election  = "leader_election_master_status" // of client-go and controller-runtime
	roleLabel = "replica_role"                  // of Kueue since 0.16: leader, follower, standalone
	follower  = "follower"
	// began is when the process of a page started.
	began = "process_start_time_seconds"
)

// Read reads the pages of one system. Of gauges with the same labels on several pages, which are those of replicas, the first
// counts; parents are queues that have others below them, which the page may not tell.
func Read(system string, pages []Page, vendors device.Vendors, parents map[string]bool) *Reading {
	r := &reader{Reading: Reading{System: system, Gauges: map[Point]float64{}, processes: map[string]float64{}}, vendors: vendors}
	s := find(system)
	if s == nil {
		return &r.Reading
	}
	r.index(pages)
	found := false
	for i := range s.rules {
		rule := &s.rules[i]
		if rule.older && found {
			continue
		}
		found = r.apply(rule)
	}
	if s.made != nil {
		s.made(r)
	}
	inner := func(string) bool { return false }
	if s.inner != nil {
		inner = s.inner(r)
	}
	r.leave(func(queue string) bool { return queue != "" && (parents[queue] || inner(queue)) })
	r.derive()
	return &r.Reading
}

// find returns a system, or nil.
func find(kind string) *system {
	for i := range systems {
		if systems[i].kind == kind {
			return &systems[i]
		}
	}
	return nil
}

// derive adds what follows from other numbers.
func (r *reader) derive() {
	for p, v := range r.Gauges {
		used, ok := r.Gauges[Point{Name: Used, Queue: p.Queue, Model: p.Model}]
		of := func(name Name) Point { return Point{Name: name, Queue: p.Queue, Model: p.Model} }
		switch {
		case p.Name == asked: // whoever has nothing is not on the page
			r.Gauges[of(Pending)] = max(0, v-used)
		case p.Name == Nominal && ok:
			r.Gauges[of(Borrowed)] = max(0, used-v)
		case p.Name == entitled && ok && v > 0:
			r.Gauges[of(FairShare)] = used / v
		}
	}
	for p := range r.Gauges {
		if p.Name == asked || p.Name == entitled {
			delete(r.Gauges, p)
		}
	}
}

// leave removes what is about queues that are inner ones: their numbers are sums of others.
func (r *reader) leave(inner func(queue string) bool) {
	for p := range r.Gauges {
		if inner(p.Queue) {
			delete(r.Gauges, p)
		}
	}
	counters := r.Counters[:0]
	for _, c := range r.Counters {
		if !inner(c.Queue) {
			counters = append(counters, c)
		}
	}
	histograms := r.Histograms[:0]
	for _, h := range r.Histograms {
		if !inner(h.Queue) {
			histograms = append(histograms, h)
		}
	}
	r.Counters, r.Histograms = counters, histograms
}

// most is more than anything is counted. Systems write the largest number that they have for "no limit".
const most = 1 << 53

// sensible reports whether a number may be one of GPUs or jobs. Negative ones and infinite ones stand for "no limit".
func sensible(v float64) bool { return v >= 0 && v < most && !math.IsNaN(v) }
