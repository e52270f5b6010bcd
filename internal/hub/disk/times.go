package disk

import "time"

// times is a range of sample times in ms.
type times struct {
	first, last int64
	any         bool
}

func (t *times) add(ms int64) {
	if !t.any {
		t.first, t.last, t.any = ms, ms, true
		return
	}
	t.first, t.last = min(t.first, ms), max(t.last, ms)
}

func (t *times) merge(o times) {
	if o.any {
		t.add(o.first)
		t.add(o.last)
	}
}

// Range is a range of time; both ends are zero if it is unknown or empty.
type Range struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

func (t times) asRange() Range {
	if !t.any {
		return Range{}
	}
	return Range{time.UnixMilli(t.first).UTC(), time.UnixMilli(t.last).UTC()}
}

// String formats a range for people.
func (r Range) String() string {
	if r.From.IsZero() && r.To.IsZero() {
		return "unknown time"
	}
	return r.From.Format(time.RFC3339) + " to " + r.To.Format(time.RFC3339)
}
