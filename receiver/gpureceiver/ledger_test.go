package gpureceiver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

// Catches an accepted tick that is not logged under its time, or logged before it was accepted, and a
// refused tick that is logged.
func TestLedger(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	v := &view{ticks: make(chan node.Tick, 4)}
	set := receivertest.NewNopSettings(metadata.Type)
	set.Logger = zap.New(core)
	calls := 0
	next, err := consumer.NewMetrics(func(context.Context, pmetric.Metrics) error {
		if n := logs.FilterMessage("accepted a tick").Len(); n != calls {
			t.Errorf("%d ticks were logged before call %d returned", n, calls+1)
		}
		if calls++; calls > 3 {
			return errors.New("queue is full")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewFactory().CreateMetrics(t.Context(), set, createDefaultConfig(), next)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), hostWith(v)); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		tick := goldenTick()
		tick.Time = now.Add(time.Duration(i) * time.Second)
		v.ticks <- tick
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	for _, e := range logs.FilterMessage("accepted a tick").All() {
		got = append(got, e.ContextMap())
	}
	points := int64(newEmitter(createDefaultConfig().(*Config)).Emit(goldenTick()).DataPointCount())
	var want []map[string]any
	for i := range 3 {
		want = append(want, map[string]any{
			"time_unix_nano": now.Add(time.Duration(i) * time.Second).UnixNano(), "items": points,
		})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
}
