package logging

import (
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// lossInterval is the minimum time between two log entries about the same loss.
const lossInterval = time.Minute

// losses rate-limits the entries that an exporter logs at every tick while it drops data, and
// adds the total.
type losses struct {
	mu    sync.Mutex
	total map[string]int64 // by message, since the exporter started
	said  map[string]time.Time
}

// note returns the fields to log for an entry, and whether to log it at all. It changes only
// entries about dropped data from the Collector's exporters.
func (l *losses) note(e zapcore.Entry, f []zapcore.Field) ([]zapcore.Field, bool) {
	if !strings.HasPrefix(e.Message, "Exporting failed. ") {
		return f, true
	}
	for _, field := range f {
		if field.Key != "dropped_items" && field.Key != "rejected_items" {
			continue
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.total == nil {
			l.total, l.said = map[string]int64{}, map[string]time.Time{}
		}
		l.total[e.Message] += field.Integer
		if last, ok := l.said[e.Message]; ok && e.Time.Sub(last) < lossInterval {
			return nil, false
		}
		l.said[e.Message] = e.Time
		return append(f, zap.Int64("total_items", l.total[e.Message])), true
	}
	return f, true
}

// isKept reports whether f belongs to a request that was interrupted by shutdown. The exporter
// calls its data dropped, but a queue on disk still has the data, and the agent warned at the
// start that a queue in memory loses it.
func isKept(f []zapcore.Field) bool {
	for _, field := range f {
		if err, ok := field.Interface.(error); ok && field.Key == "error" && strings.HasPrefix(err.Error(), "interrupted due to shutdown") {
			return true
		}
	}
	return false
}
