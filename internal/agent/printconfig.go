//go:build linux

package agent

import (
	"context"
	"io"

	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/redact"
)

// printConfig writes the configuration from source to w, without secrets. whole validates it and
// includes every default.
func printConfig(ctx context.Context, w io.Writer, source confmap.ProviderFactory, whole bool) error {
	f, err := idle().factories()
	if err != nil {
		return err
	}
	settings := configSettings(source)
	provider, err := otelcol.NewConfigProvider(settings)
	if err != nil {
		return err
	}
	cfg, err := provider.Get(ctx, f)
	if err != nil {
		return err
	}
	conf := confmap.New()
	if whole {
		if err := confmap.Validate(cfg); err != nil {
			return err
		}
		err = conf.Marshal(cfg) // redacts the Collector's opaque strings
	} else {
		var resolver *confmap.Resolver
		if resolver, err = confmap.NewResolver(settings.ResolverSettings); err == nil {
			conf, err = resolver.Resolve(ctx)
		}
	}
	if err != nil {
		return err
	}
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	return e.Encode(redact.Config(conf.ToStringMap()))
}

// learning returns the factory of a converter that adds the secrets of each loaded
// configuration to hide. Converters see the configuration with its references resolved.
func learning(hide *redact.Redactor) confmap.ConverterFactory {
	return confmap.NewConverterFactory(func(confmap.ConverterSettings) confmap.Converter { return learner{hide} })
}

type learner struct{ hide *redact.Redactor }

// Convert implements confmap.Converter.
func (l learner) Convert(_ context.Context, conf *confmap.Conf) error {
	l.hide.Learn(conf.ToStringMap())
	return nil
}
