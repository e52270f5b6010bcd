package queueing

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Limits of what one system may report, whatever its pages have.
const (
	// maxQueues bounds the queues that are told apart, maxWords the models of GPUs and the reasons of evictions. Others share
	// one, called other.
	maxQueues, maxWords = 500, 50
	// maxSeries bounds the series that are remembered because they grow. Those beyond it do not count.
	maxSeries = 20_000
	// forget is after how many readings without it a process is forgotten.
	forget = 120
)

// other replaces the name of what is beyond a limit.
const other = "other"

// Value is a number.
type Value struct {
	Point
	N float64
}

// Sum is a number that only grows, also over restarts of the process that counts.
type Sum struct {
	Point
	Instance string
	Since    time.Time // when it was 0; zero: not known
	N        float64
}

// Durations is a histogram that only grows.
type Durations struct {
	Point
	Instance string
	Since    time.Time
	Buckets
}

// Report is what a system says, within the limits.
type Report struct {
	Values    []Value
	Sums      []Sum
	Durations []Durations
	// Refused counts what made no sense or was beyond a limit.
	Refused int
}

// Memory knows what a system said before: which queues are told apart, and what its processes have counted since they are
// watched.
type Memory struct {
	queues, models, words map[string]bool
	processes             map[string]*process // by instance
	totals                map[totalKey]*total
	series                int // of all totals
	reading               int
}

// process is who counts at an address: one process after the other, or several in turn behind a load balancer.
type process struct {
	starts []float64 // when they began, in seconds since 1970, the last few; 0: not known
	now    float64   // of starts, that of this reading
	read   time.Time
	// since is when what a new series at this address has counted was 0 at the latest; zero: not known.
	since time.Time
	seen  int // the last reading that had it
}

// maxStarts bounds the processes of an address that are told apart.
const maxStarts = 4

// part is a series of one process at an address.
type part struct {
	started float64
	series  string
}

type totalKey struct {
	Point
	instance string
}

// total is the sum of several series of one process.
type total struct {
	since  time.Time
	n      float64
	all    *Buckets         // of a histogram
	series map[part]Buckets // the last values: of a counter in Sum
}

// NewMemory returns a Memory that knows nothing.
func NewMemory() *Memory {
	return &Memory{
		queues: map[string]bool{}, models: map[string]bool{}, words: map[string]bool{},
		processes: map[string]*process{}, totals: map[totalKey]*total{},
	}
}

// Follow returns what a reading says. watched is since when its pages would have been read.
//
// What a process has counted before it was first read is part of a sum, whose start is not known then.
func (m *Memory) Follow(r *Reading, now, watched time.Time) *Report {
	m.reading++
	out := &Report{Refused: r.Refused}
	out.Values = m.fold(r.Gauges)
	for instance, started := range r.processes {
		m.process(instance, started, now, watched)
	}
	for _, c := range r.Counters {
		if !m.add(totalKey{m.known(c.Point), c.Instance}, c.series, Buckets{Sum: c.Value}) {
			out.Refused++
		}
	}
	for _, h := range r.Histograms {
		if !m.add(totalKey{m.known(h.Point), h.Instance}, h.series, h.Buckets) {
			out.Refused++
		}
	}
	// Also of those that the page no longer has: a process that began anew has not counted everything yet.
	for _, key := range slices.SortedFunc(maps.Keys(m.totals), totalKey.compare) {
		t := m.totals[key]
		since := t.since
		if since.After(now) { // the clock was set back
			since = now
		}
		switch {
		case m.processes[key.instance].seen != m.reading:
		case t.all != nil:
			out.Durations = append(out.Durations, Durations{key.Point, key.instance, since, Buckets{t.all.Bounds, slices.Clone(t.all.Counts), t.all.Count, t.all.Sum}})
		default:
			out.Sums = append(out.Sums, Sum{key.Point, key.instance, since, t.n})
		}
	}
	m.forget()
	return out
}

// process updates what is known of who counts at an address.
func (m *Memory) process(instance string, started float64, now, watched time.Time) {
	p := m.processes[instance]
	if p == nil {
		p = &process{}
		if at := time.UnixMilli(int64(started * 1000)); started > 0 && at.After(watched) && !at.After(now) {
			p.since = at
		}
		m.processes[instance] = p
	} else {
		p.since = p.read
	}
	p.read, p.seen = now, m.reading
	const rounding = 2 // seconds, of clocks that are adjusted
	i := slices.IndexFunc(p.starts, func(known float64) bool { return started == 0 || known == 0 || math.Abs(started-known) <= rounding })
	if i < 0 {
		p.starts = append([]float64{started}, p.starts...)
		i = 0
	}
	p.now = p.starts[i]
	if len(p.starts) > maxStarts {
		m.drop(instance, p.starts[maxStarts])
		p.starts = p.starts[:maxStarts]
	}
}

// drop forgets the series of a process.
func (m *Memory) drop(instance string, started float64) {
	for key, t := range m.totals {
		if key.instance != instance {
			continue
		}
		before := len(t.series)
		maps.DeleteFunc(t.series, func(s part, _ Buckets) bool { return s.started == started })
		m.series -= before - len(t.series)
	}
}

// add takes the value of a series. It reports whether it counts.
func (m *Memory) add(key totalKey, series string, now Buckets) bool {
	t, p := m.totals[key], m.processes[key.instance]
	if t != nil && t.all != nil && !slices.Equal(t.all.Bounds, now.Bounds) { // an upgrade
		m.series -= len(t.series)
		delete(m.totals, key) // also if there is no room for the new one
		t = nil
	}
	if t == nil {
		if m.series >= maxSeries {
			return false
		}
		t = &total{since: p.since, series: map[part]Buckets{}}
		if now.Counts != nil {
			t.all = &Buckets{Bounds: now.Bounds, Counts: make([]uint64, len(now.Counts))}
		}
		m.totals[key] = t
	}
	of := part{p.now, series}
	before, known := t.series[of]
	if !known {
		if m.series >= maxSeries {
			return false
		}
		m.series++
	}
	if now.below(before) { // it began anew, and does not say when
		before = Buckets{}
	}
	t.series[of] = now
	if t.all == nil {
		t.n += now.Sum - before.Sum
		return true
	}
	for i, n := range now.Counts {
		if before.Counts != nil {
			n -= before.Counts[i]
		}
		t.all.Counts[i] += n
	}
	t.all.Count += now.Count - before.Count
	t.all.Sum = max(t.all.Sum, t.all.Sum+now.Sum-before.Sum)
	return true
}

// below reports whether a series has counted less than before: its process began anew.
func (b Buckets) below(before Buckets) bool {
	if b.Counts == nil {
		return b.Sum < before.Sum
	}
	if len(before.Counts) != len(b.Counts) {
		return true
	}
	for i, n := range b.Counts {
		if n < before.Counts[i] {
			return true
		}
	}
	return false
}

// forget forgets processes that have not been read for long.
func (m *Memory) forget() {
	for instance, p := range m.processes {
		if m.reading-p.seen <= forget {
			continue
		}
		delete(m.processes, instance)
		maps.DeleteFunc(m.totals, func(key totalKey, t *total) bool {
			if key.instance == instance {
				m.series -= len(t.series)
			}
			return key.instance == instance
		})
	}
}

// fold returns numbers within the limits. Those beyond them are added up as the queue other, unless a sum of them means nothing.
func (m *Memory) fold(gauges map[Point]float64) []Value {
	points := slices.SortedFunc(maps.Keys(gauges), func(a, b Point) int {
		return cmp.Or(cmp.Compare(gauges[b], gauges[a]), a.compare(b)) // the largest are the first to be told apart
	})
	sums := map[Point]float64{}
	for _, p := range points {
		folded := m.known(p)
		if folded != p && (p.Name == FairShare || p.Name == Limit) {
			continue
		}
		sums[folded] += gauges[p]
	}
	out := make([]Value, 0, len(sums))
	for _, p := range slices.SortedFunc(maps.Keys(sums), Point.compare) {
		out = append(out, Value{p, sums[p]})
	}
	return out
}

// known returns a point whose names are within the limits.
func (m *Memory) known(p Point) Point {
	p.Queue = within(m.queues, p.Queue, maxQueues)
	p.Model = within(m.models, p.Model, maxWords)
	if p.Name == Evicted { // the words of others are ours
		p.Word = within(m.words, p.Word, maxWords)
	}
	return p
}

func within(known map[string]bool, name string, limit int) string {
	switch {
	case name == "" || known[name]:
		return name
	case len(known) >= limit:
		return other
	}
	known[name] = true
	return name
}

func (k totalKey) compare(o totalKey) int {
	return cmp.Or(k.Point.compare(o.Point), cmp.Compare(k.instance, o.instance))
}

func (p Point) compare(o Point) int {
	return cmp.Or(cmp.Compare(p.Name, o.Name), cmp.Compare(p.Queue, o.Queue), cmp.Compare(p.Model, o.Model), cmp.Compare(p.Word, o.Word))
}
