//go:build linux

package server

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// slogTo returns a slog.Logger that writes to log. It demotes info to debug, because the
// database logs its progress at info.
func slogTo(log *zap.Logger) *slog.Logger { return slog.New(slogHandler{log}) }

type slogHandler struct{ log *zap.Logger }

func zapLevel(l slog.Level) zapcore.Level {
	switch {
	case l >= slog.LevelError:
		return zapcore.ErrorLevel
	case l >= slog.LevelWarn:
		return zapcore.WarnLevel
	default:
		return zapcore.DebugLevel
	}
}

// Enabled implements slog.Handler.
func (h slogHandler) Enabled(_ context.Context, l slog.Level) bool {
	return h.log.Core().Enabled(zapLevel(l))
}

// Handle implements slog.Handler.
func (h slogHandler) Handle(_ context.Context, r slog.Record) error {
	if e := h.log.Check(zapLevel(r.Level), r.Message); e != nil {
		var fields []zap.Field
		r.Attrs(func(a slog.Attr) bool {
			fields = append(fields, field(a))
			return true
		})
		e.Write(fields...)
	}
	return nil
}

func field(a slog.Attr) zap.Field { return zap.String(a.Key, a.Value.Resolve().String()) }

// WithAttrs implements slog.Handler.
func (h slogHandler) WithAttrs(list []slog.Attr) slog.Handler {
	var fields []zap.Field
	for _, a := range list {
		fields = append(fields, field(a))
	}
	return slogHandler{h.log.With(fields...)}
}

// WithGroup implements slog.Handler.
func (h slogHandler) WithGroup(string) slog.Handler { return h }
