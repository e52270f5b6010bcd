// Package tally knows who has been counted, over any number of processes that count one after the other.
package tally

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"slices"
	"time"
)

// Tally knows who has been counted, without a list of all: those to whom it happened up to a moment, the mark, and by UID
// those after it and those that are not done yet.
type Tally struct {
	// Fresh means that nobody counted before, or that it is not known: what the first list has does not count.
	Fresh bool
	// Begun means that a list is complete: there is something to note.
	Begun bool
	// Mark and newest are in Unix seconds, the precision of conditions. What happened up to Mark counts as counted; the
	// newest happened at newest; 0: nothing was seen.
	Mark, newest int64
	// Listing means that a list is being applied. What is older than the newest so far may follow in it: the mark must not
	// pass it.
	Listing bool
	Counted map[ID]Stage
	most    int // of Counted
	Refused int // those that could not be remembered before they were done
}

// ID is a part of the hash of a UID. Of a million pods, one in a hundred thousand clusters takes one for another.
type ID [6]byte

// Of returns the ID of a UID.
func Of(uid string) ID {
	h := sha256.Sum256([]byte(uid))
	return ID(h[:6])
}

// Stage is what has been counted of a pod that was scheduled, or of whom something else happened to.
type Stage struct {
	At   int64 // Unix seconds
	Done bool  // nothing is left to count
}

// Lag is how late the API server may say that a pod was scheduled, compared with others: several may have clocks
// that differ, in seconds.
const Lag = 2 * 60

// New returns a Tally that knows so many by UID at most.
func New(most int) Tally {
	return Tally{Fresh: true, Mark: -1 << 62, Counted: map[ID]Stage{}, most: most}
}

// Counts reports whether what is new is counted. first says that it is in the first list.
func (t *Tally) Counts(first bool) bool { return !t.Fresh || !first }

// Look returns what has been counted of whom something happened to at a moment. passed means everything. waited means that
// it was seen before this had happened.
func (t *Tally) Look(id ID, at time.Time, waited bool) (is Stage, known, passed bool) {
	if is, known = t.Counted[id]; known {
		return is, true, false
	}
	if is.At = at.Unix(); is.At <= t.Mark && !waited {
		return is, false, true
	}
	t.newest = max(t.newest, is.At)
	return is, false, false
}

// Once reports whether something that happens once counts now. changed means that there is something to note.
func (t *Tally) Once(id ID, at time.Time, waited, first bool) (counts, changed bool) {
	is, known, passed := t.Look(id, at, waited)
	if known || passed {
		return false, false
	}
	is.Done = true
	t.Counted[id] = is
	return t.Counts(first), true
}

// Finish says that nothing will be counted of somebody any more, and reports whether that is news. It stays until the mark
// passes it: an API server that is behind may show it again to who watches next.
func (t *Tally) Finish(id ID) bool {
	is, ok := t.Counted[id]
	if !ok || is.Done {
		return false
	}
	is.Done = true
	t.Counted[id] = is
	return true
}

// Listed says that a list is complete.
func (t *Tally) Listed(now time.Time) {
	if t.Listing = false; t.newest == 0 && !t.Begun {
		t.Mark = now.Unix() - Lag // whoever watches next must not count all since 1970
	}
	t.Begun = true
}

// Advance moves the mark, forgets whom it passes, and reports whether it has moved. A clock that is wrong, here or there,
// cannot move it too far alone.
func (t *Tally) Advance(now time.Time) (moved bool) {
	if t.Listing || t.newest == 0 {
		return false
	}
	if mark := min(t.newest, now.Unix()) - Lag; mark > t.Mark {
		t.pass(mark)
		moved = true
	}
	if over := len(t.Counted) - t.most; over > 0 {
		ids := slices.SortedFunc(maps.Keys(t.Counted), func(a, b ID) int {
			return cmp.Or(cmp.Compare(t.Counted[a].At, t.Counted[b].At), slices.Compare(a[:], b[:]))
		})
		mark := t.Mark
		for _, id := range ids[:over] {
			mark = max(mark, t.Counted[id].At)
			if !t.Counted[id].Done {
				t.Refused++
			}
			delete(t.Counted, id)
		}
		t.pass(mark)
		moved = true
	}
	return moved
}

func (t *Tally) pass(mark int64) {
	t.Mark = mark
	maps.DeleteFunc(t.Counted, func(_ ID, s Stage) bool { return s.Done && s.At <= mark })
}
