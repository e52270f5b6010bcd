package fileexporter

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	stock "github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// Catches a shutdown of the logs pipeline that closes the file of the metrics pipeline: the stock
// exporter panics at the next batch of metrics.
func TestLastShutdownClosesTheFile(t *testing.T) {
	factory := NewFactory()
	cfg := factory.CreateDefaultConfig().(*stock.Config)
	cfg.Path = filepath.Join(t.TempDir(), "otlp.json")
	ctx, set, host := context.Background(), exportertest.NewNopSettings(factory.Type()), componenttest.NewNopHost()
	m, err := factory.CreateMetrics(ctx, set, cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := factory.CreateLogs(ctx, set, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, start := range []func() error{
		func() error { return m.Start(ctx, host) },
		func() error { return l.Start(ctx, host) },
		func() error { return l.ConsumeLogs(ctx, records("a")) },
		func() error { return l.Shutdown(ctx) },
		func() error { return m.ConsumeMetrics(ctx, gauge("b")) },
		func() error { return m.Shutdown(ctx) },
	} {
		if err := start(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"resourceLogs":[{"resource":{},"scopeLogs":[{"scope":{},"logRecords":[{"body":{"stringValue":"a"}}]}]}]}
{"resourceMetrics":[{"resource":{},"scopeMetrics":[{"scope":{},"metrics":[{"name":"b","gauge":{"dataPoints":[{"asInt":"1"}]}}]}]}]}
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("the file (-want +got):\n%s", diff)
	}
}

func records(body string) plog.Logs {
	ld := plog.NewLogs()
	ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().Body().SetStr(body)
	return ld
}

func gauge(name string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	metric := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	metric.SetName(name)
	metric.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(1)
	return md
}
