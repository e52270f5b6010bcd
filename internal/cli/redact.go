//go:build linux

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.opentelemetry.io/collector/confmap"
	"go.uber.org/zap/zapcore"
)

// minSecret is the shortest text that is hidden: to hide a header of one letter would
// make the log unreadable, and protect nothing.
const minSecret = 8

// redactor keeps secrets of the configuration out of the log. We write none, but backends
// and proxies may repeat in an answer what a request had, and exporters log the answer.
// The zero redactor hides nothing yet.
type redactor struct {
	mu      sync.RWMutex
	secrets [][]byte // the longest first
}

// hide makes r hide secret, and its parts: of Bearer x, the x alone.
func (r *redactor) hide(secret string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range append(strings.Fields(secret), secret) {
		quoted := strconv.Quote(text)
		for _, form := range []string{text, quoted[1 : len(quoted)-1]} {
			known := func(b []byte) bool { return string(b) == form }
			if len(text) >= minSecret && !slices.ContainsFunc(r.secrets, known) {
				r.secrets = append(r.secrets, []byte(form))
			}
		}
	}
	slices.SortStableFunc(r.secrets, func(a, b []byte) int { return cmp.Compare(len(b), len(a)) })
}

// learn hides the headers in conf and the passwords in its URLs.
func (r *redactor) learn(conf any, header bool) {
	switch v := conf.(type) {
	case map[string]any:
		for key, value := range v {
			r.learn(value, header || strings.EqualFold(key, "headers"))
		}
	case []any:
		for _, value := range v {
			r.learn(value, header)
		}
	case string:
		if header {
			r.hide(v)
		}
		u, err := url.Parse(v)
		if err != nil || u.User == nil {
			return
		}
		if password, ok := u.User.Password(); ok {
			r.hide(password)
			r.hide(base64.StdEncoding.EncodeToString([]byte(u.User.Username() + ":" + password)))
		}
	}
}

// Convert implements confmap.Converter: it sees a configuration whose references are
// resolved, each time it is loaded.
func (r *redactor) Convert(_ context.Context, conf *confmap.Conf) error {
	r.learn(conf.ToStringMap(), false)
	return nil
}

// converter returns the factory of the one converter r.
func (r *redactor) converter() confmap.ConverterFactory {
	return confmap.NewConverterFactory(func(confmap.ConverterSettings) confmap.Converter { return r })
}

// over returns a writer to w of lines without what r hides.
func (r *redactor) over(w zapcore.WriteSyncer) zapcore.WriteSyncer { return redacting{w, r} }

type redacting struct {
	zapcore.WriteSyncer

	hidden *redactor
}

// Write implements io.Writer. A logger writes whole lines.
func (w redacting) Write(line []byte) (int, error) {
	w.hidden.mu.RLock()
	defer w.hidden.mu.RUnlock()
	clean := line
	for _, secret := range w.hidden.secrets {
		if bytes.Contains(clean, secret) {
			clean = bytes.ReplaceAll(clean, secret, []byte(redacted))
		}
	}
	if _, err := w.WriteSyncer.Write(clean); err != nil {
		return 0, err
	}
	return len(line), nil
}
