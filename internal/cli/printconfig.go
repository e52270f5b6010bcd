//go:build linux

package cli

import (
	"context"
	"io"
	"net/url"
	"strings"

	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/receiver/selfreceiver"
)

// redacted stands for what nobody may see, as in the Collector.
const redacted = "[REDACTED]"

// printConfig writes the configuration of source to w: with every default if it is a
// file, and without secrets.
func printConfig(ctx context.Context, w io.Writer, source confmap.ProviderFactory, whole bool) error {
	f, err := factories(nil, nil, &selfreceiver.Meter{}, zap.NewNop())
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
		err = conf.Marshal(cfg) // which hides what the Collector knows to be secret
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
	return e.Encode(redact(conf.ToStringMap(), false))
}

// redact returns value without headers and passwords of URLs.
func redact(value any, secret bool) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, x := range v {
			out[key] = redact(x, secret || key == "headers")
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = redact(x, secret)
		}
		return out
	case string:
		if secret {
			return redacted
		}
		if u, err := url.Parse(v); err == nil && strings.Contains(v, "://") && u.User != nil {
			return u.Redacted()
		}
	}
	return value
}
