package kube

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler"
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
	Scheduled podTimes `json:"scheduled,omitempty"` // that they were scheduled, and when
	Started   podTimes `json:"started,omitempty"`   // everything, and when they were scheduled
	Gated     podTimes `json:"gated,omitempty"`     // nothing: they have gates
	Ungated   podTimes `json:"ungated,omitempty"`   // nothing, and when they lost their gates; 0: not known
	// MoreGated means that Gated or Ungated are not complete.
	MoreGated bool `json:"moreGated,omitempty"`

	Waits  durations `json:"waits,omitempty"`
	Starts durations `json:"starts,omitempty"`
	Phases durations `json:"phases,omitempty"`
}

// podTimes are pods with a time in Unix seconds.
type podTimes map[podID]int64

// podTime is a pod and its time in a note: 6 and 4 bytes.
const podTime = 10

// MarshalJSON implements json.Marshaler.
func (p podTimes) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, podTime*len(p))
	for _, id := range slices.SortedFunc(maps.Keys(p), func(a, b podID) int { return bytes.Compare(a[:], b[:]) }) {
		b = append(b, id[:]...)
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(p[id], 0), math.MaxUint32))) //nolint:gosec // it fits
	}
	return json.Marshal(base64.RawStdEncoding.EncodeToString(b))
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *podTimes) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	b, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		return err
	}
	if len(b)%podTime != 0 {
		return errors.New("a list of pods is cut")
	}
	*p = make(podTimes, len(b)/podTime)
	for one := range slices.Chunk(b, podTime) {
		(*p)[podID(one[:6])] = int64(binary.BigEndian.Uint32(one[6:]))
	}
	return nil
}

// durations are histograms: the sum, and then the counts without the zeros at their end.
type durations scheduler.Histograms

// MarshalJSON implements json.Marshaler.
func (d durations) MarshalJSON() ([]byte, error) {
	out := make(map[string][]float64, len(d))
	for key, h := range d {
		list := []float64{h.Sum}
		for _, n := range h.Counts {
			list = append(list, float64(n))
		}
		for list[len(list)-1] == 0 && len(list) > 1 {
			list = list[:len(list)-1]
		}
		out[key] = list
	}
	return json.Marshal(out)
}

// maxDurations bounds the histograms that are read. Those that are written have fewer.
const maxDurations = 1000

// UnmarshalJSON implements json.Unmarshaler.
func (d *durations) UnmarshalJSON(text []byte) error {
	var in map[string][]float64
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	size := len(scheduler.Bounds()) + 1
	*d = make(durations, len(in))
	for key, list := range in {
		if len(list) < 1 || len(list) > size+1 || len(in) > maxDurations {
			return errors.New("a histogram has another form")
		}
		h := &scheduler.Histogram{Sum: list[0], Counts: make([]uint64, size)}
		for i, n := range list[1:] {
			if n < 0 || n > 1<<53 || n != math.Trunc(n) {
				return fmt.Errorf("a histogram counts %v", n)
			}
			h.Counts[i] = uint64(n)
			h.Count += uint64(n)
		}
		if h.Sum < 0 {
			return fmt.Errorf("the sum of a histogram is %v", h.Sum)
		}
		(*d)[key] = h
	}
	return nil
}

// Note returns the state as text, with the totals in it. It is empty as long as there is nothing that another could continue:
// before the first list.
func (w *Waits) Note(now time.Time) (text string, totals Totals) {
	w.mu.Lock()
	defer w.mu.Unlock()
	totals = w.totals.clone()
	if w.fresh && !w.begun {
		return "", totals
	}
	if w.advance(now); w.note == "" {
		w.note = w.write()
	}
	return w.note, totals
}

func (w *Waits) write() string {
	o := noteObject{
		Version: noteVersion, Since: w.totals.Since.UTC(), Mark: w.mark, Scheduled: podTimes{}, Started: podTimes{},
		Waits: durations(w.totals.Scheduled), Starts: durations(w.totals.Started), Phases: durations(w.totals.Phases),
	}
	for id, s := range w.counted {
		if s.started {
			o.Started[id] = s.scheduled
		} else {
			o.Scheduled[id] = s.scheduled
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
	if err == nil && o.Mark > now.Add(farAhead).Unix() {
		err = errors.New("it is from the future")
	}
	if err != nil {
		return w, fmt.Errorf("cannot continue what the last process counted: %w", err)
	}
	w.fresh, w.mark, w.newest = false, o.Mark, o.Mark+lag
	for id, at := range o.Scheduled {
		w.counted[id], w.newest = stage{scheduled: at}, max(w.newest, at)
	}
	for id, at := range o.Started {
		w.counted[id], w.newest = stage{scheduled: at, started: true}, max(w.newest, at)
	}
	for id := range o.Gated {
		w.gates.closed[id] = true
	}
	maps.Copy(w.gates.open, o.Ungated)
	if !o.MoreGated {
		w.gates.until = o.Mark
	}
	// A store would take values that began in its future for nonsense. Everything in them has been reported.
	if !o.Since.IsZero() && !o.Since.After(now) {
		w.totals = Totals{o.Since, histograms(o.Waits), histograms(o.Starts), histograms(o.Phases)}
	}
	return w, nil
}

func histograms(d durations) scheduler.Histograms {
	if d == nil {
		return scheduler.Histograms{}
	}
	return scheduler.Histograms(d)
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
