package stdoutexporter

import (
	"errors"
	"testing"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// closed is a stream whose reader has gone.
type closed struct{ written chan struct{} }

func (c closed) Write([]byte) (int, error) {
	close(c.written)
	return 0, errors.New("broken pipe")
}

// starting is a Collector that still starts its components.
type starting struct{ t *testing.T }

func (starting) GetExtensions() map[component.ID]component.Component { return nil }

func (s starting) Report(e *componentstatus.Event) { s.t.Errorf("%s was reported", e.Status()) }

// Catches a fatal status for a reader that goes while the Collector starts: reporting one blocks,
// with a lock that the start needs, until all components have started, and the agent hung for good.
func TestClosedWhileStarting(t *testing.T) {
	out := closed{make(chan struct{})}
	f := NewFactory(out)
	e, err := f.CreateMetrics(t.Context(), exportertest.NewNopSettings(f.Type()), f.CreateDefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), starting{t}); err != nil {
		t.Fatal(err)
	}
	md := pmetric.NewMetrics()
	md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty().SetEmptyGauge().DataPoints().AppendEmpty()
	if err := e.ConsumeMetrics(t.Context(), md); err != nil {
		t.Error(err)
	}
	<-out.written
	if err := e.Shutdown(t.Context()); err != nil { // after the goroutine that writes
		t.Error(err)
	}
}
