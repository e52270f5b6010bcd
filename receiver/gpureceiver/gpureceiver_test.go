package gpureceiver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

// host is a Collector with the given extensions.
type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// view is an extension that ticks on demand.
type view struct {
	component.StartFunc
	component.ShutdownFunc
	ticks chan node.Tick
}

func (v *view) Subscribe() (<-chan node.Tick, func()) {
	return v.ticks, sync.OnceFunc(func() { close(v.ticks) })
}

func hostWith(v *view) host { return host{component.MustNewID("gpu"): v} }

// Catches a tick emitted twice, and pending ticks lost when the receiver stops.
func TestEmitsEachTickOnce(t *testing.T) {
	v := &view{ticks: make(chan node.Tick, 8)}
	sink := new(consumertest.MetricsSink)
	r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), createDefaultConfig(), sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), hostWith(v)); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		tick := goldenTick()
		tick.Time = now.Add(time.Duration(i) * time.Second)
		v.ticks <- tick
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := sink.AllMetrics()
	if len(got) != 5 {
		t.Fatalf("%d batches for 5 ticks", len(got))
	}
	for i, md := range got {
		for dp := range series.Points(md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0)) {
			if ts, want := dp.Timestamp().AsTime(), now.Add(time.Duration(i)*time.Second); !ts.Equal(want) {
				t.Errorf("batch %d has time %s, want %s", i, ts, want)
			}
		}
	}
}

func TestNeedsExtension(t *testing.T) {
	r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), createDefaultConfig(), consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	err = r.Start(t.Context(), componenttest.NewNopHost())
	if err == nil || !strings.Contains(err.Error(), "service::extensions") {
		t.Errorf("without the extension: %v", err)
	}
	two := host{component.MustNewID("gpu"): &view{}, component.MustNewIDWithName("gpu", "b"): &view{}}
	if err := r.Start(t.Context(), two); err == nil || !strings.Contains(err.Error(), "more than one") {
		t.Errorf("with two extensions: %v", err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// Catches a refusing pipeline that is logged at every tick instead of when it starts and stops.
func TestRefusedIsLoggedOnce(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	v := &view{ticks: make(chan node.Tick, 16)}
	set := receivertest.NewNopSettings(metadata.Type)
	set.Logger = zap.New(core)
	n := 0
	next, err := consumer.NewMetrics(func(context.Context, pmetric.Metrics) error {
		if n++; n <= 5 {
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
	for range 10 {
		v.ticks <- goldenTick()
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n != 10 || logs.Len() != 2 {
		t.Errorf("%d batches, logged %v", n, logs.All())
	}
}

func TestConfig(t *testing.T) {
	if err := createDefaultConfig().(*Config).Validate(); err != nil {
		t.Error(err)
	}
	err := (&Config{}).Validate()
	if err == nil || !strings.Contains(err.Error(), "max_series") || !strings.Contains(err.Error(), "max_processes") {
		t.Errorf("empty configuration: %v", err)
	}
}

// Catches a model without throttling data logged more than once, at its first reading although some need
// two, or because a device is down.
func TestSayMute(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	r := &gpuReceiver{log: zap.New(core)}
	of := func(model string, throttles []device.Throttle, up bool) node.Reading {
		return node.Reading{Sample: device.Sample{ID: device.ID{UUID: model, Model: model}, Throttles: throttles}, Up: up}
	}
	for i := range 20 {
		tick := node.Tick{Readings: []node.Reading{of("p150a", nil, true), of("p150a", nil, true), of("down", nil, false), of("H200", []device.Throttle{}, true)}}
		if i < 2 {
			tick.Readings = append(tick.Readings, of("MI300X", nil, true))
		}
		r.sayMute(tick)
	}
	if logs.Len() != 1 || logs.All()[0].ContextMap()["gpu.model"] != "p150a" {
		t.Errorf("%v", logs.All())
	}
}
