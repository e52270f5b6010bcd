package hubexporter

import (
	"maps"
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpumeter/gpumeter/internal/hub/events"
)

// Limits of log records. Every record repeats the attributes of its resource, so a small
// request could expand to a very large one.
const (
	maxRecords        = 50_000   // per request
	maxRecordBytes    = 32 << 20 // per request, counting resource attributes once per record
	maxAttributes     = 128      // per resource, and per record including them
	maxAttributeBytes = 64 << 10 // in total
	attributeCost     = 64       // approximate size of an attribute without its text
)

var tooManyRecords = "a request may have " + strconv.Itoa(maxRecords) + " log records and " + strconv.Itoa(maxRecordBytes>>20) + " MiB including resource attributes, the remaining records are dropped"

// lost counts what was dropped.
type lost struct{ records, attributes int }

// attributes collects the attributes of an event.
type attributes struct {
	all  map[string]string
	size int // bytes
}

// put adds attributes and returns how many were truncated or dropped.
func (a *attributes) put(attrs pcommon.Map) (cuts int) {
	for key, v := range attrs.All() {
		value := v.AsString()
		if text := cut(value, maxLabelValue); len(text) < len(value) {
			value = text
			cuts++
		}
		old, there := a.all[key]
		more := len(value) - len(old)
		if !there {
			more += len(key)
		}
		if len(key) > maxName || !there && len(a.all) == maxAttributes || a.size+more > maxAttributeBytes {
			cuts++
			continue
		}
		a.all[key] = value
		a.size += more
	}
	return cuts
}

// eventsOf converts log records to events, which share memory with ld.
func eventsOf(ld plog.Logs) (out []events.Event, gone lost) {
	total := ld.LogRecordCount()
	out = make([]events.Event, 0, min(total, maxRecords))
	room := maxRecordBytes
	for _, rl := range ld.ResourceLogs().All() {
		resource := attributes{all: map[string]string{}}
		gone.attributes += resource.put(rl.Resource().Attributes())
		for _, sl := range rl.ScopeLogs().All() {
			for _, r := range sl.LogRecords().All() {
				if len(out) == maxRecords || room < 0 {
					gone.records = total - len(out)
					return out, gone
				}
				e := eventOf(r)
				own := attributes{all: maps.Clone(resource.all), size: resource.size}
				gone.attributes += own.put(r.Attributes()) // record attributes override
				e.Attributes = own.all
				if e.Name == "" {
					e.Name = e.Attributes["event.name"] // its place before OTLP 1.5
				}
				room -= own.size + len(own.all)*attributeCost + len(e.Body) + len(e.Name)
				out = append(out, e)
			}
		}
	}
	return out, gone
}

// eventOf converts a record without its attributes.
func eventOf(r plog.LogRecord) events.Event {
	at := r.Timestamp()
	if at == 0 {
		at = r.ObservedTimestamp()
	}
	return events.Event{Time: at.AsTime(), Name: r.EventName(), Severity: severity(r.SeverityNumber()), Body: r.Body().AsString()}
}

func severity(n plog.SeverityNumber) string {
	switch {
	case n >= plog.SeverityNumberFatal:
		return "FATAL"
	case n >= plog.SeverityNumberError:
		return "ERROR"
	case n >= plog.SeverityNumberWarn:
		return "WARN"
	case n >= plog.SeverityNumberInfo:
		return "INFO"
	case n >= plog.SeverityNumberDebug:
		return "DEBUG"
	case n >= plog.SeverityNumberTrace:
		return "TRACE"
	default:
		return ""
	}
}
