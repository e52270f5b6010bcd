// Package logging makes the logger of the process. It writes short lines for people or
// JSON for log collectors, removes secrets, and turns down what the Collector says about
// its own progress: gpumeter itself reports what users need to know about a start.
package logging

import (
	"io"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gpumeter/gpumeter/internal/redact"
)

// New returns a logger to w without what hide hides. people chooses short lines instead of
// JSON.
func New(w io.Writer, level zapcore.Level, people bool, hide *redact.Redactor) *zap.Logger {
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339TimeEncoder
	enc.CallerKey = zapcore.OmitKey // only quiet needs it
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

// Reason is the field that says why something failed, on one line.
func Reason(err error) zap.Field { return zap.String("reason", OneLine(err)) }

// OneLine returns the text of an error that was joined or wrapped over several lines, on one.
func OneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}

// quiet takes the Collector's own progress messages down to debug: what users need to
// know of a start, gpumeter says itself. So it does of a start that failed, which ends
// the process with one line.
type quiet struct {
	zapcore.Core

	losses *losses
}

func newQuiet(core zapcore.Core) quiet { return quiet{core, &losses{}} }

// With implements zapcore.Core. Each component has a logger, and losses, of its own.
func (q quiet) With(f []zapcore.Field) zapcore.Core { return newQuiet(q.Core.With(f)) }

func (q quiet) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !q.Enabled(e.Level) {
		return ce
	}
	return ce.AddCore(e, q)
}

// Write decides, because only now does the entry know who wrote it.
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

// isProgress reports whether e is from the Collector's frame. Its components are not
// meant: the output of the debug exporter is at this level, and retries are.
func isProgress(e zapcore.Entry) bool {
	if strings.Contains(e.Caller.File, "exporterhelper@") && strings.Contains(e.Caller.File, "/internal/queue/") {
		return e.Level == zapcore.InfoLevel // how it opens its file
	}
	if !strings.Contains(e.Caller.File, "go.opentelemetry.io/collector/service") &&
		!strings.Contains(e.Caller.File, "go.opentelemetry.io/collector/otelcol") {
		return false
	}
	return e.Level == zapcore.InfoLevel || strings.HasPrefix(e.Message, "Failed to start ") || strings.HasPrefix(e.Message, "Config updated")
}
