package events

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
)

// maxEvent bounds one event on disk; a longer event loses its body and long attributes.
const maxEvent = 64 << 10

// marshal returns an event as a line, and whether it was truncated.
func marshal(e Event) (line []byte, cut bool, err error) {
	e.Time = e.Time.UTC()
	line, err = json.Marshal(e)
	if err != nil || len(line) <= maxEvent {
		return line, false, err
	}
	short := Event{Time: e.Time, Name: clip(e.Name), Severity: clip(e.Severity), Body: clip(e.Body), Attributes: map[string]string{}}
	room := maxEvent / 2
	for _, key := range slices.Sorted(maps.Keys(e.Attributes)) {
		if room -= len(key) + len(e.Attributes[key]); room >= 0 && len(e.Attributes[key]) <= 1024 {
			short.Attributes[key] = e.Attributes[key]
		}
	}
	line, err = json.Marshal(short)
	return line, true, err
}

func clip(s string) string {
	if len(s) > 1024 {
		return strings.ToValidUTF8(s[:1024], "") + "..."
	}
	return s
}

// each calls do for each line that is a valid event.
func each(text []byte, do func(e *Event, line []byte)) {
	for line := range bytes.Lines(text) {
		var e Event
		line = bytes.TrimSuffix(line, []byte("\n"))
		if json.Unmarshal(line, &e) == nil {
			do(&e, line)
		}
	}
}

func hash(line []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(line)
	return h.Sum64()
}
