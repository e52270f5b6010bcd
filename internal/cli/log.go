//go:build linux

package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

var logLevels = []string{"debug", "info", "warn", "error"}

func registerLogLevel(cmd *cobra.Command, level *string) {
	cmd.Flags().StringVar(level, "log-level", "info", strings.Join(logLevels, ", "))
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions(logLevels, cobra.ShellCompDirectiveNoFileComp))
}

// newLogger returns a logger to standard error: short lines for people at a terminal,
// JSON for whatever collects them elsewhere.
func newLogger(level string, hide *redactor) (*zap.Logger, error) {
	l, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("unknown --log-level %q, known are %s", level, strings.Join(logLevels, ", "))
	}
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339TimeEncoder
	enc.CallerKey = zapcore.OmitKey // only quiet needs it
	encoder := zapcore.NewJSONEncoder(enc)
	if isTerminal(os.Stderr) {
		enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05")
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		enc.ConsoleSeparator = "  "
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	core := zapcore.NewCore(encoder, hide.over(zapcore.Lock(os.Stderr)), l)
	return zap.New(newQuiet(core), zap.AddCaller()), nil
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
