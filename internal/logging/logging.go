// Package logging creates the logger of the process. It writes short lines for people or JSON
// for log collectors, redacts secrets, and demotes the Collector's progress messages to debug.
package logging

import (
	"io"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gpumeter/gpumeter/internal/redact"
)

// New returns a logger that writes to w and redacts the secrets of hide. people selects short
// lines instead of JSON.
func New(w io.Writer, level zapcore.Level, people bool, hide *redact.Redactor) *zap.Logger {
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339TimeEncoder
	enc.CallerKey = zapcore.OmitKey // only quiet uses it
	encoder := zapcore.NewJSONEncoder(enc)
	if people {
		enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05")
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		enc.ConsoleSeparator = "  "
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	core := zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(hide.Writer(w))), level)
	return zap.New(newQuiet(core), zap.AddCaller())
}

// Reason returns a field with the text of err on one line.
func Reason(err error) zap.Field { return zap.String("reason", OneLine(err)) }

// OneLine returns the text of err with its lines joined by semicolons.
func OneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}

// quiet demotes the Collector's progress messages to debug, because gpumeter logs what users
// need to know about a start. It also demotes the Collector's message about a failed start,
// because the process exits with that error on one line.
type quiet struct {
	zapcore.Core

	losses *losses
}

func newQuiet(core zapcore.Core) quiet { return quiet{core, &losses{}} }

// With implements zapcore.Core. Each component has its own logger, and so its own losses.
func (q quiet) With(f []zapcore.Field) zapcore.Core { return newQuiet(q.Core.With(f)) }

func (q quiet) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !q.Enabled(e.Level) {
		return ce
	}
	return ce.AddCore(e, q)
}

// Write filters here and not in Check, because only now does the entry have its caller.
func (q quiet) Write(e zapcore.Entry, f []zapcore.Field) error {
	if isProgress(e) || isKept(f) {
		e.Level = zapcore.DebugLevel
		if !q.Enabled(e.Level) {
			return nil
		}
	}
	f, ok := q.losses.note(e, f)
	if !ok {
		return nil
	}
	return q.Core.Write(e, f)
}

// isProgress reports whether e is a progress message of the Collector's service, not of its
// components: the debug exporter and retries log at the same level.
func isProgress(e zapcore.Entry) bool {
	if strings.Contains(e.Caller.File, "exporterhelper@") && strings.Contains(e.Caller.File, "/internal/queue/") {
		return e.Level == zapcore.InfoLevel // opening the queue file
	}
	if !strings.Contains(e.Caller.File, "go.opentelemetry.io/collector/service") &&
		!strings.Contains(e.Caller.File, "go.opentelemetry.io/collector/otelcol") {
		return false
	}
	return e.Level == zapcore.InfoLevel || strings.HasPrefix(e.Message, "Failed to start ") || strings.HasPrefix(e.Message, "Config updated")
}
