package logging

import (
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// sayLosses is how often an exporter may say that it loses data.
const sayLosses = time.Minute

// losses counts what an exporter could not keep or deliver. It says so at every tick;
// once a minute, with the total, is enough.
type losses struct {
	mu    sync.Mutex
	total map[string]int64 // by message, since the exporter started
	said  map[string]time.Time
}

// note returns what is to be logged instead of an entry of the Collector's exporters,
// and whether anything is.
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
		if last, ok := l.said[e.Message]; ok && e.Time.Sub(last) < sayLosses {
			return nil, false
		}
		l.said[e.Message] = e.Time
		return append(f, zap.Int64("total_items", l.total[e.Message])), true
	}
	return f, true
}

// isKept reports whether f is of a request that the end of the agent interrupted. The
// exporter calls it dropped, but a queue on disk has it, and of one in memory the loss
// was announced.
func isKept(f []zapcore.Field) bool {
	for _, field := range f {
		if err, ok := field.Interface.(error); ok && field.Key == "error" && strings.HasPrefix(err.Error(), "interrupted due to shutdown") {
			return true
		}
	}
	return false
}
