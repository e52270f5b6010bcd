package hubexporter

import (
	"maps"
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// Limits of log records. Those of a resource are in each of its records again, so that a
// small request could become a very large one.
const (
	maxRecords        = 50_000   // of one request
	maxRecordBytes    = 32 << 20 // of one request, attributes of resources counted for each record
	maxAttributes     = 128      // of a resource, and of a record with them
	maxAttributeBytes = 64 << 10 // in all of them
	attributeCost     = 64       // what one takes besides its text, about
)

var tooManyRecords = "a request may have " + strconv.Itoa(maxRecords) + " log records and " + strconv.Itoa(maxRecordBytes>>20) + " MiB of them with the attributes of their resources, the others are left out"

// lost is what was not taken over.
type lost struct{ records, attributes int }

// attributes are some on their way to an event.
type attributes struct {
	all  map[string]string
	size int // bytes
}

// put adds attributes, and returns how many are cut or left out.
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

// eventsOf returns the log records of ld as events. They share what they have of ld.
func eventsOf(ld plog.Logs) (out []hub.Event, gone lost) {
	total := ld.LogRecordCount()
	out = make([]hub.Event, 0, min(total, maxRecords))
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
				gone.attributes += own.put(r.Attributes()) // which win
				e.Attributes = own.all
				if e.Name == "" {
					e.Name = e.Attributes["event.name"] // where it was before OTLP 1.5
				}
				room -= own.size + len(own.all)*attributeCost + len(e.Body) + len(e.Name)
				out = append(out, e)
			}
		}
	}
	return out, gone
}

// eventOf returns a record as an event without its attributes.
func eventOf(r plog.LogRecord) hub.Event {
	at := r.Timestamp()
	if at == 0 {
		at = r.ObservedTimestamp()
	}
	return hub.Event{Time: at.AsTime(), Name: r.EventName(), Severity: severity(r.SeverityNumber()), Body: r.Body().AsString()}
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
