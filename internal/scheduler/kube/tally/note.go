package tally

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
)

// Times are pods with a time in Unix seconds.
type Times map[ID]int64

// timeSize is a pod and its time in a note: 6 and 4 bytes.
const timeSize = 10

// MarshalJSON implements json.Marshaler.
func (p Times) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, timeSize*len(p))
	for _, id := range slices.SortedFunc(maps.Keys(p), func(a, b ID) int { return bytes.Compare(a[:], b[:]) }) {
		b = append(b, id[:]...)
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(p[id], 0), math.MaxUint32))) //nolint:gosec // it fits
	}
	return json.Marshal(base64.RawStdEncoding.EncodeToString(b))
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Times) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	b, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		return err
	}
	if len(b)%timeSize != 0 {
		return errors.New("a list of pods is cut")
	}
	*p = make(Times, len(b)/timeSize)
	for one := range slices.Chunk(b, timeSize) {
		(*p)[ID(one[:6])] = int64(binary.BigEndian.Uint32(one[6:]))
	}
	return nil
}

// Note is a Tally without what has to be told of its state.
type Note struct {
	Mark    int64 `json:"mark"`
	Counted Times `json:"counted,omitempty"` // when it happened
}

// Note returns what the next process has to know.
func (t *Tally) Note() *Note {
	n := &Note{Mark: t.Mark, Counted: Times{}}
	for id, s := range t.Counted {
		n.Counted[id] = s.At
	}
	return n
}

// Resume continues a Tally, with those that are not done yet.
func (n *Note) Resume(t *Tally, pending Times) {
	if n == nil { // an older process wrote none
		return
	}
	t.Fresh, t.Mark, t.newest = false, n.Mark, n.Mark+Lag
	for id, at := range n.Counted {
		t.Counted[id], t.newest = Stage{At: at, Done: true}, max(t.newest, at)
	}
	for id, at := range pending {
		t.Counted[id], t.newest = Stage{At: at}, max(t.newest, at)
	}
}
