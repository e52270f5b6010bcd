package inference

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"
)

// Growth follows the counters and histograms of one engine from reading to reading, and makes totals of
// them that never fall: a point may be the sum of several series of the page, of ranks or workers that
// end and begin at their own times, and the sum of what is left would read as a restart of all.
//
// It also knows since when a total has grown from zero. What an engine counted before it was first read is
// part of the total, without such a time, if the page has it for as long as the process lives. Otherwise
// the total begins with the first reading: after a restart of the agent it would be lower than before,
// and read as if the engine had begun anew.
type Growth struct {
	// Watched is since when the engine would have been found.
	Watched time.Time

	// When the engine's process started, in seconds since 1970, as its page and the machine say; 0: unknown.
	page, process float64
	past          []float64 // what pages said before, the last few
	turns         int       // readings of a process from before, one after the other
	read          time.Time // the last reading; zero: none
	began         time.Time // of what the first reading had
	lasting       bool      // what the first reading had stays for as long as the process lives
	points        map[string]*grown
	values        int // of all parts
	reading       int
}

// grown is one total.
type grown struct {
	since time.Time
	parts map[string]*part
	width int      // values of a part: 1, or the buckets of a histogram
	order []string // of parts, so that sums of floating-point numbers are the same each time
	// changes counts those of the bounds. An upgrade changes them once, and what is on the page then is new; bounds
	// that change again may be those of two engines that answer in turn.
	changes int
	// before is what there was when the total began, if that is no part of it.
	relative bool
	before   float64
	befores  *Buckets
	now      float64 // the last sums, with what there was before
	nows     *Buckets
}

// part is what one series of the page contributes to a total.
type part struct {
	minus bool
	seen  int // the last reading that had it
	// base is what the series had before it last began anew.
	base, last   float64
	bases, lasts *Buckets
}

// forget is after how many readings a part that the page no longer has becomes a number: a worker that
// returns later begins anew. So does one beyond maxParts of a total.
const forget, maxParts = 360, 4096

// maxTotals bounds the totals of an engine, for as long as its process lives: a page may have other
// labels in each reading. maxValues bounds what their parts have together, numbers and buckets: beyond it what the
// last reading did not have becomes a number, and there are no new totals.
const maxTotals, maxValues = 4 * maxPoints, 1 << 16

// maxPast bounds the processes that are remembered of one address. After maxTurns readings the one that has
// returned is followed.
const maxPast, maxTurns = 16, 3

// ErrAlternates reports a page of a process whose place another had taken: whoever answers changes from reading
// to reading, and what they have counted would count each time.
var ErrAlternates = errors.New("several processes answer in turn: behind a load balancer each engine has to be listed by its own address")

// Follow replaces the values of the counters and histograms of a reading by totals, and sets Since.
// process is when the engine's process began, zero if that is only known from the page, or not at all.
// Points beyond a limit are removed and counted. A reading that returns an error is not followed.
func (g *Growth) Follow(r *Reading, at, process time.Time) error {
	page, own := r.Started, 0.0
	if !process.IsZero() {
		own = float64(process.UnixMilli()) / 1000
	}
	switch other := differ(g.page, page); {
	case g.points == nil, g.restarted(page, own):
		g.begin(cmp.Or(page, own), at)
		g.process = 0
	case other && slices.Contains(g.past, page):
		if g.turns++; g.turns < maxTurns {
			return ErrAlternates
		}
		g.begin(0, at)
		g.began = time.Time{} // what it has counted may have been counted
	}
	g.turns = 0
	if differ(g.page, page) {
		g.past = append(g.past, g.page)
		g.past = g.past[max(0, len(g.past)-maxPast):]
		g.page = page
	}
	g.page, g.process = cmp.Or(g.page, page), cmp.Or(own, g.process)
	g.reading++
	for _, list := range []*[]Point{&r.Points, &r.aside} {
		*list = slices.DeleteFunc(*list, func(p Point) bool {
			if p.Metric.Kind != Counter && p.Metric.Kind != Histogram || len(g.points) < maxTotals && g.values < maxValues || g.points[p.Key()] != nil {
				return false
			}
			r.Rejected++
			return true
		})
		for i := range *list {
			if p := &(*list)[i]; p.Metric.Kind == Counter || p.Metric.Kind == Histogram {
				g.follow(p, at)
			}
		}
	}
	if g.values > maxValues {
		g.values = 0
		for _, total := range g.points {
			total.settle(g.reading, 0)
			g.values += total.values()
		}
	}
	g.read = at
	return nil
}

// follow replaces the value of a point by its total.
func (g *Growth) follow(p *Point, at time.Time) {
	key := p.Key()
	total := g.points[key]
	if total == nil || !total.fits(p) {
		before := total
		total = &grown{since: g.zero(before != nil, at), parts: map[string]*part{}, width: 1}
		if p.Buckets != nil {
			total.width = len(p.Counts)
		}
		if before != nil {
			g.values -= before.values()
			if total.changes = before.changes + 1; total.changes > 1 {
				total.since = time.Time{}
			}
		}
		g.points[key] = total
	}
	g.values -= total.values()
	total.add(p, g.reading)
	g.values += total.values()
	if total.since.IsZero() && (!g.lasting || total.changes > 1 || slices.ContainsFunc(p.parts, func(c contribution) bool { return c.passing })) {
		total.relative, total.since, total.before, total.befores = true, at, total.now, total.nows
	}
	p.Since, p.Value, p.Buckets = total.since, total.now-total.before, total.nows
	if total.befores != nil {
		p.Buckets = p.without(total.befores)
	}
}

// restarted reports whether the engine's process is another than in the last reading. The machine knows
// best: what a page says may change with the clock. But it may learn of a restart after the page has told.
func (g *Growth) restarted(page, process float64) bool {
	if process != 0 && g.process != 0 {
		told := page != 0 && g.page != 0 && !differ(g.page, page)
		return process != g.process && !told
	}
	return differ(g.page, page) && !slices.Contains(g.past, page)
}

// differ reports whether two times when a process started are of different processes. Some pages add up the age
// of the process and the time of the boot for each reading.
func differ(a, b float64) bool {
	const rounding = 2 // seconds
	return a != 0 && b != 0 && math.Abs(a-b) > rounding
}

// Relabel begins new series: those to come have other attributes than those before, and must not count
// again what those have counted. Totals that have what the engine counted before the first reading go
// on, without the time when they were zero.
func (g *Growth) Relabel() {
	for _, t := range g.points {
		if t.since = (time.Time{}); t.relative {
			t.since, t.before, t.befores = g.read, t.now, t.nows
		}
	}
	g.began = time.Time{}
}

// begin forgets all totals: the engine's process is another.
func (g *Growth) begin(started float64, at time.Time) {
	g.began = time.Time{}
	start := time.UnixMilli(int64(started * 1000))
	switch {
	case started <= 0:
		g.began = g.read // all that the new process has counted is younger than the last reading; zero at first
	case !g.read.IsZero() && start.Before(g.read):
		g.began = g.read // its clock says otherwise
	case start.Before(at) && (!g.read.IsZero() || !g.Watched.IsZero() && start.After(g.Watched)):
		g.began = start
	}
	g.points, g.values, g.read, g.lasting = map[string]*grown{}, 0, time.Time{}, started > 0
}

// zero returns when a total that is new was zero for the last time.
func (g *Growth) zero(again bool, at time.Time) time.Time {
	if g.read.IsZero() && !again {
		return g.began
	}
	if g.read.After(at) { // the clock was set back
		return at
	}
	return g.read
}

// fits reports whether a point continues the total: a histogram with other bounds does not.
func (t *grown) fits(p *Point) bool {
	for _, old := range t.parts {
		if p.Buckets != nil && old.lasts != nil && !slices.Equal(old.lasts.Bounds, p.Bounds) {
			return false
		}
	}
	return true
}

// add takes the values of a point.
func (t *grown) add(p *Point, reading int) {
	for _, now := range p.parts {
		old := t.parts[now.key]
		if old == nil {
			old = &part{minus: now.minus}
			t.parts[now.key] = old
			t.order = append(t.order, now.key)
		}
		if now.histogram != nil {
			old.histogram(now.histogram)
		} else {
			old.number(now.value)
		}
		old.seen = reading
	}
	oldest := forget
	if len(t.parts) > maxParts {
		oldest = 0
	}
	t.settle(reading, oldest)
	if p.Buckets == nil {
		sum := 0.0
		for _, key := range t.order {
			part := t.parts[key]
			if v := part.base + part.last; part.minus {
				sum -= v
			} else {
				sum += v
			}
		}
		t.now = max(t.now, sum) // a difference of two totals that are not read at the same moment may fall
		return
	}
	sum := &Buckets{Bounds: p.Bounds, Counts: make([]uint64, len(p.Counts))}
	for _, key := range t.order {
		for _, b := range []*Buckets{t.parts[key].bases, t.parts[key].lasts} {
			if b != nil {
				sum.plus(b)
			}
		}
	}
	t.nows = sum
}

// rest is the key of what forgotten parts had.
const rest = ""

// values is how many the parts of a total have.
func (t *grown) values() int { return len(t.parts) * t.width }

// settle moves parts that so many readings did not have into one, so that workers that come and go take no more memory.
func (t *grown) settle(reading, oldest int) {
	gone := func(key string) bool { return key != rest && reading-t.parts[key].seen > oldest }
	if !slices.ContainsFunc(t.order, gone) {
		return
	}
	kept := t.order[:0:0]
	sum := t.parts[rest]
	if sum == nil {
		sum = &part{}
		kept = append(kept, rest)
	}
	for _, key := range t.order {
		old := t.parts[key]
		switch {
		case !gone(key):
			kept = append(kept, key)
			continue
		case old.minus:
			sum.base -= old.base + old.last
		default:
			sum.base += old.base + old.last
		}
		for _, b := range []*Buckets{old.bases, old.lasts} {
			sum.bases = both(sum.bases, b)
		}
		delete(t.parts, key)
	}
	t.parts[rest], t.order = sum, kept
}

func (p *part) number(v float64) {
	if v < p.last {
		p.base += p.last
	}
	p.last = v
}

func (p *part) histogram(b *Buckets) {
	if p.lasts != nil && b.below(p.lasts) {
		p.bases = both(p.bases, p.lasts)
	}
	p.lasts = b
}

// below reports whether a bucket has fewer values than before.
func (b *Buckets) below(before *Buckets) bool {
	for i, n := range b.Counts {
		if n < before.Counts[i] {
			return true
		}
	}
	return false
}

// without returns a histogram without what it had before.
func (b *Buckets) without(before *Buckets) *Buckets {
	out := b.over(1)
	for i, n := range before.Counts {
		out.Counts[i] -= n
	}
	out.Count -= before.Count
	out.Sum -= before.Sum
	return out
}

// both returns the sum of two histograms with the same bounds, of which either may be nil.
func both(a, b *Buckets) *Buckets {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	sum := a.over(1)
	sum.plus(b)
	return sum
}
