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

// printConfig writes the configuration from source to w, with its references resolved, without
// secrets and without defaults: the defaults that components print cannot all be read back. check
// validates the configuration first.
func printConfig(ctx context.Context, w io.Writer, source confmap.ProviderFactory, check bool) error {
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
	if check {
		if err := confmap.Validate(cfg); err != nil {
			return err
		}
	}
	typed := confmap.New()
	if err := typed.Marshal(cfg); err != nil { // redacts the Collector's opaque strings
		return err
	}
	resolver, err := confmap.NewResolver(settings.ResolverSettings)
	if err != nil {
		return err
	}
	conf, err := resolver.Resolve(ctx)
	if err != nil {
		return err
	}
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	return e.Encode(literal(redact.Config(settle(conf.ToStringMap(), typed.ToStringMap()))))
}

// settle returns the written configuration with two kinds of values from the typed one: strings
// that the Collector redacts, and strings that resolving a reference turned into numbers.
func settle(written, typed any) any {
	switch v := written.(type) {
	case map[string]any:
		t, _ := typed.(map[string]any)
		out := make(map[string]any, len(v))
		for key, x := range v {
			out[key] = settle(x, t[key])
		}
		return out
	case []any:
		t, _ := typed.([]any)
		out := make([]any, len(v))
		for i, x := range v {
			if i < len(t) {
				out[i] = settle(x, t[i])
			} else {
				out[i] = settle(x, nil)
			}
		}
		return out
	case nil:
		return nil
	}
	_, isText := written.(string)
	if text, ok := typed.(string); ok && (text == redact.Text || !isText) {
		return text
	}
	return written
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
