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
	if uid := e.Attributes[recordUID]; uid != "" && len(uid) <= 1024 {
		short.Attributes[recordUID] = uid // it is the same event after a restart
	}
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

// recordUID is the attribute by which a sender says that two records are the same, whatever else they say.
//
// https://opentelemetry.io/docs/specs/semconv/general/logs/
const recordUID = "log.record.uid"

// identity returns what an event and its repetitions have in common: the name and the ID that the sender gave it, or else the
// whole line.
func identity(e *Event, line []byte) uint64 {
	h := fnv.New64a()
	if uid := e.Attributes[recordUID]; uid != "" {
		line = []byte(e.Name + "\x00" + uid)
	}
	_, _ = h.Write(line)
	return h.Sum64()
}
