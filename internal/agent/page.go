//go:build linux

package agent

import (
	"io"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/receiver"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/pageexporter"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver"
)

// WritePage writes the Prometheus page of an agent for one tick to w.
func WritePage(w io.Writer, t node.Tick) error {
	cfg := gpureceiver.NewFactory().CreateDefaultConfig().(*gpureceiver.Config)
	page := pageexporter.NewFactory().CreateDefaultConfig().(*pageexporter.Config)
	e := gpureceiver.NewEmitter(cfg, receiver.Settings{TelemetrySettings: component.TelemetrySettings{
		Logger: zap.NewNop(), MeterProvider: noopmetric.NewMeterProvider(), TracerProvider: nooptrace.NewTracerProvider(),
	}})
	return pageexporter.Render(w, e.Emit(t), page.ResourceLabels, false)
}
