package gpuextension

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.opentelemetry.io/collector/extension/extensiontest"

	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
)

// A clock that starts with the extension ticks before receivers listen: the first tick
// is lost, and a Collector that cannot start talks of devices.
func TestClockStartsWithReady(t *testing.T) {
	f := func(open Opener, started func(*gpuExtension) bool) {
		t.Helper()
		factory := NewFactoryWithView(open)
		cfg := factory.CreateDefaultConfig().(*Config)
		cfg.Simulate = "h200"
		ext, err := factory.Create(t.Context(), extensiontest.NewNopSettings(factory.Type()), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := ext.Start(t.Context(), componenttest.NewNopHost()); err != nil {
			t.Fatal(err)
		}
		if started(ext.(*gpuExtension)) {
			t.Error("the clock runs before the pipelines do")
		}
		ticks, cancel := ext.(*gpuExtension).Subscribe()
		defer cancel()
		if err := ext.(extensioncapabilities.PipelineWatcher).Ready(); err != nil {
			t.Fatal(err)
		}
		if tick := <-ticks; !tick.Time.Equal(tick.Started) {
			t.Errorf("the first tick is lost: got that of %s, the first was at %s", tick.Time, tick.Started)
		}
		if err := ext.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// A View of its own, as in anyone's Collector.
	f(nil, func(e *gpuExtension) bool { return e.own.stop != nil })
	// Somebody else's, as in gpumeter.
	other := &otherView{View: node.New(node.Config{Interval: time.Minute})}
	f(func(local.Config) (Feed, error) { return other, nil }, func(*gpuExtension) bool { return other.running })
}

type otherView struct {
	*node.View

	running bool
}

func (v *otherView) Ready() {
	v.running = true
	v.Tick(context.Background(), time.Now())
}

func (*otherView) NotReady() {}
