//go:build linux

package agent

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/bearertokenauthextension"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/healthcheckextension"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/pprofextension"
	"github.com/open-telemetry/opentelemetry-collector-contrib/processor/resourceprocessor"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gpumeter/gpumeter/exporter/fileexporter"
	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/exporter/pageexporter"
	"github.com/gpumeter/gpumeter/exporter/stdoutexporter"
	"github.com/gpumeter/gpumeter/extension/filestorage"
	"github.com/gpumeter/gpumeter/extension/gpuextension"
	"github.com/gpumeter/gpumeter/extension/localonly"
	"github.com/gpumeter/gpumeter/processor/gpuspanprocessor"
	"github.com/gpumeter/gpumeter/processor/reservedprocessor"
	"github.com/gpumeter/gpumeter/processor/trainingprocessor"
	"github.com/gpumeter/gpumeter/processor/workloadprocessor"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver"
	"github.com/gpumeter/gpumeter/receiver/hostreceiver"
	"github.com/gpumeter/gpumeter/receiver/inferencereceiver"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver"
	"github.com/gpumeter/gpumeter/receiver/selfreceiver"
)

// process is what the components of the distribution share with the process.
type process struct {
	open   gpuextension.Opener // the View of the gpu extension; nil: the extension opens its own
	store  hubexporter.Opener  // the store of the hub exporter; nil: the exporter opens its own
	stdout io.Writer           // for the stdout exporter; may be nil if no component is started
	meter  *selfreceiver.Meter // collects the Collector's own metrics
	trace  *cudareceiver.Switch
	// engines are those of a simulated machine, nil: they are found.
	engines inferencereceiver.Simulated
	log     *zap.Logger
}

// idle is the process of components that are never started.
func idle() process {
	return process{meter: &selfreceiver.Meter{}, trace: &cudareceiver.Switch{}, log: zap.NewNop()}
}

// factories returns the components of the distribution: ours, and the stock ones that cost next to
// nothing. ADR 13 has the measurements; gpumeter-collector has the others.
func (p process) factories() (otelcol.Factories, error) {
	var f otelcol.Factories
	var errs [4]error
	f.Extensions, errs[0] = otelcol.MakeFactoryMap[extension.Factory](
		gpuextension.NewFactoryWithView(p.open), filestorage.NewFactory(), bearertokenauthextension.NewFactory(), healthcheckextension.NewFactory(), localonly.NewFactory(), pprofextension.NewFactory())
	f.Receivers, errs[1] = otelcol.MakeFactoryMap[receiver.Factory](
		cudareceiver.NewFactoryWithSwitch(p.trace), gpureceiver.NewFactory(), hostreceiver.NewFactory(), p.inference(), otlpreceiver.NewFactory(), schedulerreceiver.NewFactory(), selfreceiver.NewFactory(p.meter))
	f.Processors, errs[2] = otelcol.MakeFactoryMap[processor.Factory](
		batchprocessor.NewFactory(), gpuspanprocessor.NewFactory(), memorylimiterprocessor.NewFactory(), reservedprocessor.NewFactory(), resourceprocessor.NewFactory(), trainingprocessor.NewFactory(), workloadprocessor.NewFactory())
	f.Exporters, errs[3] = otelcol.MakeFactoryMap[exporter.Factory](
		pageexporter.NewFactory(), hubexporter.NewFactoryWithStore(p.store), otlpexporter.NewFactory(), otlphttpexporter.NewFactory(), fileexporter.NewFactory(), stdoutexporter.NewFactory(p.stdout), debugexporter.NewFactory())
	f.Telemetry = newTelemetry(p.meter, p.log)
	return f, errors.Join(errs[:]...)
}

func (p process) inference() receiver.Factory {
	if p.engines != nil {
		return inferencereceiver.NewFactoryWithEngines(p.engines)
	}
	return inferencereceiver.NewFactory()
}

// telemetryConfig is the supported part of the Collector's service::telemetry.
type telemetryConfig struct {
	Logs struct {
		Level zapcore.Level `mapstructure:"level"`
	} `mapstructure:"logs"`
}

// newTelemetry makes the Collector log to log and record its own metrics with meter. The
// configuration can raise the log level, not lower it. The stock factory would add 96 packages
// for cloud services.
func newTelemetry(meter *selfreceiver.Meter, log *zap.Logger) telemetry.Factory {
	return telemetry.NewFactory(
		func() component.Config { // log sets the level
			c := &telemetryConfig{}
			c.Logs.Level = zapcore.DebugLevel
			return c
		},
		telemetry.WithCreateLogger(func(_ context.Context, _ telemetry.LoggerSettings, cfg component.Config) (*zap.Logger, component.ShutdownFunc, error) {
			if level := cfg.(*telemetryConfig).Logs.Level; level > log.Level() {
				return log.WithOptions(zap.IncreaseLevel(level)), nil, nil
			}
			return log, nil, nil
		}),
		telemetry.WithCreateMeterProvider(func(context.Context, telemetry.MeterSettings, component.Config) (telemetry.MeterProvider, error) {
			return meter.NewProvider(), nil
		}),
	)
}

// newCollector returns a Collector that runs the configuration from source.
func newCollector(version string, source confmap.ProviderFactory, p process, converters ...confmap.ConverterFactory) (*otelcol.Collector, error) {
	return otelcol.NewCollector(otelcol.CollectorSettings{
		Factories:              p.factories,
		BuildInfo:              component.BuildInfo{Command: "gpumeter", Description: "gpumeter", Version: version},
		ConfigProviderSettings: configSettings(source, converters...),
		SkipSettingGRPCLogger:  true,
	})
}

const sourceScheme = "gpumeter"

// configSettings returns the settings of a Collector that reads its configuration from source.
func configSettings(source confmap.ProviderFactory, converters ...confmap.ConverterFactory) otelcol.ConfigProviderSettings {
	return otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
		URIs:               []string{sourceScheme + ":"},
		ProviderFactories:  []confmap.ProviderFactory{fileprovider.NewFactory(), envprovider.NewFactory(), source},
		DefaultScheme:      "env",
		ConverterFactories: converters,
	}}
}

// retriever adapts a function to a confmap.Provider.
type retriever func(confmap.WatcherFunc) (*confmap.Retrieved, error)

// source returns a factory that always returns r.
func (r retriever) source() confmap.ProviderFactory {
	return confmap.NewProviderFactory(func(confmap.ProviderSettings) confmap.Provider { return r })
}

func (r retriever) Retrieve(_ context.Context, _ string, w confmap.WatcherFunc) (*confmap.Retrieved, error) {
	return r(w)
}
func (retriever) Scheme() string                 { return sourceScheme }
func (retriever) Shutdown(context.Context) error { return nil }

// fromMap returns a source whose values are literal: a $ is not a reference.
func fromMap(conf map[string]any) confmap.ProviderFactory {
	return retriever(func(confmap.WatcherFunc) (*confmap.Retrieved, error) {
		return confmap.NewRetrieved(literal(conf))
	}).source()
}

// fromText returns a source of YAML.
func fromText(text []byte) confmap.ProviderFactory {
	return retriever(func(confmap.WatcherFunc) (*confmap.Retrieved, error) {
		return confmap.NewRetrievedFromYAML(text)
	}).source()
}

func literal(value any) any {
	switch v := value.(type) {
	case string:
		return strings.ReplaceAll(v, "$", "$$")
	case []string:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = literal(x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = literal(x)
		}
		return out
	case map[string]string:
		out := make(map[string]any, len(v))
		for key, x := range v {
			out[key] = literal(x)
		}
		return out
	case map[string]any:
		if v == nil {
			return nil
		}
		out := make(map[string]any, len(v))
		for key, x := range v {
			out[key] = literal(x)
		}
		return out
	}
	return value
}

// Components returns the components of the distribution, by kind.
func Components() (map[string][]string, error) {
	f, err := idle().factories()
	if err != nil {
		return nil, err
	}
	return map[string][]string{
		"extensions": names(f.Extensions),
		"receivers":  names(f.Receivers),
		"processors": names(f.Processors),
		"exporters":  names(f.Exporters),
	}, nil
}

// names returns the component types in m, without deprecated aliases.
func names[F component.Factory](m map[component.Type]F) []string {
	var list []string
	for t, f := range maps.All(m) {
		if f.Type() == t {
			list = append(list, t.String())
		}
	}
	slices.Sort(list)
	return list
}
