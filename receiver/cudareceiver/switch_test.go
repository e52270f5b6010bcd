package cudareceiver

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// Catches a tracer that goes on after Stop, counts that continue after it, a receiver that starts while the
// switch is off and traces, and a Stop that nobody hears.
func TestSwitch(t *testing.T) {
	var opened []*fakeSource
	open := func(*Config) (source, error) {
		opened = append(opened, &fakeSource{})
		return opened[len(opened)-1], nil
	}
	power := &Switch{}
	factory := newFactory(open, power)
	if err := power.Stop(); err == nil || !strings.Contains(err.Error(), "does not trace") {
		t.Errorf("stopped without a receiver: %v", err)
	}
	sink := new(consumertest.MetricsSink)
	seconds := 0
	begin := func() (receiver.Metrics, *view) {
		t.Helper()
		r, err := factory.CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), factory.CreateDefaultConfig(), sink)
		if err != nil {
			t.Fatal(err)
		}
		r.(*cudaReceiver).clock = func() time.Time { seconds += 10; return at(seconds) }
		v := &view{ticks: make(chan node.Tick, 8), whoIs: whoIs{1: llm}}
		if err := r.Start(t.Context(), hosting{component.MustNewID("gpu"): v}); err != nil {
			t.Fatal(err)
		}
		return r, v
	}
	tick := func(v *view) []string {
		t.Helper()
		n := len(sink.AllMetrics())
		v.ticks <- *machine(1, []uint32{1})
		await.True(t, "a reading", func() bool { return len(sink.AllMetrics()) > n })
		lines := render(sink.AllMetrics()[n])
		return append(only(lines, "gpumeter.tracer.up"), only(lines, "gpu.cuda.busy.time")...)
	}
	expect := func(what string, got []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	r, v := begin()
	tick(v)
	expect("traced", tick(v), "gpumeter.tracer.up{} 1", "gpu.cuda.busy.time{"+llmOn0+"} 2 since 1s")
	if err := power.Stop(); err != nil || !opened[0].ran {
		t.Errorf("the tracer goes on: %v", err)
	}
	expect("stopped", tick(v), "gpumeter.tracer.up{} 0", "gpu.cuda.busy.time{"+llmOn0+"} ended since 1s")
	expect("still stopped", tick(v), "gpumeter.tracer.up{} 0")
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, v = begin() // as after a reload of the configuration
	expect("started while off", tick(v), "gpumeter.tracer.up{} 0")
	if len(opened) != 1 {
		t.Errorf("%d tracers", len(opened))
	}
	for range 2 {
		if err := power.Start(); err != nil {
			t.Error(err)
		}
	}
	expect("started", tick(v), "gpumeter.tracer.up{} 1", "gpu.cuda.busy.time{"+llmOn0+"} 1 since 1s")
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(opened) != 2 || !opened[1].ran || opened[0].snapshots != 2 {
		t.Errorf("%d tracers", len(opened))
	}
}
