package pages

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/promtext"
	"github.com/gpumeter/gpumeter/internal/scheduler/queueing"
)

// Config configures a Reader.
type Config struct {
	Targets []Target
	API     API // nil: only Targets are read
	Trust   Trust
	Vendors device.Vendors
	Timeout time.Duration // of one page
	_       struct{}      // enforces keyed literals
}

// Reader reads pages. Its methods are called by one goroutine.
type Reader struct {
	cfg      Config
	dial     dialer
	watched  time.Time
	memories map[string]*queueing.Memory // by system
	kinds    map[string]string           // the system of a page that was read once, by address

	// What was found last.
	next    time.Time // when to look again
	found   []Target
	parents map[string][]string // by system
	failed  map[string]error    // by system; the empty one is that of the pages
}

// NewReader returns a Reader that has not sent any request yet.
func NewReader(cfg Config, now time.Time) *Reader {
	return &Reader{
		cfg: cfg, dial: direct(cfg.Timeout), watched: now,
		memories: map[string]*queueing.Memory{}, kinds: map[string]string{}, parents: map[string][]string{},
	}
}

// Unknown is the system of a page that never answered.
const Unknown = "unknown"

// System is what one system says.
type System struct {
	Kind string
	// Up is set if all its pages were read, one of them is of a process that is elected, and it is known which queues have
	// others below them if that is to be known: else what queues have is left out, because it would count twice.
	Up     bool
	Report *queueing.Report // nil: nothing
}

// Round is what all systems say.
type Round struct {
	Systems []System // by kind
	Err     error    // what could not be read, and why
	Refused int      // series that made no sense, or were beyond a limit
}

// answer is what became of a page.
type answer struct {
	target *Target
	kind   string // empty: it never answered
	text   *promtext.Text
	err    error
}

// Read reads all pages once.
func (r *Reader) Read(ctx context.Context, now time.Time) Round {
	answers := r.fetch(ctx, r.cfg.Targets)
	listed := map[string]bool{} // systems with a page in the list are not looked for
	for _, a := range answers {
		listed[a.kind] = true
	}
	errs := []error{}
	if r.cfg.API != nil {
		errs = append(errs, r.find(ctx, now, listed))
		found := slices.DeleteFunc(slices.Clone(r.found), func(t Target) bool { return listed[t.System] })
		answers = append(answers, r.fetch(ctx, found)...)
	}
	by := map[string][]answer{}
	for _, a := range answers {
		if a.kind == "" {
			a.kind = Unknown
		}
		by[a.kind] = append(by[a.kind], a)
	}
	var out Round
	for _, kind := range slices.Sorted(maps.Keys(by)) {
		s, err := r.system(kind, by[kind], now)
		errs = append(errs, err)
		out.Systems = append(out.Systems, s)
		if s.Report != nil {
			out.Refused += s.Report.Refused
		}
	}
	out.Err = errors.Join(errs...)
	return out
}

// system returns what one system says on its pages.
func (r *Reader) system(kind string, answers []answer, now time.Time) (System, error) {
	var errs []error
	var list []queueing.Page
	parents := map[string]bool{}
	for _, name := range r.parents[kind] {
		parents[name] = true
	}
	for _, a := range answers {
		for _, name := range a.target.Parents {
			parents[name] = true
		}
		switch {
		case a.err != nil:
			errs = append(errs, fmt.Errorf("cannot read %s: %w", a.target.URL.Redacted(), a.err))
		case !queueing.Standby(a.text):
			list = append(list, queueing.Page{Instance: a.target.instance(), Text: a.text})
		}
	}
	if len(list) == 0 && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("no page of %s is of the process that is elected", kind))
	}
	_, listed := r.parents[kind]
	blind := r.failed[kind] != nil && !listed && len(parents) == 0
	s := System{Kind: kind, Up: len(errs) == 0 && !blind}
	if len(list) > 0 {
		m := r.memories[kind]
		if m == nil {
			m = queueing.NewMemory()
			r.memories[kind] = m
		}
		reading := queueing.Read(kind, list, r.cfg.Vendors, parents)
		if blind {
			maps.DeleteFunc(reading.Gauges, func(p queueing.Point, _ float64) bool { return p.Queue != "" })
		}
		s.Report = m.Follow(reading, now, r.watched)
	}
	return s, errors.Join(errs...)
}

// fetch reads pages at the same time: one that does not answer costs only itself.
func (r *Reader) fetch(ctx context.Context, targets []Target) []answer {
	out := make([]answer, len(targets))
	var all sync.WaitGroup
	for i := range targets {
		t := &targets[i]
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
			defer cancel()
			text, err := fetch(ctx, t, r.dial)
			out[i] = answer{target: t, text: text, err: err}
		})
	}
	all.Wait()
	for i := range out {
		a := &out[i]
		address := a.target.URL.String()
		if a.err == nil {
			a.kind = a.target.System
			if a.kind == "" {
				a.kind = queueing.Recognize(a.text)
			}
			if a.kind == "" {
				a.err = errors.New("the page is of no queueing system that is known")
			}
		}
		if a.err != nil {
			a.kind = a.target.System
			if a.kind == "" {
				a.kind = r.kinds[address]
			}
		} else if a.target.System == "" {
			r.kinds[address] = a.kind
		}
	}
	return out
}

// find looks for pages if it is time, and for the queues that have others below them as soon as somebody has a page of their
// system. What was found before stays if that fails: an address that is no longer valid does not answer.
func (r *Reader) find(ctx context.Context, now time.Time, listed map[string]bool) error {
	due := !now.Before(r.next) || r.next.Sub(now) > findEvery // the clock was set back
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	if due {
		r.next = now.Add(findEvery)
		found, err := find(ctx, r.cfg.API, r.cfg.Trust)
		if err == nil {
			r.found = found
		}
		r.failed = map[string]error{"": err}
	}
	for system := range trees {
		has := listed[system] || slices.ContainsFunc(r.found, func(t Target) bool { return t.System == system })
		if _, asked := r.failed[system]; asked || !has {
			continue
		}
		list, err := parents(ctx, r.cfg.API, system)
		if err == nil {
			r.parents[system] = list
		}
		r.failed[system] = err
	}
	var errs []error
	for _, what := range slices.Sorted(maps.Keys(r.failed)) {
		errs = append(errs, r.failed[what])
	}
	return errors.Join(errs...)
}
