package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/tally"
)

// noteVersion changes with the form of a note, and with the bounds of histograms.
const noteVersion = 1

// noteObject is the state of Waits, for the process that watches next. It takes 0.1 KiB for each namespace and 13 bytes for
// each pod that has not started yet or was scheduled during the last minutes, at most about 200 KiB.
type noteObject struct {
	Version int       `json:"version"`
	Since   time.Time `json:"since"`
	Mark    int64     `json:"mark"`
	// Pods by what has been counted of them.
	Scheduled tally.Times `json:"scheduled,omitempty"` // that they were scheduled, and when
	Started   tally.Times `json:"started,omitempty"`   // everything, and when they were scheduled
	Gated     tally.Times `json:"gated,omitempty"`     // nothing: they have gates
	Ungated   tally.Times `json:"ungated,omitempty"`   // nothing, and when they lost their gates; 0: not known
	// MoreGated means that Gated or Ungated are not complete.
	MoreGated bool `json:"moreGated,omitempty"`

	Waits      scheduler.Histograms `json:"waits,omitempty"`
	Starts     scheduler.Histograms `json:"starts,omitempty"`
	Phases     scheduler.Histograms `json:"phases,omitempty"`
	Admissions scheduler.Histograms `json:"admissions,omitempty"`
	Evictions  evictions            `json:"evictions,omitempty"`
	// Workloads that were admitted, and pods that were evicted. Nil: nobody looked for them.
	Admitted *tally.Note `json:"admitted,omitempty"`
	Evicted  *tally.Note `json:"evicted,omitempty"`
}

// evictions are numbers by namespace, team and reason, one after the other in a list.
type evictions map[Eviction]int64

type evictionNote struct {
	Queue  string `json:"q"`
	Team   string `json:"t,omitempty"`
	Reason string `json:"r"`
	Count  int64  `json:"n"`
}

// MarshalJSON implements json.Marshaler.
func (e evictions) MarshalJSON() ([]byte, error) {
	list := []evictionNote{}
	for key, n := range e {
		list = append(list, evictionNote{key.Queue, key.Team, key.Reason, n})
	}
	slices.SortFunc(list, func(a, b evictionNote) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Team, b.Team), cmp.Compare(a.Reason, b.Reason))
	})
	return json.Marshal(list)
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *evictions) UnmarshalJSON(text []byte) error {
	var list []evictionNote
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	*e = make(evictions, len(list))
	for _, one := range list {
		if one.Count < 0 || len(list) > 2*maxEvictions {
			return fmt.Errorf("%d evictions in %d groups", one.Count, len(list))
		}
		(*e)[Eviction{one.Queue, one.Team, one.Reason}] += one.Count
	}
	return nil
}

// Note returns the state as text, with the totals in it. It is empty as long as there is nothing that another could continue:
// before the first list.
func (w *Waits) Note(now time.Time) (text string, totals Totals) {
	w.mu.Lock()
	defer w.mu.Unlock()
	totals = w.totals.clone()
	if w.pods.Fresh && !w.pods.Begun {
		return "", totals
	}
	if w.advance(now); w.note == "" {
		w.note = w.write()
	}
	return w.note, totals
}

func (w *Waits) write() string {
	o := noteObject{
		Version: noteVersion, Since: w.totals.Since.UTC(), Mark: w.pods.Mark, Scheduled: tally.Times{}, Started: tally.Times{},
		Waits: w.totals.Scheduled, Starts: w.totals.Started, Phases: w.totals.Phases, Admissions: w.totals.Admitted, Evictions: w.totals.Evicted,
		Evicted: w.evicted.Note(),
	}
	if !w.admitted.Fresh || w.admitted.Begun {
		o.Admitted = w.admitted.Note()
	}
	for id, s := range w.pods.Counted {
		if s.Done {
			o.Started[id] = s.At
		} else {
			o.Scheduled[id] = s.At
		}
	}
	closed, open := w.gates.times()
	o.Gated, o.Ungated = closed, open
	if len(closed) > maxGated || len(open) > maxGated {
		o.Gated, o.Ungated, o.MoreGated = nil, nil, true
	}
	b, err := json.Marshal(o)
	if err != nil {
		return "" // not with these types
	}
	return string(b)
}

// farAhead is how far the mark of a note may be in the future. A clock may be wrong, but not like that.
const farAhead = 24 * time.Hour

// ContinueWaits returns Waits that continue where another process wrote a note, which may be long ago. Without one they are
// new, and with one that cannot be used too: the error says why.
func ContinueWaits(note string, now time.Time) (*Waits, error) {
	w := NewWaits(now)
	if note == "" {
		return w, nil
	}
	o, err := parseNote([]byte(note))
	if err == nil && o.newest() > now.Add(farAhead).Unix() {
		err = errors.New("it is from the future")
	}
	if err != nil {
		return w, fmt.Errorf("cannot continue what the last process counted: %w", err)
	}
	(&tally.Note{Mark: o.Mark, Counted: o.Started}).Resume(&w.pods, o.Scheduled)
	o.Admitted.Resume(&w.admitted, nil)
	o.Evicted.Resume(&w.evicted, nil)
	for id := range o.Gated {
		w.gates.closed[id] = true
	}
	maps.Copy(w.gates.open, o.Ungated)
	if !o.MoreGated {
		w.gates.until = o.Mark
	}
	// A store would take values that began in its future for nonsense. Everything in them has been reported.
	if !o.Since.IsZero() && !o.Since.After(now) {
		w.totals = newTotals(o.Since)
		for to, from := range map[*scheduler.Histograms]scheduler.Histograms{
			&w.totals.Scheduled: o.Waits, &w.totals.Started: o.Starts, &w.totals.Phases: o.Phases, &w.totals.Admitted: o.Admissions,
		} {
			maps.Copy(*to, from)
		}
		maps.Copy(w.totals.Evicted, o.Evictions)
	}
	return w, nil
}

// newest returns the latest of its marks.
func (o *noteObject) newest() int64 {
	at := o.Mark
	for _, n := range []*tally.Note{o.Admitted, o.Evicted} {
		if n != nil {
			at = max(at, n.Mark)
		}
	}
	return at
}

func parseNote(b []byte) (o noteObject, err error) {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return o, err
	}
	if v.Version != noteVersion {
		return o, fmt.Errorf("its note has version %d, want %d", v.Version, noteVersion)
	}
	return o, json.Unmarshal(b, &o)
}
