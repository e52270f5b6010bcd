package logging

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// Each loss is in the total of a line that comes once a minute.
func TestLosses(t *testing.T) {
	core, observed := observer.New(zapcore.InfoLevel)
	root := newQuiet(core)
	a, b := root.With([]zapcore.Field{zap.String("id", "a")}), root.With([]zapcore.Field{zap.String("id", "b")})
	now := time.Now()
	write := func(to zapcore.Core, after time.Duration, msg string, f ...zapcore.Field) {
		t.Helper()
		if err := to.Write(zapcore.Entry{Level: zapcore.ErrorLevel, Time: now.Add(after), Message: msg}, f); err != nil {
			t.Error(err)
		}
	}
	const rejected, dropped = "Exporting failed. Rejecting data.", "Exporting failed. Dropping data."
	for i := range 61 {
		write(a, time.Duration(i)*time.Second, rejected, zap.Int("rejected_items", 10))
	}
	write(a, 61*time.Second, dropped, zap.Int("dropped_items", 1), zap.Error(errors.New("status 400")))
	write(b, 61*time.Second, rejected, zap.Int("rejected_items", 5))
	write(b, 62*time.Second, "Something else", zap.Int("rejected_items", 5))
	write(b, 63*time.Second, dropped, zap.Int("dropped_items", 5), zap.Error(errors.New("interrupted due to shutdown: refused")))
	type line struct {
		ID, Message string
		Total       any
	}
	var got []line
	for _, e := range observed.All() {
		m := e.ContextMap()
		got = append(got, line{m["id"].(string), e.Message, m["total_items"]})
	}
	want := []line{{"a", rejected, int64(10)}, {"a", rejected, int64(610)}, {"a", dropped, int64(1)}, {"b", rejected, int64(5)}, {"b", "Something else", nil}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}
